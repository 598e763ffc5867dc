"""Every metric of the service, declared once. Holds no global state: one `Metrics` per gateway.

The gateway observes its own; the worker counts in its process and sends (name, labels, value)
about every second, which `WorkerCollector` republishes if the name is declared here. Names begin
with `kvstitch_`; no label ever holds a tenant, a document or a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

# The SLO values (TTFT 0.3 s, inter-token 0.1 s, end to end 3 s) are bucket borders.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.001, 0.002, 0.004, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0),
)
E2E_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 7.5, 10.0, 15.0),
    *(20.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0),
)
RATIO_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 0.999)
STAGE_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
STAGES = (
    *("embed", "retrieve", "rerank", "plan", "queue", "load", "prefill", "evict"),
    *("first_token", "decode"),
)
PROMPT_SOURCES = ("memory", "ssd", "redis", "recomputed", "cold", "question")
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "dead")


@dataclass(frozen=True)
class Declared:
    """A metric the worker counts."""

    kind: str  # "counter" | "gauge"
    help: str
    labels: tuple[str, ...] = ()


_OPERATION = ("tier", "op")

WORKER_METRICS: dict[str, Declared] = {
    "kvstitch_tier_operations_total": Declared(
        "counter", "Operations on a tier by outcome.", (*_OPERATION, "outcome")
    ),
    "kvstitch_tier_operation_seconds_total": Declared(
        "counter", "Seconds spent in operations on a tier.", _OPERATION
    ),
    "kvstitch_tier_transferred_bytes_total": Declared(
        "counter", "Bytes read from or written to a tier.", _OPERATION
    ),
    "kvstitch_tier_used_bytes": Declared("gauge", "Bytes a tier holds.", ("tier",)),
    "kvstitch_tier_capacity_bytes": Declared("gauge", "Bytes a tier may hold.", ("tier",)),
    "kvstitch_tier_entries": Declared("gauge", "Chunks a tier holds.", ("tier",)),
    "kvstitch_tier_evictions_total": Declared(
        "counter", "Chunks a tier gave up for space.", ("tier",)
    ),
    "kvstitch_tier_healthy": Declared(
        "gauge", "1 if the tier answers, 0 while its circuit breaker is open.", ("tier",)
    ),
    "kvstitch_store_new_keys_total": Declared("counter", "Chunks stored for the first time."),
    "kvstitch_store_already_present_total": Declared(
        "counter", "Chunks that were to be stored and were there."
    ),
    "kvstitch_store_dropped_writes_total": Declared(
        "counter", "Background writes given up because the queue was full or the tier failed."
    ),
    "kvstitch_pool_free_ratio": Declared("gauge", "Free share of the worker's KV pool."),
    "kvstitch_sequences": Declared("gauge", "Sequences in the worker by state.", ("state",)),
    "kvstitch_decode_steps_total": Declared("counter", "Decode steps of the batch."),
    "kvstitch_planner_segments_total": Declared(
        "counter",
        "Segments by what the planner did: load, recompute (late: of these, after waiting for a "
        "load); lost: loads that were bad or gone when they were needed.",
        ("decision",),
    ),
    "kvstitch_tier_estimated_latency_seconds": Declared(
        "gauge", "What a read of a tier is believed to take beside its bytes.", ("tier",)
    ),
    "kvstitch_tier_estimated_bytes_per_second": Declared(
        "gauge", "Bandwidth a tier is believed to have.", ("tier",)
    ),
    "kvstitch_prefill_estimated_flops_per_second": Declared(
        "gauge", "Speed of prefill the planner counts with."
    ),
    "kvstitch_shared_reads_total": Declared(
        "counter", "Chunks wanted while another request was reading them: read once for both."
    ),
    "kvstitch_precomputed_chunks_total": Declared(
        "counter", "Chunks handled by precompute.", ("status",)
    ),
}

Sample = tuple[str, dict[str, str], float]


class WorkerCollector(Collector):
    """Republishes the worker's latest counters, as they are."""

    def __init__(self, dropped: Counter) -> None:
        self._dropped = dropped
        self._samples: dict[str, dict[tuple[str, ...], float]] = {}

    def update(self, values: Iterable[Sample]) -> None:
        """Replace what is published; undeclared names and wrong labels are dropped and counted."""
        samples: dict[str, dict[tuple[str, ...], float]] = {}
        for name, labels, value in values:
            declared = WORKER_METRICS.get(name)
            if declared is None or set(labels) != set(declared.labels):
                self._dropped.inc()
                continue
            samples.setdefault(name, {})[tuple(labels[k] for k in declared.labels)] = value
        self._samples = samples

    def tiers(self) -> dict[str, dict[str, float]]:
        """Per tier its used and capacity bytes, entries, evictions and health, as last heard."""
        out: dict[str, dict[str, float]] = {}
        for name, declared in WORKER_METRICS.items():
            if declared.labels == ("tier",):
                for (tier,), value in self._samples.get(name, {}).items():
                    short = name.removeprefix("kvstitch_tier_").removesuffix("_total")
                    out.setdefault(tier, {})[short] = value
        return out

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        samples = self._samples
        for name, declared in WORKER_METRICS.items():
            family: CounterMetricFamily | GaugeMetricFamily
            if declared.kind == "counter":
                bare = name.removesuffix("_total")
                family = CounterMetricFamily(bare, declared.help, labels=declared.labels)
            else:
                family = GaugeMetricFamily(name, declared.help, labels=declared.labels)
            for labels, value in samples.get(name, {}).items():
                family.add_metric(list(labels), value)
            yield family


class Metrics:
    """All metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        histogram, counter, gauge = Histogram, Counter, Gauge
        self.ttft = histogram(
            "kvstitch_request_ttft_seconds",
            "From the arrival of a request to its first answer token.",
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self.tpot = histogram(
            "kvstitch_request_tpot_seconds",
            "Time per output token after the first: (end to end - TTFT) / (tokens - 1).",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.inter_token = histogram(
            "kvstitch_inter_token_seconds",
            "Between two answer tokens of one request.",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.e2e = histogram(
            "kvstitch_request_e2e_seconds",
            "From the arrival of a request to the end of its answer.",
            buckets=E2E_BUCKETS,
            registry=registry,
        )
        self.stage = histogram(
            "kvstitch_stage_seconds",
            "Stages of a request, each timed in one process.",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self.requests = counter(
            "kvstitch_requests_total",
            "Answer requests by fusion method and outcome (ok or an error code).",
            ["fusion", "outcome"],
            registry=registry,
        )
        self.in_flight = gauge(
            "kvstitch_requests_in_flight", "Answer requests being served.", registry=registry
        )
        self.rejected = counter(
            "kvstitch_requests_rejected_total",
            "Requests refused before any work.",
            ["reason"],
            registry=registry,
        )
        self.tokens_after_leaving = histogram(
            "kvstitch_tokens_after_leaving",
            "Tokens computed for a client after it was seen to have left, by the worker's count.",
            buckets=(0, 1, 2, 3, 5, 10, 100),
            registry=registry,
        )
        self.disconnects = counter(
            "kvstitch_disconnects_total",
            "Clients that left before their answer was complete.",
            registry=registry,
        )
        self.prompt_tokens = counter(
            "kvstitch_prompt_tokens_total",
            "Prompt tokens by where their KV came from.",
            ["source"],
            registry=registry,
        )
        self.kv_read_bytes = counter(
            "kvstitch_answer_kv_read_bytes_total",
            "Bytes of KV read for answers, by the tier they came from.",
            ["tier"],
            registry=registry,
        )
        self.kv_stored_bytes = counter(
            "kvstitch_answer_kv_stored_bytes_total",
            "Bytes of the whole KV of the segments that answers read from.",
            ["tier"],
            registry=registry,
        )
        self.kept_ratio = histogram(
            "kvstitch_answer_kept_ratio",
            "Document KV entries an answer held after its first token, of all.",
            buckets=RATIO_BUCKETS,
            registry=registry,
        )
        self.recomputed_ratio = histogram(
            "kvstitch_answer_recomputed_ratio",
            "Document tokens an answer computed anew, of all.",
            buckets=RATIO_BUCKETS,
            registry=registry,
        )
        self.completion_tokens = counter(
            "kvstitch_completion_tokens_total", "Answer tokens.", registry=registry
        )
        self.documents = gauge("kvstitch_documents", "Documents stored.", registry=registry)
        self.chunks = gauge("kvstitch_chunks", "Chunks stored.", registry=registry)
        self.jobs = gauge("kvstitch_jobs", "Ingest jobs by state.", ["state"], registry=registry)
        self.worker_restarts = counter(
            "kvstitch_worker_restarts_total", "Times the worker had to be started again.",
            registry=registry,
        )  # fmt: skip
        self.worker_up = gauge(
            "kvstitch_worker_up", "1 while the worker is ready.", registry=registry
        )
        dropped = counter(
            "kvstitch_worker_samples_dropped_total",
            "Samples of the worker with undeclared names or labels.",
            registry=registry,
        )
        self.worker = WorkerCollector(dropped)
        registry.register(self.worker)
        self._show_all()

    def _show_all(self) -> None:
        """Label values that are known beforehand exist from the start, at 0."""
        for stage in STAGES:
            self.stage.labels(stage)
        for source in PROMPT_SOURCES:
            self.prompt_tokens.labels(source)
        for tier in ("memory", "ssd", "redis"):
            self.kv_read_bytes.labels(tier)
            self.kv_stored_bytes.labels(tier)
        for state in JOB_STATES:
            self.jobs.labels(state)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
