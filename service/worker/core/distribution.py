"""A histogram of the worker: counted here, sent as samples, shown by the gateway."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from service.metrics import WORKER_METRICS, Sample


class Distribution:
    """Observations of one histogram with one set of labels, since start."""

    def __init__(self, name: str, **labels: str) -> None:
        """`name`: a histogram of service.metrics.WORKER_METRICS."""
        self._declared = WORKER_METRICS[name]
        self._labels = labels
        self._counts = [0] * (len(self._declared.buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._declared.buckets, value)] += 1
        self._sum += value

    def samples(self) -> list[Sample]:
        """`_bucket` for every bound (cumulative, infinity last) and `_sum`."""
        bounds = [*map(str, self._declared.buckets), "+Inf"]
        name = self._declared.name
        samples: list[Sample] = [
            (f"{name}_bucket", {**self._labels, "le": bound}, count)
            for bound, count in zip(bounds, accumulate(self._counts), strict=True)
        ]
        return [*samples, (f"{name}_sum", self._labels, self._sum)]
