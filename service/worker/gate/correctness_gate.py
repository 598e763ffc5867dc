"""The gate: chooses which first tokens are checked, checks them, and replaces untrusted methods.

    request ──► `replacement` ──► prefill ──► first token ──► `answered` ──► pending
                      ▲                                                        │ spare time
                      └──────── method trust ◄── full prefill (and shadow) ◄───┘

A check costs the request only a copy of its logits. The distribution of full prefill is computed
afterwards, step by step, when the engine has nothing else to do. What is handed over is compared
where it is decoded, and only the step below is looked at here.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from random import Random

from torch import Tensor

from kvstitch.service.messages.replies import GateState
from kvstitch.service.messages.reports import GATE_STATES
from kvstitch.service.messages.requests import Generate
from kvstitch.service.shared.metrics import GATE_OUTCOMES, KL_BUCKETS, Sample
from kvstitch.service.worker.gate.method_trust import GatedMethod, MethodTrust, MethodTrusts
from kvstitch.service.worker.gate.policy import Bounds, Observation
from kvstitch.service.worker.gate.shadow import Shadow, compare, full_logits
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.loading.precompute_queue import PrecomputeQueue
from kvstitch.service.worker.loading.prompt_loads import PromptLoads
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from kvstitch.service.worker.sequences.sequence import EngineSequence
from kvstitch.service.worker.steps import Steps, Wait

log = logging.getLogger("kvstitch.gate")

# Prompts that wait to be checked. The limit bounds memory for logits and the age of results.
MAX_PENDING = 16
# Share of answers of a family on which no method was measured that is checked at least, until so
# many checks have agreed.
UNMEASURED_SHARE, UNMEASURED_UNTIL = 0.1, 200


@dataclass(frozen=True)
class GateSettings:
    share: float  # of the answers that are checked
    bounds: Bounds = field(default_factory=Bounds)
    seed: int | None = None


@dataclass(frozen=True)
class Answered:
    """A request whose first token was sent, waiting to be checked."""

    gated: GatedMethod
    request: Generate
    addresses: list[Address | None]
    logits: Tensor
    handed: bool  # whether it is compared elsewhere

    @property
    def method(self) -> str:
        return self.gated.trust.name


class Gate:
    """The gate of one engine. Only `values` may be called from another thread."""

    def __init__(
        self,
        checks: GateSettings,
        launcher: PrefillLauncher,
        pool: KVPool,
        precompute_queue: PrecomputeQueue,
    ) -> None:
        self._decoder = launcher.decoder
        self._checks = checks
        # The planner must not learn from what spare time allows, nor may a run continue a prompt.
        loads = PromptLoads(launcher.loads.loader)
        self._shadow = Shadow(replace(launcher, loads=loads), pool, precompute_queue)
        self._random = Random(checks.seed)
        self._trusts = MethodTrusts(checks.bounds)
        self._pending: deque[Answered] = deque()
        self._elsewhere: OrderedDict[str, GatedMethod] = OrderedDict()
        self._current: Answered | None = None
        self._steps: Steps[None] | None = None
        self._awaited: Wait = None
        self.counts = Counts()

    # -- requests ---------------------------------------------------------------------------------

    def replacement(self, name: str, fusion: FusionMethod) -> GatedMethod | None:
        """Return what a request gets that asks for this method; None if it needs no checks."""
        if fusion.reads is Reads.NOTHING:
            return None
        self.counts.begin(name)
        return self._trusts.of(name, fusion).gated()

    def answered(self, sequence: EngineSequence, result: PrefillResult) -> bool:
        """Take a request's first token; some are remembered to be checked. Return whether
        `compared` should tell of it, which is handed over."""
        gated, request = sequence.asked.gated, sequence.asked.request
        if not isinstance(gated, GatedMethod) or not request.documents:
            return False
        if result.kept_ids is not None:  # restarted with fewer tokens: not what was asked for
            return False
        if sequence.fusion.reads is not Reads.NOTHING and not sequence.reuses_documents:
            return False
        trust = gated.trust
        # A method's first answers are always checked, later ones by chance.
        first = trust.sampled < self._checks.bounds.min_checks and not trust.replaced
        if not first and self._random.random() >= self._share():
            return False
        if len(self._pending) >= MAX_PENDING:
            self.counts.skipped(trust.name)
            return False
        trust.sampled += 1
        handed = request.hand_over and gated.level < trust.drift.top
        if handed:
            self._elsewhere[request.id] = gated
            if len(self._elsewhere) > MAX_PENDING:  # nobody has told of the oldest
                _, lost = self._elsewhere.popitem(last=False)
                self.counts.skipped(lost.trust.name)
        if gated.level or not handed:
            logits = result.logits.clone()
            self._pending.append(Answered(gated, request, sequence.asked.addresses, logits, handed))
        return handed

    def compared(self, id: str, seen: Observation) -> None:
        """Take the check of an answer that was handed over."""
        if (gated := self._elsewhere.pop(id, None)) is not None:
            self._observe(gated.trust, gated.level, seen)

    def _share(self) -> float:
        """Return the share of answers that is checked: larger at first where nobody has measured
        what methods do to models of this family."""
        unknown = not self._decoder.measured and self.counts.of("agree") < UNMEASURED_UNTIL
        return max(self._checks.share, UNMEASURED_SHARE) if unknown else self._checks.share

    def forget(self, keys: Collection[str] | None) -> None:
        """Drop checks of prompts with these chunks, which are being purged; None: all checks."""

        def holds(answered: Answered) -> bool:
            return keys is None or any(a and a.key in keys for a in answered.addresses)

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
        """Whether there is nothing to compute; a check may still wait for chunks or for KV."""
        waits = self._awaited is not None and not self._awaited.done()
        return waits or self._shadow.blocked or not self.pending

    def advance(self) -> None:
        """Run one step of the current check, or start the next check."""
        if self._steps is None:
            self._current = self._pending.popleft()
            self._steps = self._check(self._current)
        try:
            self._awaited = next(self._steps)
        except StopIteration:
            self._current, self._steps, self._awaited = None, None, None

    def fail_current(self, error: Exception) -> None:
        """Drop the current check, because `advance` raised this error."""
        self._drop_current()

    def give_way(self) -> bool:
        """Give up the check that holds KV, because a request needs it; False if none holds any."""
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
        """Check the level that answered; at a raised level then also the level below."""
        trust, level = answered.gated.trust, answered.gated.level
        if level == trust.drift.top:
            full = answered.logits
        else:
            full = yield from full_logits(self._decoder, answered.request)
            if not answered.handed:
                self._observe(trust, level, compare(full, answered.logits))
        if not level or trust.drift.level != level:
            return
        below = trust.steps[level - 1]
        fused = yield from self._shadow.steps(answered.request, answered.addresses, below)
        if fused is None:
            self.counts.skipped(trust.name)
        else:
            self._observe(trust, level - 1, compare(full, fused))

    def _observe(self, trust: MethodTrust, level: int, seen: Observation) -> None:
        self.counts.checked(trust.name, seen)
        trust.observe(level, seen)

    # -- for people -------------------------------------------------------------------------------

    def states(self) -> list[GateState]:
        """Return the state of every method by its parameters."""
        return [trust.record() for trust in self._trusts.all()]

    def reset(self, name: str = "") -> None:
        """Trust a method again, or all for "". Checks that are under way still count."""
        self._trusts.reset(name)

    def values(self) -> list[Sample]:
        """Return counters, and for each method the worst state over its parameters."""
        worst: dict[str, int] = {}
        for trust in self._trusts.all():
            state = GATE_STATES.index(trust.state)
            worst[trust.name] = max(state, worst.get(trust.name, 0))
        states: list[Sample] = [
            ("kvstitch_gate_state", {"method": method}, state) for method, state in worst.items()
        ]
        return self.counts.values() + states


class Counts:
    """Counts since the process started; resetting the gate does not reset them."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._below: Counter[tuple[str, float]] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)

    def begin(self, method: str) -> None:
        """Create the counters of a method, at 0, so that its first check shows as an increase."""
        self._outcomes[method, "skipped"] += 0
        self._sums[method] += 0.0

    def checked(self, method: str, seen: Observation) -> None:
        self._outcomes[method, "agree" if seen.agrees else "disagree"] += 1
        self._sums[method] += seen.kl
        for bound in KL_BUCKETS:
            self._below[method, bound] += seen.kl <= bound

    def skipped(self, method: str) -> None:
        """Count a check that was due and not made."""
        self._outcomes[method, "skipped"] += 1

    def of(self, outcome: str) -> int:
        """Return the number of checks with this outcome, over all methods."""
        return sum(count for (_, kind), count in self._outcomes.items() if kind == outcome)

    def values(self) -> list[Sample]:
        """Return all counters as samples. May be called from another thread than the rest."""
        outcomes, below = self._outcomes.copy(), self._below.copy()
        # All outcomes from the start: monitoring sees no increase in a counter that appears late.
        values: list[Sample] = [
            (
                "kvstitch_gate_checks_total",
                {"method": method, "outcome": outcome},
                outcomes[method, outcome],
            )
            for method in sorted({method for method, _ in outcomes})
            for outcome in GATE_OUTCOMES
        ]
        for method, total in dict(self._sums).items():
            made = outcomes[method, "agree"] + outcomes[method, "disagree"]
            name = "kvstitch_gate_kl_nats"
            values += [
                (f"{name}_bucket", {"method": method, "le": str(bound)}, below[method, bound])
                for bound in KL_BUCKETS
            ]
            values.append((f"{name}_bucket", {"method": method, "le": "+Inf"}, made))
            values.append((f"{name}_sum", {"method": method}, total))
        return values
