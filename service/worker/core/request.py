"""What the engine is asked for and what it reports: plain records, no socket, no msgspec."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.errors import KvstitchError, WorkerFault
from service.records import Chunk, Forecast, Method, Report, Sampling


@dataclass(frozen=True)
class Request:
    """One prompt S ‖ D ‖ Q to answer; the fields of `messages.Generate`. `arrived`, by
    time.monotonic: since when it waits."""

    id: str
    system: Sequence[int]
    documents: Sequence[Chunk]
    question: Sequence[int]
    fusion: Method = field(default_factory=lambda: Method("a3"))
    eviction: Method | None = None
    sampling: Sampling = field(default_factory=Sampling)
    prefix_mode: str = "none"
    tenant: str = ""
    token_fates: bool = False
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class TokenEvent:
    id: str
    token: int


@dataclass(frozen=True)
class DoneEvent:
    id: str
    finish_reason: str
    report: Report


@dataclass(frozen=True)
class FailedEvent:
    id: str
    code: str
    message: str
    field: str | None = None

    @classmethod
    def of(cls, id: str, error: Exception) -> FailedEvent:
        """An error that was not foreseen is the engine's fault."""
        if not isinstance(error, KvstitchError):
            kind = type(error).__name__
            error = WorkerFault(f"the engine failed on this request: {kind}: {error}")
        return cls(id, error.code, error.message, error.field)


@dataclass(frozen=True)
class ExplainedEvent:
    id: str
    forecast: Forecast


@dataclass(frozen=True)
class PrecomputedEvent:
    id: str
    chunk_id: int
    status: str
    bytes: int
    seconds: float
    message: str = ""


Event = TokenEvent | DoneEvent | ExplainedEvent | FailedEvent | PrecomputedEvent
