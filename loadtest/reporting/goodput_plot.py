"""Plots a sweep from its JSON result."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

DPI = 110


def goodput(result: Mapping[str, Any]) -> bytes:
    """A PNG with goodput, SLO attainment and TTFT against the offered rate, for every method.

    Crosses mark steps in which the generator was too late.
    """
    steps = result["steps"]
    methods = list(dict.fromkeys(step["method"] for step in steps))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    for number, method in enumerate(methods):
        mine = sorted((s for s in steps if s["method"] == method), key=lambda s: s["rate"])
        colour = f"C{number}"
        _curve(left, mine, "offered_goodput", method, colour)
        _curve(middle, mine, "slo_attainment", method, colour)
        _curve(right, mine, "median_ttft_ms", method, colour)
        _curve(right, mine, "p95_ttft_ms", None, colour, style=":")
        crossing = result["knees"].get(method, {}).get("crossing")
        if crossing is not None:
            for axes in (left, middle):
                axes.axvline(crossing, color=colour, linestyle="--", linewidth=0.9, alpha=0.7)
    highest = max((step["rate"] for step in steps), default=1.0)
    left.plot([0, highest], [0, highest], color="0.8", linewidth=1, zorder=0, label="all good")
    left.set(ylabel="requests/s that kept the SLO", title="Goodput")
    target = result["attainment"]
    middle.axhline(target, color="0.5", linewidth=1, label=f"{target:.0%}: the knee's")
    middle.set(ylabel="share of requests", ylim=(-0.03, 1.03), title="SLO attainment")
    limit = result["slo"]["ttft_ms"]
    if limit is not None:
        right.axhline(limit, color="0.5", linewidth=1, label="the SLO's limit")
    if any(step["median_ttft_ms"] is not None for step in steps):
        right.set_yscale("log")
    right.set(ylabel="ms", title="TTFT of answered requests: median, p95 dotted")
    for axes in (left, middle, right):
        axes.set_xlabel("requests/s offered (Poisson)")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    figure.suptitle(f"{result['model']}, open loop; SLO: {result['slo_text']}; dashed: knees")
    return _png()


def _curve(
    axes: Axes,
    steps: Sequence[Mapping[str, Any]],
    key: str,
    label: str | None,
    colour: str,
    style: str = "-",
) -> None:
    points = [(s["rate"], s[key], s["valid"]) for s in steps if s[key] is not None]
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    axes.plot(xs, ys, style, color=colour, label=label, linewidth=1.4)
    for x, y, valid in points:
        marker, size = ("o", 4.0) if valid else ("x", 8.0)
        axes.plot([x], [y], color=colour, marker=marker, markersize=size)


def _png() -> bytes:
    data = io.BytesIO()
    plt.savefig(data, format="png", dpi=DPI)
    plt.close("all")
    return data.getvalue()
