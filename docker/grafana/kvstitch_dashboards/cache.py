"""Cache: use, saturation and errors of each tier, what it brings, and whether it is right."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from kvstitch_dashboards.panels import HALF, Panel, board, lines, number, warmth
from kvstitch_dashboards.promql import HIT, counts, gauge, quantile, rate, ratio, series

DOCUMENTS = 'source!="question"'
TROUBLE = 'outcome=~"corrupt|refused|timeout|unavailable|error|rejected"'
AGREEING = 'outcome="agree"'
COMPARED = 'outcome!="skipped"'


def cache() -> Dashboard:
    return board(
        "kvstitch: cache",
        "kvstitch-cache",
        "Use, saturation and errors per tier; hit rate by token; decisions; drift",
        {
            "What it brings": _benefit(),
            "Utilisation": _utilisation(),
            "Saturation": _saturation(),
            "Errors": _errors(),
            "Drift: fused answers against full prefill": _drift(),
        },
    )


def _benefit() -> list[Panel]:
    return [
        number(
            "Hit rate by token",
            ratio(
                rate("prompt_tokens_total", f'source=~"{HIT}"'),
                rate("prompt_tokens_total", DOCUMENTS),
            ),
            unit="percentunit",
            text="Tokens of instruction and documents whose KV was read and kept, of all",
        ),
        number(
            "Prefill computed",
            ratio(rate("answer_flops_total"), rate("answer_full_prefill_flops_total")),
            unit="percentunit",
            text="Operations spent on prompts, of what full prefill would have cost",
        ),
        number(
            "Gate agreement",
            ratio(rate("gate_checks_total", AGREEING), rate("gate_checks_total", COMPARED)),
            unit="percentunit",
            text="Compared answers whose first token is full prefill's; wants gate_sample above 0",
            bad_below=0.9,
        ),
        number(
            "Tiers healthy",
            gauge("min", "tier_healthy", by="tier"),
            legend="{{tier}}",
            bad_below=1,
        ),
        lines(
            "Prompt tokens by source",
            {"{{source}}": rate("prompt_tokens_total", by="source")},
            stacked=True,
            text="Per second. cold: not stored; recomputed: rows the method computes anew",
        ),
        lines(
            "Hit rate by tier",
            {
                "{{source}}": (
                    rate("prompt_tokens_total", f'source=~"{HIT}"', by="source")
                    + " / on () group_left () ("
                    + rate("prompt_tokens_total", DOCUMENTS)
                    + " > 0)"
                )
            },
            unit="percentunit",
            stacked=True,
            text="By token",
        ),
        lines(
            "Load or recompute",
            {"{{decision}}": rate("answer_segments_total", by="decision")},
            stacked=True,
            text="Parts of prompts per second. miss: there was nothing to decide",
        ),
        lines(
            "Planner",
            {"{{decision}}": rate("planner_segments_total", by="decision")},
            text="late: given up after waiting; lost: bad or gone when needed",
        ),
        warmth("Recomputed share", counts("answer_recomputed_ratio"), unit="percentunit"),
        lines(
            "Kept after eviction, p50",
            {
                "entries kept": quantile(0.5, "answer_kept_ratio"),
                "tokens covered": quantile(0.5, "answer_coverage_ratio"),
            },
            unit="percentunit",
            top=1,
            text="Answers with an eviction method alone have a coverage",
        ),
    ]


def _utilisation() -> list[Panel]:
    return [
        lines(
            "Full",
            {
                "{{tier}}": (
                    gauge("max", "tier_used_bytes", by="tier")
                    + " / "
                    + gauge("max", "tier_capacity_bytes", by="tier")
                )
            },
            unit="percentunit",
            top=1,
            text="A full tier is as it should be: look at evictions and hit rate",
        ),
        lines("Held", {"{{tier}}": gauge("max", "tier_used_bytes", by="tier")}, unit="bytes"),
        lines("Chunks", {"{{tier}}": gauge("max", "tier_entries", by="tier")}),
        lines(
            "Moved",
            {"{{tier}} {{op}}": rate("tier_transferred_bytes_total", by="tier, op")},
            unit="Bps",
        ),
        lines(
            "Read for answers",
            {
                "{{tier}}": rate("answer_kv_read_bytes_total", by="tier"),
                "{{tier}}, had all been read": rate("answer_kv_stored_bytes_total", by="tier"),
            },
            unit="Bps",
        ),
        lines(
            "Time of an operation",
            {
                "{{tier}} {{op}}": ratio(
                    rate("tier_operation_seconds_total", by="tier, op"),
                    rate("tier_operations_total", by="tier, op"),
                )
            },
            unit="s",
            text="Mean, failures and verification included",
        ),
        lines(
            "Disk used",
            {
                "{{volume}}": (
                    "1 - "
                    + gauge("min", "disk_free_bytes", by="volume")
                    + " / "
                    + gauge("min", "disk_size_bytes", by="volume")
                )
            },
            unit="percentunit",
            top=1,
            text="Of the file system, whoever fills it",
        ),
        lines(
            "Believed bandwidth",
            {"{{tier}}": gauge("min", "tier_estimated_bytes_per_second", by="tier")},
            unit="Bps",
            text="What the planner counts with",
        ),
        lines(
            "Believed latency",
            {"{{tier}}": gauge("max", "tier_estimated_latency_seconds", by="tier")},
            unit="s",
        ),
        lines(
            "Believed prefill speed",
            {"speed": gauge("min", "prefill_estimated_flops_per_second")},
            unit="flops",
        ),
    ]


def _saturation() -> list[Panel]:
    return [
        lines("Evictions", {"{{tier}}": rate("tier_evictions_total", by="tier")}, unit="cps"),
        lines(
            "Background writes",
            {
                "waiting": gauge("sum", "store_pending_writes"),
                "given up per second": rate("store_dropped_writes_total"),
            },
        ),
        lines(
            "KV pool free",
            {
                "for requests": gauge("min", "pool_free_ratio"),
                "of it with kept prompts": gauge("max", "pool_kept_ratio"),
            },
            unit="percentunit",
            top=1,
        ),
        lines(
            "Prompts continued",
            {"from the {{place}}": rate("continued_prompts_total", by="place")},
            unit="cps",
        ),
        lines(
            "Stored",
            {
                "new": rate("store_new_keys_total"),
                "already there": rate("store_already_present_total"),
                "read once for several": rate("shared_reads_total"),
            },
            unit="cps",
            text="Known documents in a new order must write nothing new",
        ),
        lines(
            "Precompute",
            {"{{status}}": rate("precomputed_chunks_total", by="status")},
            unit="cps",
        ),
        lines(
            "Documents",
            {
                "documents": gauge("sum", "documents"),
                "chunks": gauge("sum", "chunks"),
                "jobs {{state}}": gauge("sum", "jobs", by="state"),
            },
        ),
        lines(
            "Stored in part",
            {"{{code}}": rate("document_warnings_total", by="code")},
            unit="cps",
            text="Warnings of ingested documents: something of their file is not in their text",
        ),
        lines(
            "Vector search",
            {"recall of the least exact index": gauge("min", "vector_index_recall")},
            unit="percentunit",
            text="Measured when an index is built; 1: all searches are exact",
        ),
    ]


def _errors() -> list[Panel]:
    return [
        lines(
            "Failed operations",
            {
                "{{tier}} {{op}} {{outcome}}": rate(
                    "tier_operations_total", TROUBLE, by="tier, op, outcome"
                )
            },
            unit="cps",
        ),
        lines(
            "Deletions still owed",
            {"{{tier}}": gauge("sum", "tier_pending_deletes", by="tier")},
        ),
        lines(
            "Servers of shared tiers",
            {
                "{{tier}}": gauge("min", "tier_servers", by="tier"),
                "{{tier}} down": gauge("max", "tier_servers_down", by="tier"),
            },
            text="Of a Redis Cluster: those with slots, and those that do not answer",
        ),
        lines(
            "Samples dropped",
            {"samples": rate("worker_samples_dropped_total")},
            unit="cps",
            text="Anything but 0 is a metric that was sent and not declared",
        ),
    ]


def _drift() -> list[Panel]:
    return [
        lines(
            "Divergence",
            {
                "{{method}} p50": quantile(0.5, "gate_kl_nats", by="method"),
                "{{method}} p95": quantile(0.95, "gate_kl_nats", by="method"),
            },
            text="Nats between next-token distributions",
            span=HALF,
        ),
        warmth("Divergence, all", counts("gate_kl_nats"), unit="short"),
        lines(
            "Comparisons",
            {"{{method}} {{outcome}}": rate("gate_checks_total", by="method, outcome")},
            unit="cps",
            span=HALF,
        ),
        lines(
            "State",
            {"{{method}}": f"max by (method) ({series('gate_state')})"},
            span=HALF,
            top=2,
            text="0: as asked, 1: the ratio is raised, 2: full prefill instead",
        ),
    ]
