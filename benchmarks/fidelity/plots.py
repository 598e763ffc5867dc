"""The figures as pictures: frontier, KV error by layer, hit rate, attention distance by depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.fidelity.summary import Summary

FLOOR = 1e-6
"""KL below this is drawn here: on a log axis zero has no place."""
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
_MARKERS = "osD^vPX*<>"


def draw(
    summaries: Sequence[Summary], folder: Path, *, prefix: str, depths: Sequence[int]
) -> list[Path]:
    """Writes `<prefix>frontier.png` and so on into `folder`; their paths."""
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
        # No software version in the file: the same figures give the same bytes.
        plt.savefig(paths[-1], dpi=130, bbox_inches="tight", metadata={"Software": None})
        plt.close("all")
    return paths


def _frontier(summaries: Sequence[Summary]) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(15, 6.5), sharex=True)
    for axes, key, label in zip(
        panels,
        ("kl_first", "kl_next"),
        ("first answer token", "answer tokens after the first"),
        strict=True,
    ):
        for number, curve in enumerate(_curves(summaries)):
            points = [(s.cost, s.figures[key]) for s in curve]
            x = [cost for cost, _ in points]
            y = [max(e.mean, FLOOR) for _, e in points]
            low = [max(a - max(e.low, FLOOR), 0.0) for a, (_, e) in zip(y, points, strict=True)]
            high = [max(e.high - a, 0.0) for a, (_, e) in zip(y, points, strict=True)]
            style = _style(curve[0], number)
            axes.errorbar(x, y, yerr=[low, high], capsize=2, elinewidth=0.6, **style)
        axes.set(yscale="log", xscale="log", xlabel="operations, share of a full prefill")
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
        points = [s for s in curve if s.figures["hit"].mean == s.figures["hit"].mean]
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
        colour = _COLOURS.get(s.configuration.family, "tab:purple")
        axes.bar(at, s.map_l2, width, label=s.name, color=colour, hatch=hatch, edgecolor="white")
    axes.set_xticks(range(len(depths)), [f"layer {depth}" for depth in depths])
    axes.set(ylabel="L2 distance of the question's attention")
    axes.grid(alpha=0.3, axis="y")
    _legend(figure, axes)


def _comparable(summaries: Sequence[Summary]) -> list[Summary]:
    """One point of each plain curve: what is recomputed nearest to 15 % of the prompt."""
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
        "color": _COLOURS.get(c.family, "tab:purple"),
        "linestyle": _STYLES.get(c.prefix_mode, "-."),
        "marker": _MARKERS[number % len(_MARKERS)] if special else ".",
        "markersize": 4 if special else 7,
        "linewidth": 1.0 if special else 1.6,
        "alpha": 0.55 if special else 1.0,
    }


def _legend(figure: object, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 + (len(labels) - 1) // 24
    figure.legend(  # type: ignore[attr-defined]
        handles, labels, loc="center left", bbox_to_anchor=(0.92, 0.5), fontsize=7, ncols=columns
    )
