"""How far each fusion method is trusted, separately for every set of parameters asked for.

Only so many are remembered. Those that are fully trusted are forgotten first, the longest unused
first.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field, fields

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.replies import GateState
from kvstitch.service.messages.reports import GATE_STATES, GateNote, GateStateName
from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.gate.policy import (
    Bounds,
    DriftMonitor,
    Observation,
    agreement_of,
    mean_kl,
)
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.sequences.sequence import AllowedMethod

log = logging.getLogger("kvstitch.gate")

MAX_KNOWN = 256
OK, RAISED, FULL_PREFILL = GATE_STATES


@dataclass
class MethodTrust:
    """How far one method with its parameters is trusted."""

    name: str
    steps: list[FusionMethod]
    drift: DriftMonitor
    why: str = ""
    sampled: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> GateStateName:
        if self.drift.level == 0:
            return OK
        return FULL_PREFILL if self.replaced else RAISED

    @property
    def replaced(self) -> bool:
        """Whether full prefill is used instead."""
        return self.drift.level == self.drift.top

    def gated(self) -> GatedMethod:
        """Return what a request gets that asks for this method now."""
        level = self.drift.level
        used = self.described(level)
        note = None if level == 0 else GateNote(state=self.state, used=used, why=self.why)
        return GatedMethod(self.steps[level], note, self, level)

    def observe(self, level: int, seen: Observation) -> None:
        """Count a check of `level`; log a change of level."""
        before = self.drift.level
        why = self.drift.observe(level, seen)
        if not why:
            return
        after = self.drift.level
        self.sampled, self.since = 0, time.monotonic()
        # Answers say why the method was left, also when it is half-way back.
        self.why = why if after > before else (self.why if after else "")
        used, asked = self.described(after), self.described(0)
        tell = log.warning if after > before else log.info
        tell("%s %s: now %s (%s): %s", asked.name, asked.parameters, used, self.state, why)

    def reset(self) -> None:
        """Trust the method again as if it had never been checked."""
        self.drift.reset()
        self.why, self.sampled, self.since = "", 0, time.monotonic()

    def described(self, level: int) -> Method:
        """Return the name and parameters of what is used at a level."""
        fusion = self.steps[level]
        values = {f.name: getattr(fusion, f.name) for f in fields(fusion)}
        return Method(FULL_PREFILL_METHOD if level == self.drift.top else self.name, values)

    def record(self) -> GateState:
        """Return the state as it is reported to people."""
        drift = self.drift
        here, below = drift.checks_at_level, drift.checks_below
        return GateState(
            fusion=self.described(0),
            state=self.state,
            used=self.described(drift.level),
            why=self.why,
            for_s=time.monotonic() - self.since,
            checks=len(here),
            agreement=agreement_of(here) if here else None,
            mean_kl=mean_kl(here) if here else None,
            recovery_checks=len(below),
            recovery_agreement=agreement_of(below) if below else None,
            recovery_kl=mean_kl(below) if below else None,
            recovery_needed=drift.recovery_checks if drift.level else 0,
            trips=drift.trips,
        )


@dataclass(frozen=True)
class GatedMethod(AllowedMethod):
    """What one request got; stays as it is when the method's level changes later."""

    trust: MethodTrust
    level: int


class MethodTrusts:
    """The trust in every method by its parameters, the latest used last."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: OrderedDict[FusionMethod, MethodTrust] = OrderedDict()

    def of(self, name: str, fusion: FusionMethod) -> MethodTrust:
        """Return the trust in a method with these parameters; new ones are fully trusted."""
        found = self._known.get(fusion)
        if found is None:
            steps = fallbacks(fusion)
            found = self._known[fusion] = MethodTrust(
                name, steps, DriftMonitor(self._bounds, len(steps) - 1)
            )
            if len(self._known) > MAX_KNOWN:
                self._forget_one()
        self._known.move_to_end(fusion)
        return found

    def all(self) -> list[MethodTrust]:
        """Return a copy, so it may be called from another thread."""
        return list(self._known.values())

    def reset(self, name: str) -> None:
        """Reset the trust in a method, or in all for ""."""
        for trust in self.all():
            if name in ("", trust.name):
                log.info("%s was reset from %s", trust.described(0), trust.state)
                trust.reset()

    def _forget_one(self) -> None:
        """Forget the longest unused one, a fully trusted one if there is one beside the newest."""
        *older, _ = self._known
        fine = (fusion for fusion in older if self._known[fusion].state == OK)
        del self._known[next(fine, older[0])]


FULL_PREFILL_METHOD = "vanilla"
RATIO_FACTOR = 2.0
MIN_RAISED_RATIO = 0.1
"""Where raising begins for a method that was asked to recompute nothing."""
MAX_RATIO = 0.6
"""Above this a full prefill costs hardly more, and is exact."""


def fallbacks(fusion: FusionMethod) -> list[FusionMethod]:
    """Return the steps: the method as asked for, the same with ever larger ratios, full prefill."""
    steps = [fusion]
    if fusion.repair_ratio is not None:
        wanted = _raise_ratio(fusion.repair_ratio)
        while wanted <= min(MAX_RATIO, fusion.max_repair_ratio):
            try:
                steps.append(fusion.with_repair_ratio(wanted))
            except InvalidRequest:
                break  # the method's other parameters do not allow it
            wanted = _raise_ratio(wanted)
    return [*steps, Vanilla()]


def _raise_ratio(ratio: float) -> float:
    return max(MIN_RAISED_RATIO, round(RATIO_FACTOR * ratio, 6))
