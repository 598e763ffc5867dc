from __future__ import annotations

import pytest

from loadtest.measurement.request_record import (
    FAILED,
    OK,
    OVERLOADED,
    REJECTED,
    UNFINISHED,
    RequestRecord,
)
from loadtest.reporting.run_summary import Slo, summarize, two_digits
from loadtest.sending.open_loop import GeneratorLag, OpenLoopRun

ON_TIME = GeneratorLag(0.001, 0.002, 0.05)


def answered(at_s: float, ttft_s: float, tpot_s: float | None, e2e_s: float) -> RequestRecord:
    sources = {"memory": 80, "recomputed": 15, "cold": 5}
    return RequestRecord(
        at_s, OK, None, 0.0, ttft_s, e2e_s, tpot_s, [0.1, 0.1], 110, 3, sources
    )  # fmt: skip


RECORDS = [
    answered(0.5, 0.1, 0.05, 0.2),  # in the warm-up
    answered(1.0, 0.2, 0.05, 0.3),
    answered(2.0, 0.4, 0.05, 0.5),  # TTFT beyond the SLO
    answered(3.0, 0.2, 0.50, 1.2),  # TPOT beyond it
    answered(4.0, 0.2, None, 0.2),  # one token: no TPOT to miss
    RequestRecord(5.0, REJECTED, "HTTP 429: wait"),
    RequestRecord(5.5, OVERLOADED, "HTTP 503: full"),
    RequestRecord(6.0, OVERLOADED, "HTTP 503: full"),
    RequestRecord(6.5, FAILED, "broke off"),
    RequestRecord(7.0, UNFINISHED, ttft_s=0.1),
]
SLO = Slo(ttft_s=0.3, tpot_s=0.1)


def test_figures_of_a_run() -> None:
    figures = summarize(OpenLoopRun(RECORDS, ON_TIME, 11.0), SLO, window_s=10.0, warmup_s=1.0)
    assert figures["sent"] == 9 and figures["offered_rate"] == 1.0
    assert (figures["completed"], figures["failed"]) == (4, 5)
    assert (figures["rejected_429"], figures["overloaded_503"]) == (1, 2)
    assert (figures["errors"], figures["unfinished"]) == (1, 1)
    assert figures["error_messages"]["HTTP 503: full"] == 2
    assert figures["slo_attainment"] == pytest.approx(2 / 9)
    assert figures["offered_goodput"] == pytest.approx(2 / 9)
    # vLLM counts from the first request to the end of the last; one was cut off at the end.
    assert figures["duration"] == 10.0
    assert figures["request_throughput"] == 0.4 and figures["request_goodput"] == 0.2
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (440, 12)
    assert figures["output_throughput"] == pytest.approx(1.2)
    assert figures["total_token_throughput"] == pytest.approx(45.2)
    assert figures["median_ttft_ms"] == pytest.approx(200.0)
    assert figures["hit_tokens"] == {"memory": 320, "ssd": 0, "redis": 0, "s3": 0}
    assert figures["token_hit_rate"] == 0.8 and figures["recomputed_tokens"] == 60
    # The four without an answer wait until the run ends.
    assert figures["max_concurrent_requests"] == 5
    assert figures["valid"] and figures["why_invalid"] is None


def test_a_run_that_lagged_is_marked() -> None:
    figures = summarize(
        OpenLoopRun(RECORDS, GeneratorLag(0.2, 0.3, 0.05), 11.0), SLO, window_s=10.0
    )
    assert not figures["valid"] and "lagged 200 ms" in figures["why_invalid"]


def test_a_run_without_requests_has_no_attainment() -> None:
    figures = summarize(OpenLoopRun([], ON_TIME, 1.0), SLO, window_s=1.0)
    assert figures["slo_attainment"] is None and figures["completed"] == 0


def test_an_slo_says_what_it_asks() -> None:
    assert str(Slo(0.3, 0.1, 3.0)) == "TTFT ≤ 300 ms, TPOT ≤ 100 ms, E2E ≤ 3000 ms"
    assert str(Slo()) == "none"
    assert Slo().met(RECORDS[1]) and not Slo().met(RECORDS[-1])
    assert not Slo(e2e_s=1.0).met(RECORDS[3])


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.1301, 0.14), (3.942, 4.0), (0.25, 0.25), (1.0, 1.0), (0.0999, 0.1)]
)
def test_limits_are_rounded_up(value: float, rounded: float) -> None:
    assert two_digits(value) == rounded
