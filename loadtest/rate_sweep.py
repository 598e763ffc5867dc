"""Rising rates, every method at each of them: one run, so that what disturbs one disturbs all.

At a rate all methods get the same requests at the same times, one method after the other; which of
them goes first turns from rate to rate. A method that failed nearly all of two rates rests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.measurement.percentiles import percentile
from loadtest.measurement.request_record import OK, RequestRecord
from loadtest.reporting.run_summary import Slo, summarize
from loadtest.sending.open_loop import run_open_loop
from loadtest.sending.streaming_client import PreparedRequest, StreamingClient
from loadtest.traffic.arrivals import poisson
from loadtest.traffic.routes import Method, Route
from loadtest.traffic.trace_replay import Scheduled, Trace
from loadtest.traffic.workloads import Workload

HOPELESS = 0.1
"""An SLO attainment below this at two rates in turn: further rates would only cost time."""
AUTO_FACTORS = (0.3, 0.6, 0.9, 1.2, 1.8, 2.5, 3.5)
"""Rates to try, in terms of what the first method could do one request after the other."""
SETTLE_S = 0.5
"""Between two steps: a service told of disconnects needs a moment to drop them."""

Step = dict[str, Any]
Say = Callable[[str], None]


class ProbeFailed(RuntimeError):
    """A method does not even answer alone."""


@dataclass(frozen=True)
class StepSettings:
    """How each step is driven; times in seconds."""

    step_s: float = 12.0
    warmup_s: float = 2.0
    patience_s: float = 2.0
    """How long after the last request answers may still come."""
    max_lag_s: float = 0.05
    attempts: int = 2
    """At a step whose generator lagged."""
    seed: int = 1

    def describe(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StepRunner:
    """Runs steps against one route of one server."""

    client: StreamingClient
    route: Route
    pattern: StepSettings
    slo: Slo

    def prepare(self, scheduled: Sequence[Scheduled], method: Method) -> list[PreparedRequest]:
        return [
            PreparedRequest(item.at_s, json.dumps(self.route.body(item.request, method)).encode())
            for item in scheduled
        ]

    async def step(
        self, scheduled: Sequence[Scheduled], method: Method, window_s: float
    ) -> tuple[Step, list[RequestRecord]]:
        """One run of one method; its figures and its records. Where the generator lagged it is run
        again, and the last attempt stands, valid or not: no result decides on that."""
        attempts = 1
        figures, records = await self._once(scheduled, method, window_s)
        while not figures["valid"] and attempts < self.pattern.attempts:
            attempts += 1
            figures, records = await self._once(scheduled, method, window_s)
        return {"method": method.label, "attempts": attempts, **figures}, records

    async def _once(
        self, scheduled: Sequence[Scheduled], method: Method, window_s: float
    ) -> tuple[Step, list[RequestRecord]]:
        pattern = self.pattern
        done = await run_open_loop(
            self.prepare(scheduled, method),
            self.client.send,
            patience_s=pattern.patience_s,
            max_lag_s=pattern.max_lag_s,
        )
        figures = summarize(done, self.slo, window_s=window_s, warmup_s=pattern.warmup_s)
        await asyncio.sleep(SETTLE_S)
        return figures, done.records

    async def alone(self, workload: Workload, method: Method, count: int) -> dict[str, float]:
        """Medians of `count` requests, one after the other, behind one that warms up.

        Raises ProbeFailed.
        """
        requests = itertools.islice(workload.requests(f"alone/{self.pattern.seed}"), count + 1)
        records = []
        for request in requests:
            done = await run_open_loop(
                self.prepare([Scheduled(0.0, request)], method),
                self.client.send,
                patience_s=300.0,
                max_lag_s=self.pattern.max_lag_s,
            )
            records += done.records
        failed = [record for record in records if record.outcome != OK]
        if failed:
            raise ProbeFailed(f"{method.label}: {failed[0].error or failed[0].outcome}")
        measured = records[1:]
        tokens = [float(record.prompt_tokens) for record in measured]
        return {
            "ttft_s": percentile([r.ttft_s for r in measured if r.ttft_s is not None], 50),
            "e2e_s": percentile([r.e2e_s for r in measured if r.e2e_s is not None], 50),
            "prompt_tokens": percentile(tokens, 50),
        }


def at_rate(workload: Workload, rate: float, pattern: StepSettings) -> list[Scheduled]:
    """What is sent at one rate, the same for every method."""
    seed = f"{pattern.seed}/{rate:g}"
    arrivals = poisson(rate, pattern.step_s, seed)
    requests = workload.requests(seed)
    return [Scheduled(at_s, next(requests)) for at_s in arrivals]


async def sweep(
    driver: StepRunner,
    workload: Workload,
    methods: Sequence[Method],
    rates: Sequence[float],
    say: Say,
) -> tuple[list[Step], dict[str, list[RequestRecord]]]:
    """Steps in the order they were run, and the records by `method@rate`."""
    steps: list[Step] = []
    raw: dict[str, list[RequestRecord]] = {}
    for turn, rate in enumerate(sorted(rates)):
        scheduled = at_rate(workload, rate, driver.pattern)
        turned = turn % len(methods)
        for method in (*methods[turned:], *methods[:turned]):
            if _rests([step for step in steps if step["method"] == method.label]):
                continue
            figures, records = await driver.step(scheduled, method, driver.pattern.step_s)
            steps.append({"rate": rate, **figures})
            raw[f"{method.label}@{rate:g}"] = records
            say(f"{method.label} at {rate:g}/s: {_short(figures)}")
    return steps, raw


async def replay(
    driver: StepRunner, trace: Trace, methods: Sequence[Method], say: Say
) -> tuple[list[Step], dict[str, list[RequestRecord]]]:
    """The trace once for every method."""
    steps, raw = [], {}
    # A window that ends with the last request would make one request of a trace an infinite rate.
    window_s = max(trace.scheduled[-1].at_s, driver.pattern.warmup_s + 1.0)
    for method in methods:
        figures, records = await driver.step(trace.scheduled, method, window_s)
        steps.append({"rate": len(trace.scheduled) / window_s, **figures})
        raw[method.label] = records
        say(f"{method.label}: {_short(figures)}")
    return steps, raw


def _rests(before: Sequence[Step]) -> bool:
    last = [step["slo_attainment"] for step in before if step["slo_attainment"] is not None][-2:]
    return len(last) == 2 and max(last) < HOPELESS


def _short(figures: Step) -> str:
    attainment, ttft = figures["slo_attainment"], figures["median_ttft_ms"]
    met = "no requests" if attainment is None else f"{attainment:.0%} of {figures['sent']} good"
    median = "" if ttft is None else f", median TTFT {ttft:.0f} ms"
    return met + median + ("" if figures["valid"] else ", NOT VALID: the generator lagged")
