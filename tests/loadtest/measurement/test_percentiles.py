from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.measurement.percentiles import (
    PERCENTILES,
    deviation,
    in_milliseconds,
    mean,
    percentile,
)

SAMPLES = st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=80)


@settings(deadline=None)
@given(SAMPLES, st.floats(0, 100))
def test_percentiles_are_numpys(samples: list[float], q: float) -> None:
    assert percentile(samples, q) == pytest.approx(np.percentile(samples, q), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(SAMPLES)
def test_mean_and_deviation_are_numpys(samples: list[float]) -> None:
    assert mean(samples) == pytest.approx(np.mean(samples), rel=1e-9, abs=1e-12)
    assert deviation(samples) == pytest.approx(np.std(samples), rel=1e-6, abs=1e-6)


def test_names_are_those_of_bench_serve() -> None:
    figures = in_milliseconds("ttft", [0.1, 0.3, 0.2])
    assert set(figures) == {
        *("mean_ttft_ms", "median_ttft_ms", "std_ttft_ms"),
        *(f"p{q}_ttft_ms" for q in PERCENTILES),
    }
    assert figures["median_ttft_ms"] == figures["p50_ttft_ms"] == pytest.approx(200.0)


def test_without_samples_there_is_no_figure() -> None:
    assert set(in_milliseconds("tpot", []).values()) == {None}
    with pytest.raises(ValueError, match="0 samples"):
        percentile([], 50)
