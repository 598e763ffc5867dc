"""What a fusion method is replaced by, step by step. Knows no observations."""

from __future__ import annotations

from dataclasses import fields, replace

from service.errors import InvalidRequest
from service.worker.methods.fusion.base import FusionMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla

FULL_PREFILL_METHOD = "vanilla"
RATIO_FACTOR = 2.0
MIN_RAISED_RATIO = 0.1
"""A method that was asked to recompute nothing begins with this."""
MAX_RATIO = 0.6
"""Above it a full prefill costs hardly more, and cannot be wrong."""


def fallbacks(fusion: FusionMethod) -> list[FusionMethod]:
    """The method as asked for, with its ratio doubled as often as makes sense where it has one,
    and full prefill."""
    steps = [fusion]
    ratio = next((field for field in fields(fusion) if field.name == "ratio"), None)
    if ratio is not None and ratio.metadata.get("type") == "number":
        most = min(MAX_RATIO, ratio.metadata.get("le") or MAX_RATIO)
        wanted = _raised(fusion.ratio)  # type: ignore[attr-defined]
        while wanted <= most:
            try:
                steps.append(replace(fusion, ratio=wanted))  # type: ignore[call-arg]
            except InvalidRequest:
                break  # its other parameters forbid it
            wanted = _raised(wanted)
    return [*steps, Vanilla()]


def _raised(ratio: float) -> float:
    return max(MIN_RAISED_RATIO, round(RATIO_FACTOR * ratio, 6))
