"""The figures as pictures: frontier, KV error by layer, hit rate, attention distance by depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.fidelity.report.summary import Duel, Summary

FLOOR = 1e-6
"""Smaller KL is drawn at this value, because a log axis has no zero."""
_COLOURS = {
    "full prefill": "black",
    "full_reuse": "tab:gray",
    "pie": "tab:brown",
    "random rows": "tab:olive",
    "legolink": "tab:green",
    "cacheblend": "tab:orange",
    "a3": "tab:blue",
    "question_scout": "tab:red",
}
_STYLES = {"none": "--", "bos": ":", "system": "-"}
_TICKS = (5, 10, 15, 20, 30, 40, 50, 70)
_MARKERS = "osD^vPX*<>"


def draw(
    summaries: Sequence[Summary], folder: Path, *, prefix: str, depths: Sequence[int]
) -> list[Path]:
    """Draws all figures as `<prefix><name>.png` in `folder`; returns their paths."""
    pictures: dict[str, Callable[[], None]] = {
        "frontier": lambda: _frontier(summaries),
        "kv_error": lambda: _kv_error(_comparable(summaries)),
        "hit_rate": lambda: _hit_rate(summaries),
        "attention_l2": lambda: _attention(_comparable(summaries), depths),
    }
    paths = []
    for name, make in pictures.items():
        make()
        paths.append(folder / f"{prefix}{name}.png")
        _save(paths[-1])
    return paths


def effects(duels: Sequence[Duel], path: Path) -> Path:
    """Draws the change in the first token's KL by each ablation, with its interval."""
    ordered = sorted(duels, key=lambda d: d.first.difference.mean, reverse=True)
    _, axes = plt.subplots(figsize=(9, 0.24 * len(ordered) + 1.5))
    for at, d in enumerate(ordered):
        e = d.first.difference
        axes.plot([e.low, e.high], [at, at], color=_colour(d.ours), linewidth=1.2)
        axes.plot(e.mean, at, ".", color=_colour(d.ours))
    labels = [f"{d.ours.name} ({100 * d.ours.cost:.0f} %)" for d in ordered]
    axes.set_yticks(range(len(ordered)), labels, fontsize=7)
    axes.axvline(0, color="black", linewidth=0.7)
    base = duels[0].rival
    axes.set_xscale("symlog", linthresh=1e-3)
    axes.set(xlabel=f"Δ KL of the first token to {base.name} ({100 * base.cost:.0f} % of full)")
    axes.grid(alpha=0.3, axis="x")
    _save(path)
    return path


def _save(path: Path) -> None:
    # No software version in the file, so that the same figures give the same bytes.
    plt.savefig(path, dpi=130, bbox_inches="tight", metadata={"Software": None})
    plt.close("all")


def _frontier(summaries: Sequence[Summary]) -> None:
    """Curves with intervals, variants as faint points.

    Codecs are in the table only. Full prefill is at (1, 0) by definition.
    """
    raw = [s for s in summaries if s.configuration.codec == "raw"]
    curves = _curves([s for s in raw if s.configuration.family != "full prefill"])
    figure, panels = plt.subplots(1, 2, figsize=(15, 6.5), sharex=True)
    for axes, key, label in zip(
        panels,
        ("kl_first", "kl_next"),
        ("first answer token", "answer tokens after the first"),
        strict=True,
    ):
        for number, curve in enumerate(curves):
            style = _style(curve[0], number)
            points = [s for s in curve if not math.isnan(s.figures[key].mean)]
            x = [s.cost for s in points]
            y = [max(s.figures[key].mean, FLOOR) for s in points]
            axes.plot(x, y, **style)
            if not curve[0].configuration.variant:
                low = [max(s.figures[key].low, FLOOR) for s in points]
                high = [max(s.figures[key].high, FLOOR) for s in points]
                axes.vlines(x, low, high, color=style["color"], linewidth=0.8, alpha=0.5)
        axes.set(yscale="log", xscale="log", xlabel="operations, share of a full prefill")
        axes.set_xticks([share / 100 for share in _TICKS], [f"{share} %" for share in _TICKS])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(ylabel="KL(full prefill ‖ method), nats", title=label)
        axes.grid(alpha=0.3, which="both")
    _legend(figure, panels[0])


def _kv_error(summaries: Sequence[Summary]) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(13, 5.5), sharex=True)
    for number, s in enumerate(summaries):
        style = _style(s, number)
        for axes, errors in zip(panels, (s.k_error, s.v_error), strict=True):
            axes.plot(range(len(errors)), errors, **{**style, "label": s.name})
    for axes, name in zip(panels, ("K after RoPE", "V"), strict=True):
        axes.set(xlabel="layer", ylabel="‖Δ‖ / ‖full‖ over document rows", title=name)
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])


def _hit_rate(summaries: Sequence[Summary]) -> None:
    figure, axes = plt.subplots(figsize=(8, 6))
    for number, curve in enumerate(_curves(summaries)):
        points = [s for s in curve if not math.isnan(s.figures["hit"].mean)]
        if points and curve[0].configuration.family != "full prefill":
            x = [s.figures["rows"].mean for s in points]
            y = [s.figures["hit"].mean for s in points]
            axes.plot(x, y, **_style(curve[0], number))
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.7, linestyle=":", label="by chance")
    axes.set(xlabel="rows recomputed, share of the prompt", ylim=(0, 1.02))
    axes.set(ylabel="hit rate against full prefill's question attention")
    axes.grid(alpha=0.3)
    _legend(figure, axes)


def _attention(summaries: Sequence[Summary], depths: Sequence[int]) -> None:
    figure, axes = plt.subplots(figsize=(10, 5.5))
    width = 0.8 / max(1, len(summaries))
    for number, s in enumerate(summaries):
        at = [place + (number - (len(summaries) - 1) / 2) * width for place in range(len(depths))]
        hatch = {"none": "//", "bos": ".."}.get(s.configuration.prefix_mode, "")
        axes.bar(
            at, s.map_l2, width, label=s.name, color=_colour(s), hatch=hatch, edgecolor="white"
        )
    axes.set_xticks(range(len(depths)), [f"layer {depth}" for depth in depths])
    axes.set(ylabel="L2 distance of the question's attention")
    axes.grid(alpha=0.3, axis="y")
    _legend(figure, axes)


def _comparable(summaries: Sequence[Summary]) -> list[Summary]:
    """One point of each curve without variant: the one nearest to 15 % recomputed."""
    plain = [
        curve
        for curve in _curves(summaries)
        if not curve[0].configuration.variant
        and curve[0].configuration.codec == "raw"
        and curve[0].configuration.prefix_mode != "bos"
        and curve[0].configuration.family != "full prefill"
    ]
    return [min(c, key=lambda s: abs(s.figures["rows"].mean - 0.15)) for c in plain]


def _curves(summaries: Sequence[Summary]) -> list[list[Summary]]:
    curves: dict[str, list[Summary]] = {}
    for s in summaries:
        curves.setdefault(s.configuration.curve, []).append(s)
    return [sorted(curve, key=lambda s: s.cost) for curve in curves.values()]


def _style(s: Summary, number: int) -> dict[str, Any]:
    c = s.configuration
    special = bool(c.variant) or c.codec != "raw"
    return {
        "label": c.curve,
        "color": _colour(s),
        "linestyle": _STYLES.get(c.prefix_mode, "-."),
        "marker": _MARKERS[number % len(_MARKERS)] if special else ".",
        "markersize": 4 if special else 7,
        "linewidth": 1.0 if special else 1.6,
        "alpha": 0.55 if special else 1.0,
    }


def _colour(s: Summary) -> str:
    return _COLOURS.get(s.configuration.family, "tab:purple")


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 + (len(labels) - 1) // 24
    figure.legend(
        handles, labels, loc="center left", bbox_to_anchor=(0.92, 0.5), fontsize=7, ncols=columns
    )
