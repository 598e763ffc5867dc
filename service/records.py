"""Records that messages carry and the engine fills: plain dataclasses, no msgspec, no torch.

The engine is importable on a bare machine; `service.messages` puts these on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args


@dataclass(frozen=True)
class ChunkTokens:
    """One retrieved document segment D_i.

    Attributes:
        chunk_id: the catalog's.
        ids: its token ids, which are the truth.
        behind: token ids of the other chunks that stand between S and this one when its KV is
            computed by itself, in the prefix modes primer and neighbours.
    """

    chunk_id: int
    ids: list[int]
    behind: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Method:
    """A fusion or eviction method by name with its parameters (checked against its schema)."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How an answer's tokens are chosen. repetition_penalty counts prompt and answer, the other two
    the answer. ignore_end: the model's own end tokens end nothing; stop_ids do, besides them."""

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


ColdMode = Literal["in_context", "as_stored"]
"""How a chunk that is not stored is computed: with the prompt, or by itself as precompute does."""


@dataclass(frozen=True)
class ModelInfo:
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


@dataclass(frozen=True)
class LoraInfo:
    """A LoRA adapter that is served beside the base model."""

    name: str
    fingerprint: str  # of its weights
    rank: int  # the largest of its modules'
    modules: list[str]


@dataclass(frozen=True)
class MethodInfo:
    name: str
    doc: str
    parameters: dict[str, dict[str, Any]]  # service.shared.parameters.Schema
    unavailable: str = ""  # why this model cannot use it; empty: it can
    sparse: bool = False  # holds only part of the documents' KV itself


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the model's probabilities at one token of an answer. top: (token,
    log-probability), likeliest first, as many as were asked for."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class TokenItem:
    id: str
    token: int
    logprobs: TokenLogprobs | None = None  # only where they were asked for


@dataclass(frozen=True)
class SegmentReport:
    """What happened to one segment. `tier` is where its KV came from: memory, ssd, redis, s3,
    "pool" or "prompts" when an earlier prompt had left all of it in the KV pool or on disk, or
    "cold" when it was computed because no usable copy existed (`problems` says why). reused: its
    tokens that an earlier prompt had left. rows_recomputed: its rows that were computed with the
    prompt, all of them or a repair."""

    chunk_id: int
    tokens: int
    tier: str
    bytes: int  # read from that tier
    stored_bytes: int  # of the segment's whole stored KV
    load_s: float
    rows_recomputed: int
    problems: list[str] = field(default_factory=list)  # e.g. "ssd: corrupt"
    plan: str = ""  # what the planner chose: "load" or "recompute"; empty: there was no choice
    why: str = ""  # of a plan that is not to load
    computed: ColdMode | Literal[""] = ""  # how, if its tier is "cold"
    behind: int = 0  # other chunks of the collection that its stored KV was computed behind
    reused: int = 0


@dataclass(frozen=True)
class SegmentForecast:
    """What would happen to one segment. `tier` holds its KV now, or "cold"; `action` is "load",
    "recompute", or "reuse" of what an earlier prompt left in the KV pool or on disk; `load_bytes`
    of the `stored_bytes` would be read, in about `load_s`."""

    chunk_id: int
    tokens: int
    tier: str
    stored_bytes: int
    load_bytes: int
    action: str
    load_s: float
    computed: ColdMode | Literal[""] = ""  # how, if it would be
    behind: int = 0  # other chunks of the collection that its stored KV is computed behind
    reused: int = 0  # tokens whose KV an earlier prompt left


@dataclass(frozen=True)
class Forecast:
    """What a prompt would take. `first_token_s` is from when the worker begins with it;
    `measured`: computing and the tiers it would read have been timed here, else it is assumed."""

    prompt_tokens: int
    system: SegmentForecast
    documents: list[SegmentForecast]
    recomputed_tokens: int
    flops: float
    full_prefill_flops: float
    first_token_s: float
    full_prefill_s: float
    measured: bool
    warnings: list[str] = field(default_factory=list)
    reused_tokens: int = 0  # of the prompt; their KV an earlier prompt left
    reused_from: str = ""  # where: "pool" or "prompts"; empty: nothing is


GateStateName = Literal["ok", "ratio_raised", "full_prefill"]
GATE_STATES: tuple[GateStateName, ...] = get_args(GateStateName)


@dataclass(frozen=True)
class GateNote:
    """What the correctness gate changed of a request. state: "ratio_raised" or "full_prefill";
    used: the method that ran; why: what was seen of the one that was asked for."""

    state: GateStateName
    used: Method
    why: str

    @property
    def text(self) -> str:
        instead = (
            "full prefill was used"
            if self.state == "full_prefill"
            else f"its ratio was raised to {self.used.parameters['ratio']:g}"
        )
        return f"the correctness gate does not trust the fusion method, {instead}: {self.why}"


@dataclass(frozen=True)
class GateState:
    """How a fusion method with its parameters stands at the correctness gate.

    state: "ok", "ratio_raised" or "full_prefill", for `for_s` seconds; used: what runs instead.
    `checks`: the last ones of what is used, none for full prefill; `recovery_…`: of the step below,
    which is returned to when `recovery_needed` of them were good. trips: since start or reset."""

    fusion: Method
    state: GateStateName
    used: Method
    why: str
    for_s: float
    checks: int
    agreement: float | None
    mean_kl: float | None
    recovery_checks: int
    recovery_agreement: float | None
    recovery_kl: float | None
    recovery_needed: int
    trips: int


class TokenRun(NamedTuple):
    """Neighbouring tokens that fared alike. recomputed: they are of the segment's
    `rows_recomputed`; computed_layers: layers at which their KV was computed with the prompt;
    entries: of layers · KV heads, those that held each of them after the first token."""

    tokens: int
    recomputed: bool
    computed_layers: int
    entries: int


@dataclass(frozen=True)
class SegmentFates:
    """Runs cover the segment's tokens in order. scores: one per token, by which the fusion method
    ranked them, three digits; None where it ranks nothing of the segment."""

    runs: list[TokenRun]
    scores: list[float] | None = None


@dataclass(frozen=True)
class TokenFates:
    """What became of every token of a prompt, segment by segment."""

    layers: int
    kv_heads: int
    system: SegmentFates
    documents: list[SegmentFates]
    question: SegmentFates


@dataclass(frozen=True)
class Report:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose stored KV was used at the last layer
    recomputed_tokens: int  # prompt tokens computed anew at the last layer, or in a cold chunk
    system: SegmentReport
    documents: list[SegmentReport]
    rows_per_layer: list[int]
    kept_per_layer: list[float]  # KV entries per layer after eviction, mean over KV heads
    coverage: float  # share of the prompt's tokens that some head of some layer kept
    flops: float  # of the prompt, as scheduled: what a full prefill takes is beside it
    full_prefill_flops: float
    kept_ratio: float  # document KV entries held after the first token, of all, mean over layers
    recomputed_ratio: float  # document tokens computed anew, of all
    stages: dict[str, float]  # queue, load, prefill, evict, first_token, decode
    decode_steps: int
    seed: int | None = None
    warnings: list[str] = field(default_factory=list)
    ratio: float | None = None  # of a fusion method that has one, as it was used
    hidden_load_s: float = 0.0  # seconds of reading, summed over segments, that nobody waited for
    gate: GateNote | None = None  # None: the method that was asked for ran
    reused_tokens: int = 0  # prompt tokens whose KV an earlier prompt left
    reused_from: str = ""  # where: "pool", the KV pool, or "prompts", on disk; empty: nothing was
    token_fates: TokenFates | None = None  # of a prompt that ran, where it was asked for


@dataclass(frozen=True)
class WorkerLoad:
    """What a worker is busy with, and how fast it believes to be; before it has said so: a guess.

    Attributes:
        backlog_s: seconds until a prompt that comes now could start.
        running: sequences that prefill or decode.
        token_s: seconds to compute a prompt token at every layer.
        overhead_s: seconds of any prefill besides its tokens.
        step_s: seconds of a decode step, besides its sequences.
        step_sequence_s: seconds that a sequence adds to a decode step.
        token_bytes: bytes of a token's stored KV.
        tiers: by slower tier, the seconds of a read and those of a byte.
    """

    backlog_s: float = 0.0
    running: int = 0
    token_s: float = 1e-3
    overhead_s: float = 0.0
    step_s: float = 1e-2
    step_sequence_s: float = 1e-3
    token_bytes: float = 0.0
    tiers: dict[str, tuple[float, float]] = field(default_factory=dict)
