"""Every metric of the service, declared once; docs/metrics.md is made from these declarations.

Plain data, which both processes import: knows no metrics library, no gateway and no worker. Names
begin with `kvstitch_`; no label ever holds a tenant, a document or a question.

The gateway counts its own (`kvstitch.service.gateway.prometheus`). The worker sends (name, labels,
value) about every second; a histogram travels as its `_bucket` and `_sum` samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

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
LEFT_BUCKETS = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0)
# Nats: below 0.01 no reader sees a difference, above 1 the next token is another one.
KL_BUCKETS = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)

STAGES = (
    *("condense", "embed", "retrieve", "rerank", "plan", "queue", "load", "prefill", "evict"),
    *("hand_over", "engine", "first_token", "decode", "flush"),
)
TIERS = ("memory", "ssd", "redis", "s3")
PROMPT_SOURCES = (*TIERS, "pool", "history", "recomputed", "cold", "question")
DECISIONS = ("load", "recompute", "miss", "reuse")
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "dead")
REJECTIONS = ("requests", "tokens", "draining")
GATE_OUTCOMES = ("agree", "disagree", "skipped")
WORKER_STATES = ("ready", "draining", "not_ready")
OPEN: tuple[str, ...] = ()  # label values that are not known beforehand


@dataclass(frozen=True)
class Declared:
    """One metric.

    labels: name to the values that exist from the start, at 0; OPEN where they are not known.
    buckets: upper bounds of a histogram, without infinity.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names a scrape shows."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def _by_name(declared: Iterable[Declared]) -> dict[str, Declared]:
    return {metric.name: metric for metric in declared}


# Labels whose values are not known are given by their names alone.
def _counter(name: str, text: str, *labels: str, **known: tuple[str, ...]) -> Declared:
    return Declared(f"kvstitch_{name}", "counter", text, dict.fromkeys(labels, OPEN) | known)


def _gauge(name: str, text: str, *labels: str, **known: tuple[str, ...]) -> Declared:
    return Declared(f"kvstitch_{name}", "gauge", text, dict.fromkeys(labels, OPEN) | known)


def _histogram(
    name: str, text: str, buckets: tuple[float, ...], *labels: str, **known: tuple[str, ...]
) -> Declared:
    found = dict.fromkeys(labels, OPEN) | known
    return Declared(f"kvstitch_{name}", "histogram", text, found, buckets)


TTFT = _histogram(
    "request_ttft_seconds", "From the arrival of a request to its first answer token.", TTFT_BUCKETS
)
TPOT = _histogram(
    "request_tpot_seconds",
    "Time per output token after the first: (end to end - TTFT) / (tokens - 1).",
    TOKEN_BUCKETS,
)
INTER_TOKEN = _histogram(
    "inter_token_seconds", "Between two answer tokens of one request.", TOKEN_BUCKETS
)
E2E = _histogram(
    "request_e2e_seconds", "From the arrival of a request to the end of its answer.", E2E_BUCKETS
)
STAGE = _histogram(
    "stage_seconds",
    "Stages of a request, each timed in one process. flush: text to clients; engine: vLLM's start.",
    STAGE_BUCKETS,
    stage=STAGES,
)
REQUESTS = _counter(
    "requests_total",
    "Answer requests by fusion method and outcome: ok, disconnect, deadline or an error code.",
    "fusion",
    "outcome",
)
UNANSWERABLE = _counter(
    "unanswerable_total",
    "Answer requests for which nothing was found that is about the question, by what was done: "
    "say, model, answer.",
    "done",
)
ADAPTER_REQUESTS = _counter(
    "adapter_requests_total",
    "Answer requests that a LoRA adapter answered, by its name and the outcome as above.",
    "adapter",
    "outcome",
)
RESPONSES = _counter(
    "http_responses_total", "Responses by route and status, whatever was asked.", "route", "status"
)
IN_FLIGHT = _gauge("requests_in_flight", "Answer requests being served, waiting ones included.")
IN_FLIGHT_LIMIT = _gauge("requests_limit", "Answer requests that may be under way at once.")
WAITING_TOKENS = _gauge(
    "waiting_tokens", "Prompt tokens of requests that have no answer token yet."
)
WAITING_TOKENS_LIMIT = _gauge("waiting_tokens_limit", "Prompt tokens that may wait.")
REJECTED = _counter(
    "requests_rejected_total", "Requests refused before any work.", reason=REJECTIONS
)
TOKENS_AFTER_LEAVING = _histogram(
    "tokens_after_leaving",
    "Tokens computed for a client after it was seen to have left, by the worker's count.",
    LEFT_BUCKETS,
)
DISCONNECTS = _counter("disconnects_total", "Clients that left before their answer was complete.")
PROMPT_TOKENS = _counter(
    "prompt_tokens_total", "Prompt tokens by where their KV came from.", source=PROMPT_SOURCES
)
COMPLETION_TOKENS = _counter("completion_tokens_total", "Answer tokens.")
KV_READ_BYTES = _counter(
    "answer_kv_read_bytes_total",
    "Bytes of KV read for answers, by the tier they came from.",
    tier=TIERS,
)
KV_STORED_BYTES = _counter(
    "answer_kv_stored_bytes_total",
    "Bytes of the whole KV of the segments that answers read from.",
    tier=TIERS,
)
SEGMENTS = _counter(
    "answer_segments_total",
    "Parts of prompts (instruction, each document) by what became of their KV: load: read from a "
    "tier; recompute: stored, but the planner expected computing to be faster; miss: not stored, "
    "or not sound; reuse: left in the pool by an earlier prompt.",
    decision=DECISIONS,
)
FLOPS = _counter("answer_flops_total", "Floating-point operations spent on prompts.")
FULL_PREFILL_FLOPS = _counter(
    "answer_full_prefill_flops_total", "What computing every prompt in full would have cost."
)
TAKEN_OVER = _counter(
    "answers_taken_over_total", "Answers that full prefill took over.", at=("first_token", "later")
)
KEPT_RATIO = _histogram(
    "answer_kept_ratio",
    "Document KV entries an answer held after its first token, of all.",
    RATIO_BUCKETS,
)
COVERAGE_RATIO = _histogram(
    "answer_coverage_ratio",
    "Share of the prompt's tokens that eviction left in some head of some layer.",
    RATIO_BUCKETS,
)
RECOMPUTED_RATIO = _histogram(
    "answer_recomputed_ratio", "Document tokens an answer computed anew, of all.", RATIO_BUCKETS
)
DOCUMENTS = _gauge("documents", "Documents stored.")
CHUNKS = _gauge("chunks", "Chunks stored.")
INDEX_RECALL = _gauge(
    "vector_index_recall",
    "Share of the ten best vectors that the least exact index finds, measured when it was built; "
    "1: all are exact; NaN: pgvector, not measured.",
)
JOBS = _gauge(
    "jobs", f"Ingest jobs by state ({', '.join(JOB_STATES)}), once they are counted.", "state"
)
DISK_SIZE = _gauge("disk_size_bytes", "Size of the file system of a folder.", "volume")
DISK_FREE = _gauge("disk_free_bytes", "Bytes free to the service there.", "volume")
WORKER_RESTARTS = _counter("worker_restarts_total", "Times the worker had to be started again.")
WORKER_UP = _gauge("worker_up", "1 while a worker is ready.")
WORKERS_READY = _gauge("workers_ready", "Workers that are ready.")
WORKERS = _gauge(
    "workers",
    "Workers that are started or listed, by state; draining: it finishes what runs, and ends.",
    state=WORKER_STATES,
)
DIRECTORY_GAPS = _counter(
    "directory_gaps_total",
    "Times that a worker's changes of what it holds were not complete: it is asked for all of it, "
    "and until then requests are routed as if it held nothing.",
)
DATABASE_SILENCE = _gauge(
    "database_silence_seconds",
    "Since PostgreSQL last took this gateway's sign of life, which it gives every second; 0 where "
    "there is none.",
)
DOCUMENT_WARNINGS = _counter(
    "document_warnings_total",
    "Warnings of ingested documents, by code: something of their file is not in their text, or may "
    "be wrong there (formats.md).",
    "code",
)
ROUTED_DOCUMENTS = _counter(
    "routed_documents_total",
    "Documents of requests, where there are several workers, by whose memory tier held them when a "
    "worker was chosen: that worker's (here), only others' (elsewhere), or none (nowhere).",
    where=("here", "elsewhere", "nowhere"),
)
MOVED_REQUESTS = _counter(
    "moved_requests_total", "Requests that were sent to another worker because theirs was gone."
)
QUOTA_CHECKS = _counter(
    "quota_checks_total",
    "Requests of keys with a rate, where Redis counts for all gateways, by who counted: Redis "
    "(shared), or this gateway alone because Redis did not answer (alone).",
    counted=("shared", "alone"),
)
SAMPLES_DROPPED = _counter(
    "worker_samples_dropped_total", "Samples of the worker with undeclared names or labels."
)

GATEWAY_METRICS: dict[str, Declared] = _by_name(
    declared for declared in tuple(globals().values()) if isinstance(declared, Declared)
)

# Label values of the worker's metrics appear as they come. `worker` says which of them counts.
WORKER_METRICS: dict[str, Declared] = _by_name(
    (
        _counter(
            "tier_operations_total",
            "Operations on a tier by outcome; `scan`: bad files found at start.",
            "tier",
            "op",
            "outcome",
        ),
        _counter(
            "tier_operation_seconds_total", "Seconds spent in operations on a tier.", "tier", "op"
        ),
        _counter(
            "tier_transferred_bytes_total", "Bytes read from or written to a tier.", "tier", "op"
        ),
        _gauge("tier_used_bytes", "Bytes a tier holds.", "tier"),
        _gauge("tier_capacity_bytes", "Bytes a tier may hold.", "tier"),
        _gauge("tier_entries", "Chunks a tier holds.", "tier"),
        _counter("tier_evictions_total", "Chunks a tier gave up for space.", "tier"),
        _gauge(
            "tier_healthy", "1 if the tier answers, 0 while its circuit breaker is open.", "tier"
        ),
        _gauge("tier_servers", "Servers that hold a shared tier.", "tier"),
        _gauge("tier_servers_down", "Those of them that do not answer.", "tier"),
        _gauge("tier_pending_deletes", "Keys whose removal failed and is tried again.", "tier"),
        _counter("store_new_keys_total", "Chunks stored for the first time."),
        _counter("store_already_present_total", "Chunks that were to be stored and were there."),
        _counter(
            "store_dropped_writes_total",
            "Background writes given up because the queue was full or the tier failed.",
        ),
        _gauge("store_pending_writes", "Background writes waiting or under way."),
        _gauge(
            "backlog_seconds", "Seconds until a prompt that comes now could start, by estimate."
        ),
        _gauge("worker_info", "1, with what a worker is.", "device", "version"),
        _gauge("pool_free_ratio", "Share of the worker's KV pool that requests could get."),
        _gauge("pool_kept_ratio", "Share of it that answered prompts lie in until it is needed."),
        _counter(
            "continued_prompts_total",
            "Prompts that took KV from an earlier one, by where that was: the KV pool.",
            place=("pool",),
        ),
        _gauge("sequences", "Sequences in the worker by state.", "state"),
        _counter("decode_steps_total", "Decode steps of the batch."),
        _counter(
            "draft_tokens_total",
            "Answer tokens that were drafted from the prompt, by outcome: accepted, rejected.",
            "outcome",
        ),
        _counter(
            "planner_segments_total",
            "Segments by what the planner did: load, recompute (late: of these, after waiting for "
            "a load); lost: loads that were bad or gone when they were needed.",
            "decision",
        ),
        _gauge(
            "tier_estimated_latency_seconds",
            "What a read of a tier is believed to take beside its bytes.",
            "tier",
        ),
        _gauge("tier_estimated_bytes_per_second", "Bandwidth a tier is believed to have.", "tier"),
        _gauge("prefill_estimated_flops_per_second", "Speed of prefill the planner counts with."),
        _counter(
            "shared_reads_total",
            "Chunks wanted while another request was reading them: read once for both.",
        ),
        _counter("precomputed_chunks_total", "Chunks handled by precompute.", "status"),
        _histogram(
            "gate_kl_nats",
            "Correctness gate: divergence of the method's next-token distribution from full "
            "prefill's.",
            KL_BUCKETS,
            "method",
        ),
        _counter(
            "gate_checks_total",
            "Correctness gate: comparisons by whether the most likely token is the same; skipped: "
            "sampled, but there was no time for it.",
            "method",
            outcome=GATE_OUTCOMES,
        ),
        _gauge(
            "gate_state",
            "Correctness gate: 0 the method is used as asked, 1 its ratio is raised, 2 full "
            "prefill is used instead.",
            "method",
        ),
    )
)

WORKER_LABEL = "worker"
METRICS: dict[str, Declared] = GATEWAY_METRICS | WORKER_METRICS

Sample = tuple[str, dict[str, str], float]
"""What the worker sends: name of a series, its labels, its value."""
