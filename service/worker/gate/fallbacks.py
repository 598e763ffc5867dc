"""What replaces a fusion method that is not trusted, step by step."""

from __future__ import annotations

from service.errors import InvalidRequest
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla

FULL_PREFILL_METHOD = "vanilla"
RATIO_FACTOR = 2.0
MIN_RAISED_RATIO = 0.1
"""Where raising begins for a method that was asked to recompute nothing."""
MAX_RATIO = 0.6
"""Above this a full prefill costs hardly more, and is exact."""


def fallbacks(fusion: FusionMethod) -> list[FusionMethod]:
    """The steps: the method as asked for, the same with ever larger ratios, full prefill.

    A method without a ratio has no steps in between.
    """
    steps = [fusion]
    if fusion.repair_ratio is not None:
        wanted = _raised(fusion.repair_ratio)
        while wanted <= min(MAX_RATIO, fusion.max_repair_ratio):
            try:
                steps.append(fusion.with_repair_ratio(wanted))
            except InvalidRequest:
                break  # the method's other parameters do not allow it
            wanted = _raised(wanted)
    return [*steps, Vanilla()]


def _raised(ratio: float) -> float:
    return max(MIN_RAISED_RATIO, round(RATIO_FACTOR * ratio, 6))
