"""Tests rising rates with every method, in one run, so that disturbances affect all methods alike.

Methods are asked at one service, or each at its own. At each rate all get the same requests at the
same times, one method after the other. The method that goes first changes from rate to rate. A
method that failed nearly all requests at two successive rates is left out from then on.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.errors import ProbeFailed
from loadtest.measurement.percentiles import percentile
from loadtest.measurement.request_record import OK, RequestRecord
from loadtest.reporting.run_summary import Slo, summarize
from loadtest.sending.open_loop import run_open_loop
from loadtest.sending.streaming_client import EncodedRequest, StreamingClient
from loadtest.traffic.arrivals import poisson
from loadtest.traffic.routes import MethodUnderTest, Route
from loadtest.traffic.trace_replay import Scheduled, Trace
from loadtest.traffic.workloads import Workload

# With an SLO attainment below this at two successive rates, higher rates would only cost time.
HOPELESS = 0.1
# Rates to try, as multiples of what the first method can do one request after the other.
AUTO_FACTORS = (0.3, 0.6, 0.9, 1.2, 1.8, 2.5, 3.5)
# Seconds between two steps: the service needs a moment to drop disconnected requests.
SETTLE_S = 0.5

Step = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class StepSettings:
    """How each step is run.

    Attributes:
        step_s: how long requests are sent, in seconds.
        warmup_s: seconds at the start that are not counted.
        patience_s: how long after the last request answers may still arrive, in seconds.
        max_lag_s: how late the generator may be, in seconds.
        attempts: how often a step is run if the generator was too late.
        seed: seed of arrivals and requests.
    """

    step_s: float = 12.0
    warmup_s: float = 2.0
    patience_s: float = 2.0
    max_lag_s: float = 0.05
    attempts: int = 2
    seed: int = 1

    def describe(self) -> dict[str, Any]:
        return asdict(self)


async def _pause() -> None:
    await asyncio.sleep(SETTLE_S)


@dataclass(frozen=True)
class StepRunner:
    """Runs single steps against one route of one server.

    Attributes:
        client: sends to the server.
        route: writes the requests.
        pattern: how a step is run.
        slo: what counts as a good answer.
        settle: waits after a step until the server is ready for the next one.
    """

    client: StreamingClient
    route: Route
    pattern: StepSettings
    slo: Slo
    settle: Callable[[], Awaitable[None]] = _pause

    def prepare(
        self, scheduled: Sequence[Scheduled], method: MethodUnderTest
    ) -> list[EncodedRequest]:
        return [
            EncodedRequest(item.at_s, json.dumps(self.route.body(item.request, method)).encode())
            for item in scheduled
        ]

    async def step(
        self, scheduled: Sequence[Scheduled], method: MethodUnderTest, window_s: float
    ) -> tuple[Step, list[RequestRecord]]:
        """Run one method at one rate; returns its figures and its records.

        If the generator was too late, the step is run again. The last attempt counts, valid or not,
        so the measured figures do not influence which attempt counts.
        """
        attempts = 1
        figures, records = await self._once(scheduled, method, window_s)
        while not figures["valid"] and attempts < self.pattern.attempts:
            attempts += 1
            figures, records = await self._once(scheduled, method, window_s)
        return {"method": method.label, "attempts": attempts, **figures}, records

    async def _once(
        self, scheduled: Sequence[Scheduled], method: MethodUnderTest, window_s: float
    ) -> tuple[Step, list[RequestRecord]]:
        pattern = self.pattern
        done = await run_open_loop(
            self.prepare(scheduled, method),
            self.client.send,
            patience_s=pattern.patience_s,
            max_lag_s=pattern.max_lag_s,
        )
        figures = summarize(done, self.slo, window_s=window_s, warmup_s=pattern.warmup_s)
        await self.settle()
        return figures, done.records

    async def alone(
        self, workload: Workload, method: MethodUnderTest, count: int, which: str = ""
    ) -> dict[str, float]:
        """Medians of `count` requests sent one after the other, after one that warms up.

        Args:
            workload: gives the requests.
            method: the method.
            count: how many are measured.
            which: another text chooses other requests.

        Raises:
            ProbeFailed: a request failed.
        """
        requests = itertools.islice(
            workload.requests(f"alone{which}/{self.pattern.seed}"), count + 1
        )
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


Entrant = tuple[StepRunner, MethodUnderTest]


def at_rate(workload: Workload, rate: float, pattern: StepSettings) -> list[Scheduled]:
    """The requests and times of one rate; they are the same for every method."""
    seed = f"{pattern.seed}/{rate:g}"
    arrivals = poisson(rate, pattern.step_s, seed)
    requests = workload.requests(seed)
    return [Scheduled(at_s, next(requests)) for at_s in arrivals]


async def unloaded(
    entrants: Sequence[Entrant], workload: Workload, count: int, say: Say, which: str = ""
) -> dict[str, dict[str, float]]:
    """Each method without load; before and after a run, to see if the machine changed.

    Raises:
        ProbeFailed: a request failed.
    """
    out = {}
    for runner, method in entrants:
        out[method.label] = found = await runner.alone(workload, method, count, which)
        say(f"{method.label} alone: TTFT {1000 * found['ttft_s']:.0f} ms")
    return out


async def sweep(
    entrants: Sequence[Entrant], workload: Workload, rates: Sequence[float], say: Say
) -> tuple[list[Step], dict[str, list[RequestRecord]]]:
    """Run all rates; returns the steps in the order they were run, and records by `method@rate`."""
    steps: list[Step] = []
    raw: dict[str, list[RequestRecord]] = {}
    pattern = entrants[0][0].pattern
    for turn, rate in enumerate(sorted(rates)):
        scheduled = at_rate(workload, rate, pattern)
        turned = turn % len(entrants)
        for runner, method in (*entrants[turned:], *entrants[:turned]):
            if _rests([step for step in steps if step["method"] == method.label]):
                continue
            figures, records = await runner.step(scheduled, method, pattern.step_s)
            steps.append({"rate": rate, **figures})
            raw[f"{method.label}@{rate:g}"] = records
            say(f"{method.label} at {rate:g}/s: {_short(figures)}")
    return steps, raw


async def replay(
    driver: StepRunner, trace: Trace, methods: Sequence[MethodUnderTest], say: Say
) -> tuple[list[Step], dict[str, list[RequestRecord]]]:
    """Replay the trace once for every method; returns the steps, and the records by method."""
    steps, raw = [], {}
    # A trace with a single request would otherwise have an infinite rate.
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
