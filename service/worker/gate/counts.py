"""The gate's counters by method, as metrics that are declared in `service.shared.metrics`."""

from __future__ import annotations

from collections import Counter, defaultdict

from service.shared.metrics import GATE_OUTCOMES, KL_BUCKETS, Sample
from service.worker.gate.policy import Observation


class Counts:
    """Counts since the process started; resetting the gate does not reset them."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._below: Counter[tuple[str, float]] = Counter()
        self._sums: defaultdict[str, float] = defaultdict(float)

    def begin(self, method: str) -> None:
        """Creates the counters of a method, at 0, so that its first check shows as an increase."""
        self._outcomes[method, "skipped"] += 0
        self._sums[method] += 0.0

    def checked(self, method: str, seen: Observation) -> None:
        """Counts a check."""
        self._outcomes[method, "agree" if seen.agrees else "disagree"] += 1
        self._sums[method] += seen.kl
        for bound in KL_BUCKETS:
            self._below[method, bound] += seen.kl <= bound

    def skipped(self, method: str) -> None:
        """Counts a check that was due and not made."""
        self._outcomes[method, "skipped"] += 1

    def of(self, outcome: str) -> int:
        """Number of checks with this outcome, over all methods."""
        return sum(count for (_, kind), count in self._outcomes.items() if kind == outcome)

    def values(self) -> list[Sample]:
        """All counters as samples. May be called from another thread than the rest."""
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
