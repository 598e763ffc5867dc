"""What Prometheus scrapes: the gateway's own metrics, and the workers' latest numbers.

All metrics are declared in `kvstitch.service.shared.metrics`. There is no global state: every
gateway has its own GatewayMetrics.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from kvstitch.service.shared import metrics as declared
from kvstitch.service.shared.metrics import WORKER_LABEL, WORKER_METRICS, Declared, Sample

Made = TypeVar("Made", bound=MetricWrapperBase)
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Buckets = dict[str, float]  # upper bound as text to cumulative count
SINGLE_WORKER = "0"  # label of the worker of a gateway that has one, and of the first of several
# Of what several workers share, each reports the whole, up to the moment of its report.
OWN_TIER = "memory"
SUMMED = ("evictions", "pending_deletes")


class WorkerCollector(Collector):
    """Republishes each worker's latest samples unchanged, with a label that names the worker."""

    def __init__(self, dropped: Counter) -> None:
        self._dropped = dropped
        self._samples: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}

    def update(self, values: Iterable[Sample], worker: str = SINGLE_WORKER) -> None:
        """Replace a worker's samples; drop and count those with undeclared names or labels."""
        samples: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, value in values:
            wanted = _LABELS_ON_WIRE.get(name)
            if wanted is None or set(labels) != set(wanted):
                self._dropped.inc()
                continue
            samples.setdefault(name, {})[tuple(labels[k] for k in wanted)] = value
        self._samples = {**self._samples, worker: samples}

    def forget(self, worker: str = SINGLE_WORKER) -> None:
        """Publish a worker's samples no more: it is gone, and its gauges would be wrong."""
        self._samples = {name: s for name, s in self._samples.items() if name != worker}

    def tiers(self) -> dict[str, dict[str, float]]:
        """Return used and capacity bytes, entries, evictions and health of every tier."""
        reports: dict[str, dict[str, list[float]]] = {}
        for samples in self._samples.values():
            for name, metric in WORKER_METRICS.items():
                if tuple(metric.labels) == ("tier",):
                    for (tier,), value in samples.get(name, {}).items():
                        short = name.removeprefix("kvstitch_tier_").removesuffix("_total")
                        reports.setdefault(tier, {}).setdefault(short, []).append(value)
        return {
            tier: {name: _combine(tier, name, values) for name, values in named.items()}
            for tier, named in reports.items()
        }

    def reported(self, worker: str, name: str) -> dict[tuple[str, ...], float]:
        """Return a worker's latest values of a metric by its labels' values; empty without any."""
        return self._samples.get(worker, {}).get(name, {})

    def collect(self) -> Iterator[Family]:
        workers = sorted(self._samples.items())
        for name, metric in WORKER_METRICS.items():
            labels = (*metric.labels, WORKER_LABEL)
            if metric.kind == "histogram":
                yield _histogram_family(metric, labels, workers)
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if metric.kind == "counter":
                bare = name.removesuffix("_total")
                family = CounterMetricFamily(bare, metric.help, labels=labels)
            else:
                family = GaugeMetricFamily(name, metric.help, labels=labels)
            for worker, samples in workers:
                for values, value in samples.get(name, {}).items():
                    family.add_metric([*values, worker], value)
            yield family


def _combine(tier: str, name: str, values: Sequence[float]) -> float:
    """Return one number of a tier for all workers."""
    if name == "healthy":
        return min(values)
    sums = name in SUMMED or (tier == OWN_TIER and not name.startswith("estimated"))
    return sum(values) if sums else max(values)


def _labels_on_wire(metric: Declared) -> dict[str, tuple[str, ...]]:
    """Return names and labels with which a worker sends a metric."""
    labels = tuple(metric.labels)
    if metric.kind != "histogram":
        return {metric.name: labels}
    return {f"{metric.name}_bucket": (*labels, "le"), f"{metric.name}_sum": labels}


_LABELS_ON_WIRE = {
    name: labels for m in WORKER_METRICS.values() for name, labels in _labels_on_wire(m).items()
}


def _histogram_family(
    metric: Declared,
    labels: tuple[str, ...],
    workers: list[tuple[str, dict[str, dict[tuple[str, ...], float]]]],
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    for worker, samples in workers:
        counts: dict[tuple[str, ...], Buckets] = {}
        for (*values, bound), count in samples.get(f"{metric.name}_bucket", {}).items():
            counts.setdefault(tuple(values), {})[bound] = count
        sums = samples.get(f"{metric.name}_sum", {})
        for key, buckets in counts.items():
            ordered = sorted(buckets.items(), key=lambda item: float(item[0]))
            family.add_metric([*key, worker], ordered, sums.get(key, 0.0))
    return family


class DiskCollector(Collector):
    """Size and free bytes of the file systems of some folders, read at every scrape."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def collect(self) -> Iterator[GaugeMetricFamily]:
        size, free = (
            GaugeMetricFamily(metric.name, metric.help, labels=tuple(metric.labels))
            for metric in (declared.DISK_SIZE, declared.DISK_FREE)
        )
        for volume, folder in self._folders.items():
            try:
                found = os.statvfs(folder)
            except OSError:
                continue  # not made yet, or gone; no value is better than a wrong one
            size.add_metric([volume], found.f_blocks * found.f_frsize)
            free.add_metric([volume], found.f_bavail * found.f_frsize)
        yield from (size, free)


class GatewayMetrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        """`folders`: the volume's label to the folder whose file system is watched."""
        self.registry = CollectorRegistry()
        self.ttft = self._histogram(declared.TTFT)
        self.tpot = self._histogram(declared.TPOT)
        self.inter_token = self._histogram(declared.INTER_TOKEN)
        self.e2e = self._histogram(declared.E2E)
        self.stage = self._histogram(declared.STAGE)
        self.requests = self._counter(declared.REQUESTS)
        self.unanswerable = self._counter(declared.UNANSWERABLE)
        self.adapter_requests = self._counter(declared.ADAPTER_REQUESTS)
        self.responses = self._counter(declared.RESPONSES)
        self.in_flight = self._gauge(declared.IN_FLIGHT)
        self.in_flight_limit = self._gauge(declared.IN_FLIGHT_LIMIT)
        self.waiting_tokens = self._gauge(declared.WAITING_TOKENS)
        self.waiting_tokens_limit = self._gauge(declared.WAITING_TOKENS_LIMIT)
        self.rejected = self._counter(declared.REJECTED)
        self.tokens_after_leaving = self._histogram(declared.TOKENS_AFTER_LEAVING)
        self.disconnects = self._counter(declared.DISCONNECTS)
        self.prompt_tokens = self._counter(declared.PROMPT_TOKENS)
        self.completion_tokens = self._counter(declared.COMPLETION_TOKENS)
        self.kv_read_bytes = self._counter(declared.KV_READ_BYTES)
        self.kv_stored_bytes = self._counter(declared.KV_STORED_BYTES)
        self.segments = self._counter(declared.SEGMENTS)
        self.flops = self._counter(declared.FLOPS)
        self.full_prefill_flops = self._counter(declared.FULL_PREFILL_FLOPS)
        self.taken_over = self._counter(declared.TAKEN_OVER)
        self.kept_ratio = self._histogram(declared.KEPT_RATIO)
        self.coverage_ratio = self._histogram(declared.COVERAGE_RATIO)
        self.recomputed_ratio = self._histogram(declared.RECOMPUTED_RATIO)
        self.documents = self._gauge(declared.DOCUMENTS)
        self.chunks = self._gauge(declared.CHUNKS)
        self.index_recall = self._gauge(declared.INDEX_RECALL)
        self.jobs = self._gauge(declared.JOBS)
        self.worker_restarts = self._counter(declared.WORKER_RESTARTS)
        self.worker_up = self._gauge(declared.WORKER_UP)
        self.workers_ready = self._gauge(declared.WORKERS_READY)
        self.document_warnings = self._counter(declared.DOCUMENT_WARNINGS)
        self.routed_documents = self._counter(declared.ROUTED_DOCUMENTS)
        self.moved_requests = self._counter(declared.MOVED_REQUESTS)
        self.workers = self._gauge(declared.WORKERS)
        self.directory_gaps = self._counter(declared.DIRECTORY_GAPS)
        self.database_silence = self._gauge(declared.DATABASE_SILENCE)
        self.quota_checks = self._counter(declared.QUOTA_CHECKS)
        self.worker = WorkerCollector(self._counter(declared.SAMPLES_DROPPED))
        self.registry.register(self.worker)
        self.registry.register(DiskCollector(folders or {}))

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, metric: Declared) -> Counter:
        return self._with_known_labels(Counter, metric)

    def _gauge(self, metric: Declared) -> Gauge:
        return self._with_known_labels(Gauge, metric)

    def _histogram(self, metric: Declared) -> Histogram:
        return self._with_known_labels(Histogram, metric, buckets=metric.buckets)

    def _with_known_labels(self, kind: type[Made], metric: Declared, **more: Any) -> Made:
        """Create the series of all label values known beforehand, so that they exist from 0 on."""
        labels = tuple(metric.labels)
        made = kind(metric.name, metric.help, labels, registry=self.registry, **more)
        if metric.labels and all(metric.labels.values()):
            for values in itertools.product(*metric.labels.values()):
                made.labels(*values)
        return made
