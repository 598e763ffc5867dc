"""Everything the gateway and the worker say to each other, one typed message per fact.

msgspec tagged structs; no pickle, no paths. Every `Generate` ends in exactly one `Done` or
`Failed`; every `Precompute` in one `Precomputed` per chunk; every `Purge` in one `Purged`; every
`AskGate` in one `GateStates`.
Durations are seconds taken inside one process's monotonic clock.
"""

from __future__ import annotations

import msgspec

from service.records import (
    ChunkTokens,
    ColdMode,
    Forecast,
    GateState,
    LoraInfo,
    Method,
    MethodInfo,
    ModelInfo,
    Report,
    Sampling,
    SegmentFates,
    SegmentForecast,
    SegmentReport,
    TokenFates,
    TokenItem,
    TokenLogprobs,
    TokenRun,
    WorkerLoad,
)

__all__ = [
    "KNOWN_PROTOCOLS",
    "PROTOCOL",
    "Abort",
    "AskGate",
    "AskHoldings",
    "ChunkTokens",
    "ColdMode",
    "Done",
    "Explain",
    "Explained",
    "Failed",
    "Forecast",
    "FromWorker",
    "GateState",
    "GateStates",
    "Generate",
    "Hello",
    "Holdings",
    "LoraInfo",
    "Message",
    "Method",
    "MethodInfo",
    "ModelInfo",
    "Ping",
    "Precompute",
    "Precomputed",
    "Prefetch",
    "Purge",
    "Purged",
    "Ready",
    "Report",
    "Sampling",
    "SegmentFates",
    "SegmentForecast",
    "SegmentReport",
    "Shutdown",
    "Stats",
    "ToWorker",
    "TokenFates",
    "TokenItem",
    "TokenLogprobs",
    "TokenRun",
    "Tokens",
    "WorkerLoad",
]


# Fields are only added, with defaults, and unknown ones are ignored: that is no new protocol. A
# change that the other side must know of is one; a gateway talks to workers of KNOWN_PROTOCOLS.
PROTOCOL = 1
KNOWN_PROTOCOLS = (1,)


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base: the struct's name is its tag on the wire."""


# -- gateway to worker ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a gateway; answered by `Ready` as soon as the model is loaded.

    A shared worker keeps what it stores for as long as it hears from everyone who may delete
    documents. `domain` names the place where this gateway's deletions are noted; all gateways of
    one database have the same. After `lease_s` without a `Ping` of that domain the worker drops
    what only it holds. 0: this gateway is the only one, and knows when the worker has ended.
    """

    domain: str = ""
    lease_s: float = 0.0


class Ping(Message, frozen=True):
    """A gateway that said `Hello` with a lease is there. `clock`: of the worker's latest `Stats`,
    from which the lease counts; so a message that was late renews nothing. No reply."""

    domain: str
    lease_s: float
    clock: float


class Generate(Message, frozen=True):
    """Answer prompt S ‖ D_1..D_k ‖ Q. Replies: `Tokens`…, then one `Done` or `Failed`."""

    id: str
    system: list[int]
    documents: list[ChunkTokens]
    question: list[int]
    fusion: Method
    eviction: Method | None = None
    sampling: Sampling = Sampling()
    prefix_mode: str = "none"
    tenant: str = ""
    traceparent: str = ""  # the gateway's span, W3C Trace Context; empty: not traced
    token_fates: bool = False  # the report is to say what became of every token
    cold: ColdMode = "in_context"  # how chunks that are not stored are computed
    prefix_cache: bool = True  # whether it may continue an earlier prompt, and be continued
    lora: str = ""  # name of the LoRA adapter that answers; empty: the base model


class Explain(Message, frozen=True):
    """Say what this request would take; nothing is run. Reply: `Explained` or `Failed`, under the
    request's id."""

    request: Generate


class Abort(Message, frozen=True):
    """Stop a sequence (disconnect, stop string). Answered by its `Done` with that reason."""

    id: str
    reason: str  # "disconnect" | "stop" | "deadline"


class Prefetch(Message, frozen=True):
    """A request with this fusion method will ask for these chunks: bring what it reads whole into
    the memory tier. No reply."""

    fusion: str
    system: list[int]
    documents: list[ChunkTokens]
    prefix_mode: str = "none"
    tenant: str = ""
    lora: str = ""


class Precompute(Message, frozen=True):
    """Prefill these chunks in the background and store them. Replies: `Precomputed` per chunk."""

    id: str
    system: list[int]
    documents: list[ChunkTokens]
    prefix_mode: str = "none"
    tenant: str = ""
    lora: str = ""  # the LoRA adapter that they are computed with; empty: the base model


class Purge(Message, frozen=True):
    """Delete these chunks' KV from every tier, of all LoRA adapters, too. Reply: `Purged`."""

    id: str
    system: list[int]
    documents: list[ChunkTokens]
    prefix_mode: str = "none"
    tenant: str = ""


class AskGate(Message, frozen=True):
    """How methods stand at the correctness gate. reset: a method to trust again first, "" for all.
    Reply: `GateStates`."""

    id: str
    reset: str | None = None


class AskHoldings(Message, frozen=True):
    """Tell me from now on which chunks your memory tier holds, all of them first. Replies:
    `Holdings`, as things change."""


class Shutdown(Message, frozen=True):
    """Finish what runs, flush the store, exit."""


# -- worker to gateway ---------------------------------------------------------------------------


class Ready(Message, frozen=True):
    model: ModelInfo
    fusion: list[MethodInfo]
    eviction: list[MethodInfo]
    pool_tokens: int  # KV pool capacity in tokens
    adapters: list[LoraInfo] = []
    protocol: int = 1  # what it speaks; versions before this field spoke 1


class Tokens(Message, frozen=True):
    """The tokens of one decode step, for all running sequences."""

    items: list[TokenItem]


class Done(Message, frozen=True):
    """finish_reason: "stop" (end token or stop string), "length", or the abort's reason."""

    id: str
    finish_reason: str
    report: Report


class Failed(Message, frozen=True):
    """The request or call `id` cannot be answered. `code` is one of service.errors."""

    id: str
    code: str
    message: str
    field: str | None = None


class Explained(Message, frozen=True):
    id: str
    forecast: Forecast


class Precomputed(Message, frozen=True):
    """One chunk of a `Precompute`. status: "stored", "present" or "failed".

    Present: there is nothing to store, because it is there, or its document was deleted meanwhile.
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
    unreached: list[str] = []


class GateStates(Message, frozen=True):
    """on: whether answers are checked at all."""

    id: str
    on: bool
    states: list[GateState]


class Stats(Message, frozen=True):
    """Sent about every second: the worker's heartbeat and its counters since start.

    values: (metric, labels, value) each, the metric declared in service.shared.metrics.
    """

    values: list[tuple[str, dict[str, str], float]]
    running: int
    waiting: int
    pool_free: float  # share of the KV pool that is free
    draining: bool = False  # it takes nothing new, and ends when what runs has ended
    gone: bool = False  # its last message: it ends, and what only it held is no more
    clock: float = 0.0  # seconds of the worker's own clock, for `Ping`


class Holdings(Message, frozen=True):
    """What the memory tier has gained and lost since the last one, and how busy the worker is.

    Chunks go by their names of `service.chunk_ids`. `snapshot`: `added` is all that it holds.
    `number` counts up by one; who misses one asks for a snapshot. `received` counts the `Generate`
    of this gateway that `load` counts, or that have already been answered.
    """

    number: int
    added: list[bytes]
    removed: list[bytes]
    snapshot: bool
    received: int
    load: WorkerLoad


ToWorker = (
    Hello
    | Ping
    | Generate
    | Explain
    | Abort
    | Prefetch
    | Precompute
    | Purge
    | AskGate
    | AskHoldings
    | Shutdown
)
FromWorker = (
    Ready
    | Tokens
    | Done
    | Explained
    | Failed
    | Precomputed
    | Purged
    | GateStates
    | Stats
    | Holdings
)
