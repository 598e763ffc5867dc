"""The state of one request in the engine: what it asks for (`Asked`), and what becomes of it.

loading ──► ready ──► prefilling ──► running ──► finished
(store)     (queue)   (layer loop)   (decode)    (Done or Failed was sent)
                                └──► handed ──┘
                                     (another engine loads its KV and decodes)
"""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvstitch.service.messages.reports import GateNote
from kvstitch.service.messages.requests import Generate
from kvstitch.service.worker.forward.prefill import Progress
from kvstitch.service.worker.kv.pool import SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading.load_plan import PromptToLoad
from kvstitch.service.worker.loading.segment_load import Loads
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.prefix_cache import MIN_HISTORY, History, Reuse
from kvstitch.service.worker.sampling.draft import Drafter
from kvstitch.service.worker.sampling.sampler import Sampler
from kvstitch.service.worker.sequences.hand_over import Handed
from kvstitch.service.worker.sequences.token_trace import TokenTracer
from kvstitch.service.worker.steps import Steps, Wait, Within


@dataclass(frozen=True)
class AllowedMethod:
    """The method that the correctness gate lets a request use."""

    fusion: FusionMethod
    note: GateNote | None  # what the answer says about it; None if it is the one that was asked for


@dataclass(frozen=True)
class Asked:
    """What was asked, as it was admitted: it never changes."""

    request: Generate
    fusion: FusionMethod  # the method, before the planner chose its repair ratio
    eviction: EvictionMethod | None
    addresses: list[Address | None]  # of S, then of the documents; None for an empty segment
    end_ids: frozenset[int] = frozenset()
    auto_ratio: bool = False  # whether the planner chooses the repair ratio
    # the correctness gate's decision about the method; None if the method is not checked
    gated: AllowedMethod | None = None
    lora_fingerprint: str = ""
    # when the request arrived, by time.monotonic
    arrived: float = field(default_factory=time.monotonic)

    @property
    def prompt_tokens(self) -> int:
        request = self.request
        return len(request.system) + sum(self.document_tokens) + len(request.question)

    @property
    def document_tokens(self) -> list[int]:
        return [len(document.ids) for document in self.request.documents]

    @property
    def history(self) -> int:
        """Tokens of earlier turns that may be taken from the prompt before."""
        tokens = self.request.history
        if self.fusion.reads is not Reads.CHUNKS or self.eviction is not None:
            return 0
        return tokens if tokens >= MIN_HISTORY and self.request.documents else 0

    @property
    def repairs_history(self) -> bool:
        """Whether earlier turns are repaired like documents, and not computed."""
        return self.request.history_mode == "reuse"

    @property
    def as_stored(self) -> bool:
        """Whether chunks that are not stored are computed by themselves, not with the prompt."""
        return self.request.cold == "as_stored" and self.fusion.reads is not Reads.NOTHING


def prompt_ids(request: Generate) -> Tensor:
    """Return the token ids of a request's prompt `[n]` int64 in host memory."""
    ids = array("q", request.system)
    for document in request.documents:
        ids.extend(document.ids)
    ids.extend(request.question)
    return torch.tensor(ids, dtype=torch.long)


@dataclass
class Prefill:
    """How far a prompt's computation is."""

    # the rest of it; None before it starts and after it ends
    steps: Steps[PrefillResult] | None = None
    waits_for: Wait = None  # what must arrive before the next step; None if nothing
    progress: Progress | None = None  # where it can be resumed, if a segment is lost
    computed_s: float = 0.0  # seconds that it took so far, without waiting
    # records what happens to every token; None if that was not requested
    trace: TokenTracer | None = None


@dataclass
class Work:
    """What was computed and what is held, for the report."""

    # number of prompt rows whose attention was computed, per layer
    rows_per_layer: list[int] = field(default_factory=list)
    # number of rows that were computed anew, of S and every document
    rows_by_segment: list[int] = field(default_factory=list)
    history_rows: int = 0  # the same of earlier turns, where they are a segment
    # KV entries per layer after eviction, mean over KV heads
    kept_per_layer: list[float] = field(default_factory=list)
    entries: int = 0  # KV entries of the prompt per layer and KV head
    coverage: float = 1.0
    # floating-point operations of the prefill, with those of `Loads.chunk_flops`
    flops: float = 0.0
    full_prefill_flops: float = 0.0
    decode_steps: int = 0
    exact_from: int | None = None  # tokens of the answer when full prefill took over, if it did


@dataclass
class EngineSequence:
    """A request, and everything the engine knows about it."""

    asked: Asked
    sampler: Sampler
    max_tokens: int
    warnings: list[str] = field(default_factory=list)
    # what it takes from the prefix cache; None if it computes its prompt
    reuse: Reuse | None = None
    # what it takes of its earlier turns from the prefix cache; None: nothing
    history: History | None = None
    loads: Loads = field(default_factory=Loads)
    prefill: Prefill = field(default_factory=Prefill)
    work: Work = field(default_factory=Work)
    layout: PromptLayout | None = None  # the prompt whose KV is or will be in place
    kv: SequenceKV | None = None
    handed: Handed | None = None  # where its KV lies for another engine
    tokens: list[int] = field(default_factory=list)
    drafter: Drafter | None = None
    # of the first token; None before it, and where they are not needed again
    logits: Tensor | None = None
    abort_reason: str | None = None  # why it must be stopped; None to continue
    deleted: bool = False  # whether a part of its text has been deleted since it arrived
    # its method, perhaps with another repair ratio than was asked for: the planner's
    fusion: FusionMethod = field(init=False)
    clock: StageClock = field(init=False)

    def __post_init__(self) -> None:
        self.fusion = self.asked.fusion
        self.clock = StageClock(self.asked.arrived)

    @property
    def id(self) -> str:
        return self.asked.request.id

    @property
    def lora(self) -> str:
        """Name of its LoRA adapter; "" for the base model."""
        return self.asked.request.lora

    @property
    def history_tokens(self) -> int:
        """Tokens of earlier turns that are segments: methods rank by the new question alone."""
        return 0 if self.history is None else self.asked.history

    @property
    def reused_history(self) -> int:
        """Tokens of earlier turns that are as an earlier prompt left them, or repaired."""
        return 0 if self.history is None or not self.asked.repairs_history else self.history.tokens

    @property
    def to_load(self) -> PromptToLoad:
        """What decides which of its segments are loaded, as it is now."""
        asked, turns = self.asked, self.history_tokens
        return PromptToLoad(
            method=self.fusion,
            addresses=asked.addresses,
            system=len(asked.request.system),
            documents=asked.document_tokens,
            turns=turns,
            reused_turns=self.reused_history,
            question=len(asked.request.question) - turns,
            as_stored=asked.as_stored,
            any_method=self.any_method,
        )

    @property
    def any_method(self) -> bool:
        """Whether full prefill may take the place of its method, where it is not slower."""
        # Not where the answer must not depend on what is stored, nor with KV of earlier turns.
        return self.asked.request.any_method and not self.asked.as_stored and self.history is None

    @property
    def reuses_documents(self) -> bool:
        """Whether its prefill used stored KV; if not, its answer is that of full prefill."""
        documents = sum(self.work.rows_by_segment[1:]) < sum(self.asked.document_tokens)
        return documents or self.work.history_rows < self.reused_history

    @property
    def exact(self) -> bool:
        """Whether the prompt's KV and the first token are full prefill's."""
        if self.work.exact_from == 0:
            return True
        return self.reuse.prompt.exact if self.reuse is not None else not self.reuses_documents

    @property
    def loaded(self) -> bool:
        """Whether it can start: its loads are known, and its grammar is compiled."""
        return not self.sampler.waits and self.loads.known

    @property
    def blocked_until(self) -> float:
        """When its prefill must go on at the latest, by time.monotonic; infinite: it can wait."""
        awaited = self.prefill.waits_for
        return awaited.until if isinstance(awaited, Within) else math.inf

    @property
    def blocked(self) -> bool:
        """Whether its prefill waits for something that has not arrived yet."""
        awaited = self.prefill.waits_for
        return awaited is not None and not awaited.done()

    @property
    def position(self) -> int:
        """RoPE position of the last generated token; after an eviction there are fewer KV
        entries."""
        assert self.layout is not None
        return self.layout.tokens + len(self.tokens) - 1

    def prefilled(self, result: PrefillResult) -> None:
        """Take over the result of the finished prefill."""
        assert self.layout is not None
        work = self.work
        work.rows_per_layer = result.rows_per_layer
        counts = self.layout.count_rows(result.rows)
        documents = len(counts) - self.layout.history
        work.rows_by_segment, work.history_rows = counts[:documents], sum(counts[documents:])
        work.flops = result.flops + self.loads.chunk_flops
        work.coverage = result.coverage
        work.entries = result.entries_per_head or result.layout.tokens
        if self.prefill.trace is not None:
            self.prefill.trace.prefilled(self.layout, result)
        # The result's prompt is shorter if the eviction method started over with fewer tokens.
        self.layout = result.layout

    def release(self) -> None:
        """Give up its prefill, if it runs, its KV and its grammar."""
        self.sampler.close()
        if self.prefill.steps is not None:
            self.prefill.steps.close()
            self.prefill.steps = None
        if self.kv is not None:
            self.kv.release()
            self.kv = None
        if self.handed is not None:
            self.handed.close()
            self.handed = None

    def wait(self, awaited: Wait) -> None:
        """Note the future for which the prefill waits next; None for none."""
        self.prefill.waits_for = awaited
        if self.blocked:
            self.clock.block()


@dataclass
class StageClock:
    """Measures the stages of one request."""

    started_at: float
    stages: dict[str, float] = field(default_factory=dict)
    _blocked_since: float | None = None

    def close(self, name: str) -> None:
        """End the current stage; the time since the last `close` is added to stage `name`."""
        now = time.monotonic()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.started_at
        self.started_at = now

    def close_queue(self, loading_s: float) -> None:
        """End the wait before the prefill, and divide it between the stages queue and load."""
        self.close("queue")
        self.stages["load"] = min(loading_s, self.stages["queue"])
        self.stages["queue"] -= self.stages["load"]

    def block(self) -> None:
        """Note that the prefill now waits for KV that is still being loaded."""
        self._blocked_since = time.monotonic()

    def unblock(self) -> None:
        """Note that the prefill continues; the time that it waited is counted as load."""
        if self._blocked_since is not None:
            waited_s = time.monotonic() - self._blocked_since
            self.stages["load"] = self.stages.get("load", 0.0) + waited_s
            self.started_at += waited_s
            self._blocked_since = None
