"""What became of each request of a run. Times in seconds from when it was *meant* to be sent."""

from __future__ import annotations

from dataclasses import dataclass, field

OK, REJECTED, OVERLOADED = "ok", "429", "503"
FAILED, UNFINISHED = "failed", "unfinished"


@dataclass
class RequestRecord:
    """One request. It is written while the answer comes, so that one cut short is there too."""

    at_s: float
    """When it was meant to be sent, from the start of the run."""
    outcome: str = UNFINISHED
    """ok, 429, 503, failed (anything else the server or network did), unfinished (cut at the end
    of the run's patience)."""
    error: str | None = None
    lag_s: float | None = None
    """How much later than meant it was sent: the generator's own fault."""
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: dict[str, int] = field(default_factory=dict)
