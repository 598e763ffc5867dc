"""How each method stands, by the parameters it is asked for with. No tensors, no requests.

Of those that are as asked for only the latest are known; one that is not is kept longer.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field, fields

from service.records import GATE_STATES, GateNote, GateState, GateStateName, Method
from service.worker.gate.fallbacks import FULL, fallbacks
from service.worker.gate.policy import Bounds, Drift, Observation, agreement_of, mean_kl
from service.worker.methods.fusion.base import FusionMethod

log = logging.getLogger("kvstitch.gate")

MAX_KNOWN = 256
OK, RAISED, FULL_PREFILL = GATE_STATES


@dataclass
class MethodTrust:
    """Of one method with its parameters. sampled: checks that were taken at this level."""

    name: str
    steps: list[FusionMethod]
    drift: Drift
    why: str = ""
    sampled: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def state(self) -> GateStateName:
        if self.drift.level == 0:
            return OK
        return FULL_PREFILL if self.drift.level == self.drift.top else RAISED

    def gated(self) -> GatedMethod:
        """For a request that asks for it now."""
        level = self.drift.level
        note = None if level == 0 else GateNote(self.state, self.described(level), self.why)
        return GatedMethod(self, level, self.steps[level], note)

    def observe(self, level: int, seen: Observation) -> None:
        """Count a check; a change of level is logged."""
        before = self.drift.level
        why = self.drift.observe(level, seen)
        if not why:
            return
        after = self.drift.level
        self.sampled, self.since = 0, time.monotonic()
        # What an answer is told is why the method was left, also when it is half-way back.
        self.why = why if after > before else (self.why if after else "")
        used, asked = self.described(after), self.described(0)
        tell = log.warning if after > before else log.info
        tell("%s %s: now %s (%s): %s", asked.name, asked.parameters, used, self.state, why)

    def reset(self) -> None:
        self.drift.reset()
        self.why, self.sampled, self.since = "", 0, time.monotonic()

    def described(self, level: int) -> Method:
        fusion = self.steps[level]
        values = {f.name: getattr(fusion, f.name) for f in fields(fusion)}
        return Method(FULL if level == self.drift.top else self.name, values)

    def record(self) -> GateState:
        drift = self.drift
        here, below = drift.here, drift.below
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
            recovery_needed=drift.needed if drift.level else 0,
            trips=drift.trips,
        )


@dataclass(frozen=True)
class GatedMethod:
    """What one request got: the level it was answered at, whatever becomes of the method later.
    note: what its answer says of that, None if it got what it asked for."""

    trust: MethodTrust
    level: int
    fusion: FusionMethod
    note: GateNote | None


class MethodTrusts:
    """All of them, by method and parameters, latest asked for last."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: OrderedDict[FusionMethod, MethodTrust] = OrderedDict()

    def of(self, name: str, fusion: FusionMethod) -> MethodTrust:
        found = self._known.get(fusion)
        if found is None:
            steps = fallbacks(fusion)
            found = self._known[fusion] = MethodTrust(
                name, steps, Drift(self._bounds, len(steps) - 1)
            )
            if len(self._known) > MAX_KNOWN:
                self._forget_one()
        self._known.move_to_end(fusion)
        return found

    def all(self) -> list[MethodTrust]:
        """Safe to call from another thread."""
        return list(self._known.values())

    def reset(self, name: str) -> None:
        """Those of a method, "" for all, as if they had just been asked for the first time."""
        for trust in self.all():
            if name in ("", trust.name):
                log.info("%s was reset from %s", trust.described(0), trust.state)
                trust.reset()

    def _forget_one(self) -> None:
        """The longest unasked one, of those that are fine if there are such beside the newest."""
        *older, _ = self._known
        fine = (fusion for fusion in older if self._known[fusion].state == OK)
        del self._known[next(fine, older[0])]
