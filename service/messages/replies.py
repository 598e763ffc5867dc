"""Messages from a worker to a gateway, and the types that only they are made of."""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import msgspec

from kvstitch.records.answers import MethodInfo
from kvstitch.service.errors import KvstitchError, WorkerFault
from kvstitch.service.messages.reports import Forecast, GateStateName, Report
from kvstitch.service.messages.requests import Message, Method


@dataclass(frozen=True)
class ModelInfo:
    """The model that a worker serves."""

    name: str
    fingerprint: str
    family: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    max_context: int  # tokens of prompt + answer
    kv_bytes_per_token: int
    codec: str
    device: str
    # a chunk's file of about as many tokens as most have, by token; 0: an earlier worker
    stored_bytes_per_token: float = 0.0


@dataclass(frozen=True)
class LoraInfo:
    """A LoRA adapter that is served beside the base model."""

    name: str
    fingerprint: str  # of its weights
    rank: int  # the largest of its modules'
    modules: list[str]


@dataclass(frozen=True, kw_only=True)
class OfferedMethod(MethodInfo):
    """A fusion or eviction method that a worker has; `unavailable` says why this model cannot use
    it, empty: it can."""

    sparse: bool = False  # holds only part of the documents' KV itself


class Ready(Message, frozen=True):
    """The worker serves."""

    model: ModelInfo
    fusion: list[OfferedMethod]
    eviction: list[OfferedMethod]
    pool_tokens: int  # KV pool capacity in tokens
    adapters: list[LoraInfo] = msgspec.field(default_factory=list)
    protocol: int = 1  # what it speaks; versions before this field spoke 1


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the model's probabilities at one token of an answer."""

    logprob: float  # of the token itself
    # (token, log-probability), likeliest first, as many as were asked for.
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class TokenItem:
    id: str  # of the request
    token: int
    logprobs: TokenLogprobs | None = None  # only where they were asked for


class Tokens(Message, frozen=True):
    """The tokens of one decode step, for all running sequences."""

    items: list[TokenItem]


class HandedOver(Message, frozen=True):
    """The prompt's KV lies where another engine can load it, until an `Abort` ends the request."""

    id: str
    place: str  # its name in shared memory; empty: it does not fit there
    tokens: int
    end_ids: list[int]  # tokens that end an answer
    check: bool = False  # whether the gate waits for a `Compared`


class Done(Message, frozen=True):
    """A request is answered, or was stopped."""

    id: str
    finish_reason: str  # "stop" (end token or stop string), "length", or the abort's reason
    report: Report


class Failed(Message, frozen=True):
    """The request or call `id` cannot be answered. `code` is one of service.errors."""

    id: str
    code: str
    message: str
    field: str | None = None

    @classmethod
    def of(cls, id: str, error: Exception) -> Self:
        """Return the message for an error; what is no `KvstitchError` becomes a `WorkerFault`."""
        if not isinstance(error, KvstitchError):
            kind = type(error).__name__
            error = WorkerFault(f"the engine failed on this request: {kind}: {error}")
        return cls(id, error.code, error.message, error.field)


class Explained(Message, frozen=True):
    """What a request would take."""

    id: str
    forecast: Forecast


class Precomputed(Message, frozen=True):
    """One chunk of a `Precompute`.

    Its status is "stored", "failed" or "present": there is nothing to store, because it is there,
    or its document was deleted meanwhile.
    """

    id: str
    chunk_id: int
    status: str
    bytes: int
    seconds: float
    message: str = ""


class Purged(Message, frozen=True):
    """Copies deleted per tier. `unreached` tiers may still hold some: ask again."""

    id: str
    copies: dict[str, int]
    unreached: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True)
class GateState:
    """How a fusion method with its parameters stands at the correctness gate."""

    fusion: Method
    state: GateStateName
    used: Method  # what runs instead
    why: str
    for_s: float  # seconds for which it has been in this state
    checks: int  # the last ones of what is used, none for full prefill
    agreement: float | None
    mean_kl: float | None
    recovery_checks: int  # those of the step below, as are the next two
    recovery_agreement: float | None
    recovery_kl: float | None
    recovery_needed: int  # good checks of the step below after which it is used again
    trips: int  # since start or reset


class GateStates(Message, frozen=True):
    """How all methods stand at the correctness gate."""

    id: str
    on: bool  # whether answers are checked at all
    states: list[GateState]


class Stats(Message, frozen=True):
    """Sent about every second: the worker's heartbeat and its counters since start."""

    values: list[tuple[str, dict[str, str], float]]  # (declared metric, labels, value)
    running: int
    waiting: int
    pool_free: float  # share of the KV pool that is free
    draining: bool = False  # it takes nothing new, and ends when what runs has ended
    gone: bool = False  # its last message: it ends, and what only it held is no more
    clock: float = 0.0  # seconds of the worker's own clock, for `Ping`


@dataclass(frozen=True)
class WorkerLoad:
    """What a worker is busy with, and how fast it believes to be; before it has said so: a
    guess."""

    backlog_s: float = 0.0  # seconds until a prompt that comes now could start
    running: int = 0  # sequences that prefill or decode
    token_s: float = 1e-3  # seconds to compute a prompt token at every layer
    overhead_s: float = 0.0  # seconds of any prefill besides its tokens
    step_s: float = 1e-2  # seconds of a decode step, besides its sequences
    step_sequence_s: float = 1e-3  # seconds that a sequence adds to a decode step
    token_bytes: float = 0.0  # bytes of a token's stored KV
    # By slower tier, the seconds of a read and those of a byte.
    tiers: dict[str, tuple[float, float]] = field(default_factory=dict)


class Holdings(Message, frozen=True):
    """What the memory tier has gained and lost since the last one, and how busy the worker is.

    Chunks go by their names (`kvstitch.service.messages.requests.ChunkNames`). With `snapshot`,
    `added` is all that it holds. `number` counts up by one; a gateway that misses one asks for a
    snapshot. `received` counts the `Generate` of this gateway that `load` counts, or that are
    answered.
    """

    number: int
    added: list[bytes]
    removed: list[bytes]
    snapshot: bool
    received: int
    load: WorkerLoad


Reply = TokenItem | HandedOver | Done | Explained | Failed | Precomputed
"""What the engine returns; the server puts the tokens of a step into one `Tokens`."""

FromWorker = (
    Ready
    | Tokens
    | HandedOver
    | Done
    | Explained
    | Failed
    | Precomputed
    | Purged
    | GateStates
    | Stats
    | Holdings
)
