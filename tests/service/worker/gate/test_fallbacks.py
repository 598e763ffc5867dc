"""What a method is replaced by."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.gate.method_trust import fallbacks
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.registry import fusion_methods, make_fusion


def ratios(fusion: FusionMethod) -> list[float]:
    *steps, last = fallbacks(fusion)
    assert isinstance(last, Vanilla)
    return [float(getattr(step, "ratio", -1)) for step in steps]


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (0.0, [0.0, 0.1, 0.2, 0.4]),
        (0.01, [0.01, 0.1, 0.2, 0.4]),
        (0.15, [0.15, 0.3, 0.6]),
        (0.3, [0.3, 0.6]),
        (0.31, [0.31]),
        (1.0, [1.0]),
    ],
)
def test_the_ratio_is_doubled(asked: float, steps: list[float]) -> None:
    assert ratios(make_fusion("a3", {"ratio": asked})) == steps


@pytest.mark.parametrize("name", sorted(fusion_methods()))
def test_every_method_ends_in_full_prefill(name: str) -> None:
    """By way of valid parameters, and by none where it has no ratio."""
    fusion = make_fusion(name, {})
    steps = fallbacks(fusion)
    assert steps[0] == fusion and isinstance(steps[-1], Vanilla)
    assert (len(steps) > 2) == hasattr(fusion, "ratio")
    for step in steps[1:-1]:
        assert make_fusion(name, {"ratio": step.ratio}) == step  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Narrow(DenseMethod):
    """A ratio that may not be doubled twice, by its range or by another parameter."""

    ratio: float = parameter(0.1, "share", ge=0, le=0.3, auto=True)
    most: float = parameter(1.0, "bound on ratio", ge=0, le=1)

    def __post_init__(self) -> None:
        if self.ratio > self.most:
            raise InvalidRequest("ratio must not be above most", field="fusion.ratio")


def test_ranges_are_respected() -> None:
    assert ratios(Narrow()) == [0.1, 0.2]
    assert ratios(Narrow(most=0.15)) == [0.1]
