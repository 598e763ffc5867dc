"""Messages from a gateway to a worker, and the types that they are made of."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from kvstitch.encryption.keyring import DataKey

ColdMode = Literal["in_context", "as_stored"]
"""How a chunk that is not stored is computed: with the prompt, or by itself as precompute does."""

HistoryMode = Literal["compute", "reuse"]
"""Earlier turns behind other documents than before: with the prompt, or what the last turn left."""


@dataclass(frozen=True)
class ChunkTokens:
    """One retrieved document segment D_i."""

    chunk_id: int  # the catalog's
    ids: list[int]  # its token ids, which are the truth
    # Token ids of the other chunks that stand between S and this one when its KV is computed by
    # itself, in the prefix modes primer and neighbours.
    behind: list[list[int]] = field(default_factory=list)
    # Further such chunks, in the mode primer: it is computed behind each of these, too, and what is
    # stored is the mean.
    also_behind: list[list[list[int]]] = field(default_factory=list)

    @property
    def prefixes(self) -> list[list[list[int]]]:
        """What it is computed behind, each a list of chunks; none: behind nothing but S."""
        return [self.behind, *self.also_behind] if self.behind else []

    @property
    def chunks_behind(self) -> int:
        """Chunks that it is computed behind, in all."""
        return sum(map(len, self.prefixes))


@dataclass(frozen=True)
class Method:
    """A fusion or eviction method by name with its parameters (checked against its schema)."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How an answer's tokens are chosen.

    `repetition_penalty` counts prompt and answer, the other two penalties the answer alone. With
    `ignore_end` the model's own end tokens end nothing; those of `stop_ids` do in any case.
    """

    max_tokens: int = 128  # 0: the prompt is computed and kept, nothing is answered
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    seed: int | None = None  # None: drawn by the worker
    logprobs: int | None = None  # of every token, and of this many most likely ones; None: none
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)  # by token id
    min_tokens: int = 0
    ignore_end: bool = False
    stop_ids: list[int] = field(default_factory=list)
    grammar: str = ""  # what the answer must match, in llguidance's form; empty: anything


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages, also of a worker's; the class's name is its tag on the wire."""


class Leased(Message, frozen=True):
    domain: str = ""
    lease_s: float = 0.0


class Hello(Leased, frozen=True):
    """First message of a gateway; answered by `Ready` as soon as the model is loaded.

    A shared worker keeps what it stores for as long as it hears from everyone who may delete
    documents. `domain` names the place where this gateway's deletions are noted; all gateways of
    one database have the same. After `lease_s` without a `Ping` of that domain the worker drops
    what only it holds. 0: this gateway is the only one, and knows when the worker has ended.
    """


class Ping(Leased, frozen=True):
    """A gateway that said `Hello` with a lease still runs. No reply.

    `clock` is that of the worker's latest `Stats`, and the lease counts from it, so that a message
    that comes late renews nothing.
    """

    clock: float = 0.0


class Keys(Message, frozen=True):
    """All keys of tenants from now on, of each the oldest first. No reply.

    Sent before anything else and after every change. A worker that was told of keys seals
    everything that it stores.
    """

    keys: list[DataKey]


class Generate(Message, frozen=True):
    """Answer prompt S ‖ D_1..D_k ‖ Q. `Tokens`… or `HandedOver`, then `Done` or `Failed`."""

    id: str
    system: Sequence[int]
    documents: Sequence[ChunkTokens]
    question: Sequence[int]
    fusion: Method
    eviction: Method | None = None
    sampling: Sampling = Sampling()
    prefix_mode: str = "none"  # the prefix of a chunk's KV (docs/specification.md §0)
    tenant: str = ""  # whose chunks are used; empty: the unnamed tenant's
    traceparent: str = ""  # the gateway's span, W3C Trace Context; empty: not traced
    token_fates: bool = False  # whether the report says what became of every token
    cold: ColdMode = "in_context"  # how chunks that are not stored are computed
    prefix_cache: bool = True  # whether it may continue an earlier prompt, and be continued
    lora: str = ""  # name of the LoRA adapter that answers; empty: the base model
    history: int = 0  # first tokens of the question that are earlier turns of a conversation
    history_mode: HistoryMode = "compute"  # where the prompt continues no earlier one
    any_method: bool = False  # whether full prefill may answer, where it is not slower
    # nats by which a token must lead the next best; from the first that does not on, the answer is
    # full prefill's. 0: whatever they are
    exact_below: float = 0.0
    view: str = ""  # what its sender may read, if not everybody may read all of the documents
    hand_over: bool = False  # whether another engine decodes: see `HandedOver`

    @property
    def sharers(self) -> str:
        """Who may be given KV of this prompt: the tenant, or those of it with the same view."""
        return f"{self.tenant}\0{self.view}" if self.view else self.tenant


class Explain(Message, frozen=True):
    """Forecast what this request would take; nothing is run.

    Reply: `Explained` or `Failed`, under the request's id.
    """

    request: Generate


class Abort(Message, frozen=True):
    """Stop a sequence (disconnect, stop string). Answered by its `Done` with that reason."""

    id: str
    reason: str  # "disconnect" | "stop" | "deadline" | "loaded", of what was handed over


class Prefetch(Message, frozen=True):
    """Bring what a request with this fusion method will read whole into the memory tier.

    Sent before the request itself. No reply.
    """

    fusion: str
    system: Sequence[int]
    documents: Sequence[ChunkTokens]
    prefix_mode: str = "none"
    tenant: str = ""
    lora: str = ""


class OfChunks(Message, frozen=True):
    id: str
    system: list[int]
    documents: list[ChunkTokens]
    prefix_mode: str = "none"
    tenant: str = ""


class Precompute(OfChunks, frozen=True):
    """Prefill these chunks in the background and store them. Replies: `Precomputed` per chunk."""

    lora: str = ""  # the LoRA adapter that they are computed with; empty: the base model


class Purge(OfChunks, frozen=True):
    """Delete these chunks' KV from every tier, of all LoRA adapters, too, and prompts with their
    text. Reply: `Purged`."""

    prompts: list[list[int]] = []  # further texts, whose prompts alone are deleted


class Compared(Message, frozen=True):
    """The check of a `HandedOver` that asked for one. No reply."""

    id: str
    kl: float  # of the first token's distributions, full prefill's ‖ the answer's, in nats
    agrees: bool


class AskGate(Message, frozen=True):
    """Say how methods stand at the correctness gate. Reply: `GateStates`."""

    id: str
    reset: str | None = None  # a method to trust again first, "" for all; None: none


# The names of this message and of its reply `Holdings` are bytes on the wire, so they stay;
# elsewhere the chunks that a worker's memory tier holds are its cached chunks.
class AskHoldings(Message, frozen=True):
    """Report from now on which chunks the memory tier holds, all of them first.

    Replies: `Holdings`, as things change.
    """


class Shutdown(Message, frozen=True):
    """Finish what runs, flush the store, exit."""


ToWorker = (
    Hello
    | Ping
    | Keys
    | Generate
    | Explain
    | Abort
    | Prefetch
    | Precompute
    | Purge
    | Compared
    | AskGate
    | AskHoldings
    | Shutdown
)

CHUNK_NAME_BYTES = 16


class ChunkNames:
    """Names the chunks of one request alike in both processes.

    Unlike a chunk's key, a name needs neither the model nor a secret. A gateway that routes to
    several workers counts with names. They live in memory only; on disk and in Redis a chunk has
    its key.

    Args:
        system: token ids of S.
        prefix_mode: what stands before a chunk when its KV is computed.
        tenant: whose they are.
        lora: the LoRA adapter that they are computed with; empty: the base model.
    """

    def __init__(
        self, system: Sequence[int], prefix_mode: str, tenant: str, lora: str = ""
    ) -> None:
        self._start = blake2b(digest_size=CHUNK_NAME_BYTES)
        self._start.update(repr((tenant, prefix_mode, lora)).encode())
        self._start.update(_bytes(system))

    def of(self, chunk: ChunkTokens) -> bytes:
        """Return the chunk's name: 16 bytes that nothing else has."""
        name = self._start.copy()
        for number, prefix in enumerate(chunk.prefixes):
            for ids in prefix if number == 0 else ([], *prefix):
                name.update(_bytes(ids))
        name.update(_bytes(chunk.ids))
        return name.digest()


def _bytes(ids: Sequence[int]) -> bytes:
    """Return the ids and their number, so that a border between two lists counts."""
    return array("q", [len(ids), *ids]).tobytes()
