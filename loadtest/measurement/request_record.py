"""What became of each request of a run. Times count from when it was *meant* to be sent."""

from __future__ import annotations

from dataclasses import dataclass, field

OK, REJECTED, OVERLOADED = "ok", "429", "503"
FAILED, UNFINISHED = "failed", "unfinished"


@dataclass
class RequestRecord:
    """One request, filled while its answer arrives, so that a cut-off answer is recorded too.

    Attributes:
        at_s: when it was meant to be sent, in seconds from the start of the run.
        outcome: `ok`, `429`, `503`, `failed` (any other fault of server or network) or
            `unfinished` (cut off at the end of the run).
        error: what went wrong.
        lag_s: how many seconds too late it was sent; this is the generator's fault.
        ttft_s: seconds to the first token.
        e2e_s: seconds to the end of the answer.
        tpot_s: seconds per token after the first.
        itl_s: seconds between successive events with text.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens of the answer.
        sources: prompt tokens by the source of their KV cache.
    """

    at_s: float
    outcome: str = UNFINISHED
    error: str | None = None
    lag_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: dict[str, int] = field(default_factory=dict)
