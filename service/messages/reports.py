"""What an answer, or the forecast of one, says about how it was computed."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from kvstitch.records import answers
from kvstitch.records.answers import CacheSegment, ComputedPrompt, PromptCost, SegmentForecastOut
from kvstitch.records.base import record
from kvstitch.service.messages.requests import Method


@record
class SegmentReport(CacheSegment):
    """What happened to one segment; `chunk_id` is -1 of the system prompt."""

    chunk_id: int


@record
class SegmentForecast(SegmentForecastOut):
    """What would happen to one segment; `chunk_id` is -1 of the system prompt."""

    chunk_id: int


@record
class Forecast(PromptCost):
    """What a prompt would take."""

    prompt_tokens: int
    system: SegmentForecast
    documents: list[SegmentForecast]
    first_token_s: float  # from when the worker begins with it
    full_prefill_s: float
    measured: bool  # computing and the tiers it would read have been timed here; else: assumed
    warnings: list[str] = field(default_factory=list)


GateStateName = Literal["ok", "ratio_raised", "full_prefill"]
GATE_STATES: tuple[GateStateName, ...] = get_args(GateStateName)


@record
class GateNote(answers.GateNote):
    """What the correctness gate changed of a request."""

    used: Method  # type: ignore[assignment]

    @property
    def text(self) -> str:
        instead = (
            "full prefill was used"
            if self.state == "full_prefill"
            else f"its ratio was raised to {self.used.parameters['ratio']:g}"
        )
        return f"the correctness gate does not trust the fusion method, {instead}: {self.why}"


class TokenRun(NamedTuple):
    """Neighbouring tokens to which the same happened."""

    tokens: int  # how many they are
    recomputed: bool  # whether they are of the segment's `rows_recomputed`
    computed_layers: int  # layers at which their KV was computed with the prompt
    entries: int  # of layers · KV heads, those that held each of them after the first token


@dataclass(frozen=True)
class SegmentTrace:
    """What became of a segment's tokens, in order."""

    runs: list[TokenRun]
    # One per token, three digits: by which the fusion method ranked them. None: it ranks none.
    scores: list[float] | None = None


@dataclass(frozen=True)
class TokenTrace:
    """What became of every token of a prompt, segment by segment."""

    layers: int
    kv_heads: int
    system: SegmentTrace
    documents: list[SegmentTrace]
    question: SegmentTrace


@record
class Report(ComputedPrompt):
    """How an answer was computed, and what that cost."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose stored KV was used at the last layer
    system: SegmentReport
    documents: list[SegmentReport]
    stages: dict[str, float]  # queue, load, prefill, evict, first_token, decode
    decode_steps: int
    seed: int | None = None
    warnings: list[str] = field(default_factory=list)
    ratio: float | None = None  # of a fusion method that has one, as it was used
    hidden_load_s: float = 0.0  # seconds of reading, summed over segments, that nobody waited for
    gate: GateNote | None = None  # None: the method that was asked for ran
    exact_from: int | None = None  # tokens of the answer before full prefill took over, if it did
    token_fates: TokenTrace | None = None  # of a prompt that ran, where it was asked for
