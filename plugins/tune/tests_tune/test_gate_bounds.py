"""The gate's bounds follow from first tokens, if there are enough of them."""

from __future__ import annotations

from kvstitch_tune.candidates import fixed_defaults
from kvstitch_tune.report import GATE_PROMPTS, gate_bounds
from kvstitch_tune.statistics import Bootstrap, Summary
from tests_tune.fake_runner import FakeRunner, prompts


def summary(count: int) -> Summary:
    candidate, runner = fixed_defaults("none"), FakeRunner(lambda *_: 0.1)
    trials = [t for p in prompts("test", count) for made in runner.measure(p, [candidate])
              for t in made]  # fmt: skip
    return Summary.of(candidate, trials, Bootstrap(count))


def test_bounds() -> None:
    assert gate_bounds(summary(GATE_PROMPTS - 1)) == {}
    assert gate_bounds(summary(GATE_PROMPTS)) == {"gate_min_agreement": 0.95, "gate_max_kl": 0.2}
