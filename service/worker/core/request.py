"""The engine's requests and events. Plain records, independent of how they are transported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.errors import KvstitchError, WorkerFault
from service.records import ChunkTokens, ColdMode, Forecast, Method, Report, Sampling, TokenLogprobs


@dataclass(frozen=True)
class Request:
    """One prompt S ‖ D ‖ Q to answer; its fields are those of `messages.Generate`.

    Attributes:
        id: of the request.
        system: token ids of the system segment S.
        documents: the document segments D.
        question: token ids of the question Q.
        fusion: fusion method and its parameters.
        eviction: eviction method and its parameters; None for none.
        sampling: how answer tokens are chosen.
        prefix_mode: what documents are precomputed behind (docs/specification.md §0).
        tenant: whose chunks are used; "" for the default tenant.
        token_fates: whether to report what happened to every prompt token.
        cold: how chunks that are not stored are computed: in the prompt's context, or by themselves
            as precompute does.
        prefix_cache: whether it may continue an earlier prompt, and be continued itself.
        lora: name of the LoRA adapter that answers; "" for the base model.
        arrived: when the request arrived, in seconds of time.monotonic.
    """

    id: str
    system: Sequence[int]
    documents: Sequence[ChunkTokens]
    question: Sequence[int]
    fusion: Method = field(default_factory=lambda: Method("a3"))
    eviction: Method | None = None
    sampling: Sampling = field(default_factory=Sampling)
    prefix_mode: str = "none"
    tenant: str = ""
    token_fates: bool = False
    cold: ColdMode = "in_context"
    prefix_cache: bool = True
    lora: str = ""
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class TokenEvent:
    """One token of an answer, and its log-probabilities if the request asks for them."""

    id: str
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class DoneEvent:
    """A request is answered."""

    id: str
    finish_reason: str
    report: Report


@dataclass(frozen=True)
class FailedEvent:
    """A request failed; the fields are those of the `KvstitchError`."""

    id: str
    code: str
    message: str
    field: str | None = None

    @classmethod
    def of(cls, id: str, error: Exception) -> FailedEvent:
        """The event for an error; any that is not a `KvstitchError` becomes a `WorkerFault`."""
        if not isinstance(error, KvstitchError):
            kind = type(error).__name__
            error = WorkerFault(f"the engine failed on this request: {kind}: {error}")
        return cls(id, error.code, error.message, error.field)


@dataclass(frozen=True)
class ExplainedEvent:
    """The expected cost of a request that is not answered."""

    id: str
    forecast: Forecast


@dataclass(frozen=True)
class PrecomputedEvent:
    """A chunk was precomputed, was already stored, or failed, as `status` says."""

    id: str
    chunk_id: int
    status: str
    bytes: int
    seconds: float
    message: str = ""


Event = TokenEvent | DoneEvent | ExplainedEvent | FailedEvent | PrecomputedEvent
