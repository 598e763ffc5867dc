"""Service: rate, errors and duration of answers."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from kvstitch_dashboards.panels import HALF, Panel, board, lines, number, warmth
from kvstitch_dashboards.promql import counts, gauge, mean, quantile, rate, ratio

MEMORY_READS = 'tier="memory",op=~"read.*",outcome=~"hit|miss"'
HITS = 'outcome="hit"'
FAULTS = 'outcome=~"internal_error|overloaded|worker_.*|deadline_exceeded|model_refused"'


def percentiles(title: str, histogram: str, text: str, span: int = HALF) -> Panel:
    """p50, p95 and p99 of seconds."""
    shown = {f"p{round(100 * q)}": quantile(q, histogram) for q in (0.5, 0.95, 0.99)}
    return lines(title, shown, unit="s", text=text, span=span)


def requests() -> Dashboard:
    return board(
        "kvstitch: service",
        "kvstitch-service",
        "Rate, errors and duration of answers",
        {
            "Now": [
                number("Answers per second", rate("requests_total"), unit="reqps"),
                number(
                    "Failing",
                    ratio(rate("requests_total", FAULTS), rate("requests_total")),
                    unit="percentunit",
                    text="Share of requests that ended in an error of ours",
                    bad_above=0.01,
                ),
                number("TTFT p95", quantile(0.95, "request_ttft_seconds"), unit="s", bad_above=0.3),
                number("Workers up", gauge("min", "worker_up"), bad_below=1),
            ],
            "Rate": [
                lines(
                    "Answers by outcome",
                    {"{{outcome}}": rate("requests_total", by="outcome")},
                    unit="reqps",
                ),
                lines(
                    "Answers by fusion method",
                    {"{{fusion}}": rate("requests_total", by="fusion")},
                    unit="reqps",
                ),
                lines(
                    "Answers by LoRA adapter",
                    {"{{adapter}}": rate("adapter_requests_total", by="adapter")},
                    unit="reqps",
                    text="Besides those of the model itself",
                ),
                lines(
                    "Responses by route",
                    {"{{route}}": rate("http_responses_total", by="route")},
                    unit="reqps",
                ),
                lines(
                    "Tokens",
                    {
                        "prompt": rate("prompt_tokens_total"),
                        "answer": rate("completion_tokens_total"),
                    },
                    text="Per second",
                ),
                lines(
                    "Under way",
                    {
                        "requests": gauge("sum", "requests_in_flight"),
                        "limit": gauge("sum", "requests_limit"),
                        "{{state}} in the worker": gauge("sum", "sequences", by="state"),
                    },
                    text="At the limit new requests are refused with 503",
                ),
                lines(
                    "Tokens per decode step",
                    {
                        "tokens": ratio(
                            rate("completion_tokens_total"), rate("decode_steps_total")
                        ),
                    },
                    text="Of all answers decoded together; drafts that were accepted included",
                ),
                lines(
                    "Drafted answer tokens",
                    {"{{outcome}} per second": rate("draft_tokens_total", by="outcome")},
                    text="Accepted ones cost no decode step of their own",
                ),
                lines(
                    "Answers that full prefill took over",
                    {"{{at}}, per second": rate("answers_taken_over_total", by="at")},
                    text="Where a token led by less than exact_below",
                ),
                lines(
                    "Prompt tokens waiting",
                    {
                        "tokens": gauge("sum", "waiting_tokens"),
                        "limit": gauge("sum", "waiting_tokens_limit"),
                    },
                ),
            ],
            "Errors": [
                lines(
                    "Responses by status",
                    {"{{status}}": rate("http_responses_total", 'status!~"2.."', by="status")},
                    unit="reqps",
                ),
                lines(
                    "Refused before any work",
                    {"{{reason}}": rate("requests_rejected_total", by="reason")},
                    unit="reqps",
                ),
                lines(
                    "Questions that nothing found is about, by what was done",
                    {"{{done}}": rate("unanswerable_total", by="done")},
                    unit="reqps",
                ),
                lines(
                    "Requests of keys with a rate, by who counted",
                    {"{{counted}}": rate("quota_checks_total", by="counted")},
                    unit="reqps",
                    text="shared: Redis; alone: it did not answer, each gateway counts for itself",
                ),
                lines(
                    "Clients that left, worker restarts",
                    {
                        "left": rate("disconnects_total"),
                        "restarts": rate("worker_restarts_total"),
                    },
                    unit="cps",
                ),
            ],
            "Workers": [
                lines(
                    "Workers by state",
                    {
                        "ready": gauge("max", "workers_ready"),
                        "{{state}}": gauge("max", "workers", 'state!="ready"', by="state"),
                    },
                    text="As the gateway sees it that sees most; draining: ready, and about to end",
                ),
                lines(
                    "Backlog",
                    {"worker {{worker}}": gauge("max", "backlog_seconds", by="worker")},
                    unit="s",
                    text="Until a prompt that comes now could start, by the worker's estimate",
                ),
                lines(
                    "Sequences per worker",
                    {
                        "{{state}}, worker {{worker}}": gauge(
                            "max", "sequences", by="state, worker"
                        ),
                    },
                ),
                lines(
                    "KV pool free per worker",
                    {"worker {{worker}}": gauge("min", "pool_free_ratio", by="worker")},
                    unit="percentunit",
                    top=1,
                ),
                lines(
                    "Memory hits per worker",
                    {
                        "worker {{worker}}": ratio(
                            rate("tier_operations_total", MEMORY_READS, HITS, by="worker"),
                            rate("tier_operations_total", MEMORY_READS, by="worker"),
                        )
                    },
                    unit="percentunit",
                    text="Chunks found in the worker's own memory tier, of all it looked for there",
                ),
                lines(
                    "Documents of requests by which memory tier held them",
                    {"{{where}}": rate("routed_documents_total", by="where")},
                    text="Of the chosen worker, only of others, of none; with one worker: nothing",
                ),
                lines(
                    "Routing",
                    {
                        "requests moved": rate("moved_requests_total"),
                        "directory gaps": rate("directory_gaps_total"),
                    },
                    unit="cps",
                    text="Moved: another worker took over. Gap: a worker's report was missed",
                ),
                lines(
                    "Devices and versions",
                    {"{{device}}, {{version}}": gauge("sum", "worker_info", by="device, version")},
                    text="Workers",
                ),
                lines(
                    "Database silent for",
                    {"longest": gauge("max", "database_silence_seconds")},
                    unit="s",
                    text="Since PostgreSQL took a gateway's sign of life; 0 without PostgreSQL",
                ),
            ],
            "Duration": [
                percentiles(
                    "TTFT", "request_ttft_seconds", "Arrival of the request to the first token"
                ),
                warmth("TTFT, all", counts("request_ttft_seconds")),
                percentiles(
                    "TPOT", "request_tpot_seconds", "(whole - TTFT) / (tokens - 1), per answer"
                ),
                warmth("TPOT, all", counts("request_tpot_seconds")),
                percentiles("Between tokens", "inter_token_seconds", "Every pause by itself"),
                percentiles("Whole answer", "request_e2e_seconds", "Arrival to the last token"),
                lines(
                    "Where the time goes",
                    {"{{stage}}": mean("stage_seconds", by="stage")},
                    unit="s",
                    span=HALF,
                    stacked=True,
                    text="Mean per answer. flush runs beside decode: it is the client's time",
                ),
                lines(
                    "Stages, p95",
                    {"{{stage}}": quantile(0.95, "stage_seconds", by="stage")},
                    unit="s",
                    span=HALF,
                ),
                lines(
                    "Tokens computed for clients that had left",
                    {"p95": quantile(0.95, "tokens_after_leaving")},
                    span=HALF,
                ),
            ],
        },
    )
