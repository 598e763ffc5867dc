"""Computes the figures of one run, named as in vLLM's `bench serve`.

Requests of the warm-up are sent but left out of every figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.measurement.percentiles import in_milliseconds
from loadtest.measurement.request_record import (
    FAILED,
    OK,
    OVERLOADED,
    REJECTED,
    UNFINISHED,
    RequestRecord,
)
from loadtest.measurement.streamed_answer import TIERS
from loadtest.sending.open_loop import OpenLoopRun

SHOWN_ERRORS = 5


@dataclass(frozen=True)
class Slo:
    """The service level objective: what a good answer must keep.

    Attributes:
        ttft_s: limit of the time to the first token in seconds; None: no limit.
        tpot_s: limit of the time per token after the first in seconds; None: no limit.
        e2e_s: limit of the time to the end of the answer in seconds; None: no limit.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met(self, record: RequestRecord) -> bool:
        """Whether a complete answer kept all limits. An answer of one token has no TPOT."""
        if record.outcome != OK:
            return False
        pairs = (
            (record.ttft_s, self.ttft_s),
            (record.tpot_s, self.tpot_s),
            (record.e2e_s, self.e2e_s),
        )
        return all(value is None or limit is None or value <= limit for value, limit in pairs)

    @property
    def longest_s(self) -> float:
        """The longest limit in seconds, TPOT aside."""
        return max(self.ttft_s or 0.0, self.e2e_s or 0.0)

    def __str__(self) -> str:
        named = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("E2E", self.e2e_s))
        parts = [f"{name} ≤ {1000 * limit:g} ms" for name, limit in named if limit is not None]
        return ", ".join(parts) or "none"

    def describe(self) -> dict[str, float | None]:
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.e2e_s}
        return {f"{n}_ms": None if v is None else 1000 * v for n, v in limits.items()}


def summarize(
    run: OpenLoopRun, slo: Slo, *, window_s: float, warmup_s: float = 0.0
) -> dict[str, Any]:
    """Compute all figures of a run.

    request_throughput and request_goodput are defined as in vLLM: per second from the first request
    to the end of the last answer. offered_rate and offered_goodput are per second of the window, so
    late answers at overload do not dilute them.

    Args:
        run: the run.
        slo: what counts as a good answer.
        window_s: how long requests were sent, warm-up included, in seconds.
        warmup_s: seconds at the start that are not counted.
    """
    records = [record for record in run.records if record.at_s >= warmup_s]
    done = [record for record in records if record.outcome == OK]
    good = sum(slo.met(record) for record in records)
    outcomes = Counter(record.outcome for record in records)
    duration = _duration(records, run)
    measured_s = window_s - warmup_s
    prompt = sum(record.prompt_tokens for record in done)
    output = sum(record.completion_tokens for record in done)
    return {
        "valid": run.lag.valid,
        "why_invalid": run.lag.why_invalid,
        "sent": len(records),
        "offered_rate": len(records) / measured_s,
        "offered_goodput": good / measured_s,
        "slo_attainment": good / len(records) if records else None,
        "duration": duration,
        "completed": len(done),
        "failed": len(records) - len(done),
        "rejected_429": outcomes[REJECTED],
        "overloaded_503": outcomes[OVERLOADED],
        "errors": outcomes[FAILED],
        "unfinished": outcomes[UNFINISHED],
        "error_messages": _messages(records),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(done) / duration,
        "request_goodput": good / duration,
        "output_throughput": output / duration,
        "total_token_throughput": (prompt + output) / duration,
        "max_concurrent_requests": _most_at_once(records, run),
        **in_milliseconds("ttft", [r.ttft_s for r in done if r.ttft_s is not None]),
        **in_milliseconds("tpot", [r.tpot_s for r in done if r.tpot_s is not None]),
        **in_milliseconds("itl", [gap for r in done for gap in r.itl_s]),
        **in_milliseconds("e2el", [r.e2e_s for r in done if r.e2e_s is not None]),
        **_hits(done),
        "lag_ms": {
            "p99": 1000 * run.lag.p99_s,
            "max": 1000 * run.lag.most_s,
            "event_loop_p99": 1000 * run.lag.loop_p99_s,
            "limit": 1000 * run.lag.limit_s,
        },
    }


def _duration(records: Sequence[RequestRecord], run: OpenLoopRun) -> float:
    ends = [r.at_s + r.e2e_s for r in records if r.e2e_s is not None]
    if any(record.outcome == UNFINISHED for record in records):
        ends.append(run.ended_s)
    first = min((record.at_s for record in records), default=0.0)
    return max(max(ends, default=run.ended_s) - first, 1e-9)


def _hits(done: Sequence[RequestRecord]) -> dict[str, Any]:
    """Tokens whose KV cache was found, by tier, and their share of all tokens but the question."""
    sources: Counter[str] = Counter()
    for record in done:
        sources.update(record.sources)
    hits = {tier: sources[tier] for tier in TIERS}
    total = sum(sources.values())
    return {
        "hit_tokens": hits,
        "recomputed_tokens": sources["recomputed"],
        "cold_tokens": sources["cold"],
        "token_hit_rate": sum(hits.values()) / total if total else None,
    }


def _messages(records: Sequence[RequestRecord]) -> dict[str, int]:
    """The most frequent errors."""
    counted = Counter(record.error for record in records if record.error)
    return dict(counted.most_common(SHOWN_ERRORS))


def _most_at_once(records: Sequence[RequestRecord], run: OpenLoopRun) -> int:
    """Most requests at the same time, from their due times to the end of answer or run."""
    ended = [run.ended_s if r.e2e_s is None else r.at_s + r.e2e_s for r in records]
    changes = sorted([(r.at_s, 1) for r in records] + [(at, -1) for at in ended])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def two_digits(seconds: float) -> float:
    """Round up to two significant digits."""
    scale = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(round(seconds / scale, 6)) * scale, 10)
