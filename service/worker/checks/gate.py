"""The gate: which first tokens are checked, the checks themselves, and what requests get instead.

    request ──► `replacement` ───► prefill ──► first token ──► `answered` ──► pending
                   ▲                                                        │ spare time
                   └────────────── standing ◄── full prefill (and shadow) ◄─┘

A check costs a request nothing but a copy of the logits it had anyway: the other distribution is
computed afterwards, step by step, by whoever has time to spare. Knows no socket.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from torch import Tensor

from service.metrics import Sample
from service.records import GATE_STATES, GateState
from service.worker.checks.comparison import compare, full_logits
from service.worker.checks.shadow import Shadow, reuses_documents
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.request import Request
from service.worker.core.steps import Steps
from service.worker.gate.counts import Counts
from service.worker.gate.method_trust import GatedMethod, MethodTrust, MethodTrusts
from service.worker.gate.policy import Bounds
from service.worker.kv.pool import KVPool
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.methods.bases.fusion import FusionMethod, Reads
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address
from service.worker.sequences.prefill_launcher import PrefillLauncher
from service.worker.sequences.sequence import Sequence

log = logging.getLogger("kvstitch.gate")

# Prompts that wait to be checked: bounds the memory of logits, and how old news can be.
MAX_PENDING = 16


@dataclass(frozen=True)
class GateSettings:
    """Which share of the answers is checked, and by what bounds they are judged."""

    share: float
    bounds: Bounds = field(default_factory=Bounds)
    seed: int | None = None


@dataclass(frozen=True)
class Answered:
    """A prompt whose first token is out; logits `[vocabulary]` are that token's."""

    gated: GatedMethod
    request: Request
    addresses: list[Address | None]
    logits: Tensor

    @property
    def method(self) -> str:
        return self.gated.trust.name


class Gate:
    """Not thread-safe but for `values`; one per engine."""

    def __init__(self, adapter: DecoderAdapter, checks: GateSettings, shadow: Shadow) -> None:
        self._adapter = adapter
        self._checks = checks
        self._shadow = shadow
        self._random = Random(checks.seed)
        self._trusts = MethodTrusts(checks.bounds)
        self._pending: deque[Answered] = deque()
        self._current: Answered | None = None
        self._steps: Steps[None] | None = None
        self._awaited: Future[Any] | None = None
        self.counts = Counts()

    @classmethod
    def of(
        cls,
        checks: GateSettings,
        launcher: PrefillLauncher,
        pool: KVPool,
        precompute_queue: PrecomputeQueue,
    ) -> Gate:
        # The planner's estimates must not learn from what spare time allows.
        shadow = Shadow(replace(launcher, planner=None), pool, precompute_queue)
        return cls(launcher.adapter, checks, shadow)

    # -- requests ---------------------------------------------------------------------------------

    def replacement(self, name: str, fusion: FusionMethod) -> GatedMethod | None:
        """What a request gets that asks for this method; None for a method that needs no checks."""
        if fusion.reads is Reads.NOTHING:
            return None
        self.counts.begin(name)
        return self._trusts.of(name, fusion).gated()

    def answered(self, sequence: Sequence, result: PrefillResult) -> None:
        """A request's first token is out: perhaps remember it, to be checked."""
        gated, request = sequence.gated, sequence.request
        if gated is None or result.kept_ids is not None or not request.documents:
            return  # a prompt that started over with other tokens is no longer the one asked for
        if sequence.fusion.reads is not Reads.NOTHING and not reuses_documents(sequence):
            return
        trust = gated.trust
        if not self._draw(trust):
            return
        if len(self._pending) >= MAX_PENDING:
            self.counts.skipped(trust.name)
            return
        trust.sampled += 1
        self._pending.append(Answered(gated, request, sequence.addresses, result.logits.clone()))

    def _draw(self, trust: MethodTrust) -> bool:
        """A share of them; of a method nothing is known of, the first ones all."""
        first = trust.sampled < self._checks.bounds.min_checks
        unknown = first and trust.drift.level < trust.drift.top
        return unknown or self._random.random() < self._checks.share

    def forget(self, keys: Collection[str]) -> None:
        """These chunks are being purged: prompts that hold them are not checked any more."""

        def holds(answered: Answered) -> bool:
            return any(a is not None and a.key in keys for a in answered.addresses)

        for answered in [a for a in self._pending if holds(a)]:
            self._pending.remove(answered)
            self.counts.skipped(answered.method)
        if self._current is not None and holds(self._current):
            self._drop_current()

    # -- spare time -------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return len(self._pending) + (self._current is not None)

    @property
    def idle(self) -> bool:
        """Nothing to compute right now (a check may wait for its chunks or for KV)."""
        waits = self._awaited is not None and not self._awaited.done()
        return waits or self._shadow.blocked or not self.pending

    def advance(self) -> None:
        """One step of the current check, or the start of the next."""
        if self._steps is None:
            self._current = self._pending.popleft()
            self._steps = self._check(self._current)
        try:
            self._awaited = next(self._steps)
        except StopIteration:
            self._current, self._steps, self._awaited = None, None, None

    def fail_current(self, error: Exception) -> None:
        """`advance` raised: go on with the next."""
        log.error("a check failed: %s", error, exc_info=error)
        self._drop_current()

    def give_way(self) -> bool:
        """Somebody needs KV: give up the check that holds some. Whether there was any."""
        if not self._shadow.holds_kv:
            return False
        self._drop_current()
        return True

    def _drop_current(self) -> None:
        current, steps = self._current, self._steps
        self._current, self._steps, self._awaited = None, None, None
        if steps is not None:
            steps.close()
        if current is not None:
            self.counts.skipped(current.method)

    def _check(self, answered: Answered) -> Steps[None]:
        """The answer's own level against full prefill; then the level below, were it used."""
        trust, level = answered.gated.trust, answered.gated.level
        if level == trust.drift.top:
            full = answered.logits
        else:
            full = yield from full_logits(self._adapter, answered.request)
            self._observe(trust, level, full, answered.logits)
        if not level or trust.drift.level != level:
            return
        below = trust.steps[level - 1]
        fused = yield from self._shadow.steps(answered.request, answered.addresses, below)
        if fused is None:
            self.counts.skipped(trust.name)
        else:
            self._observe(trust, level - 1, full, fused)

    def _observe(self, trust: MethodTrust, level: int, full: Tensor, fused: Tensor) -> None:
        seen = compare(full, fused)
        self.counts.checked(trust.name, seen)
        trust.observe(level, seen)

    # -- for people -------------------------------------------------------------------------------

    def states(self) -> list[GateState]:
        return [trust.record() for trust in self._trusts.all()]

    def reset(self, name: str = "") -> None:
        """Trust a method again, "" for all, whatever was seen of it. Checks under way count."""
        self._trusts.reset(name)

    def values(self) -> list[Sample]:
        """Counters, and per method the worst state of any of its parameters."""
        worst: dict[str, int] = {}
        for trust in self._trusts.all():
            state = GATE_STATES.index(trust.state)
            worst[trust.name] = max(state, worst.get(trust.name, 0))
        states: list[Sample] = [
            ("kvstitch_gate_state", {"method": method}, state) for method, state in worst.items()
        ]
        return self.counts.values() + states
