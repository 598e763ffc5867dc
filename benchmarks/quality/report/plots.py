"""Figures: curves of score against cost, and maps over depth and length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.quality.report.scored import Scored
from tuning.statistics import Estimate

_COLOURS = {
    "full prefill": "black",
    "guess": "tab:gray",
    "full_reuse": "tab:pink",
    "pie": "tab:brown",
    "random_rows": "tab:olive",
    "legolink": "tab:green",
    "cacheblend": "tab:orange",
    "a3": "tab:blue",
    "question_scout": "salmon",
}
_OTHERS = plt.get_cmap("tab10")

Grid = Sequence[Sequence[float]]
"""Values by row, then column; NaN for none."""


def curves(
    rows: Sequence[Scored],
    path: Path,
    *,
    x: Callable[[Scored], float | None],
    label: str,
    y: Callable[[Scored], Estimate] = lambda s: s.average,
    y_label: str = "score × 100, average over ranked tasks",
    flat: Sequence[str] = (),
    percent: bool = True,
) -> Path:
    """Draws a line with intervals for each curve.

    A curve of one point is a marker, or a dotted horizontal line if its name is in `flat`.
    """
    _, axes = plt.subplots(figsize=(8.5, 5.5))
    for number, (name, points) in enumerate(_by_curve(rows).items()):
        colour = _COLOURS.get(name, _OTHERS(number % 10))
        if name in flat:
            axes.axhline(
                100 * y(points[0]).mean, color=colour, linestyle=":", linewidth=1, label=name
            )
            continue
        placed = [(at, y(s)) for s in points if (at := x(s)) is not None]
        if placed:
            _line(axes, sorted(placed, key=lambda p: p[0]), 100 if percent else 1, name, colour)
    axes.set(xlabel=label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return _save(path)


def _line(
    axes: Axes, placed: Sequence[tuple[float, Estimate]], unit: float, name: str, colour: Any
) -> None:
    means = [100 * e.mean for _, e in placed]
    # By rounding a mean can lie outside its interval by a tiny amount.
    errors = [
        [max(0.0, 100 * (e.mean - e.low)) for _, e in placed],
        [max(0.0, 100 * (e.high - e.mean)) for _, e in placed],
    ]
    axes.errorbar(
        [unit * at for at, _ in placed],
        means,
        yerr=errors,
        label=name,
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
    )


def maps(
    grids: Mapping[str, Grid],
    path: Path,
    *,
    columns: Sequence[object],
    rows: Sequence[object],
    labels: tuple[str, str],
) -> Path:
    """Draws a heat map of scores from 0 to 1 for each name; `labels` are those of the axes."""
    across = min(3, len(grids))
    down = -(-len(grids) // across)
    size = (1.5 + 0.42 * len(columns), 1.2 + 0.34 * len(rows))
    figure, panels = plt.subplots(
        down, across, figsize=(across * size[0], down * size[1]), squeeze=False
    )
    image = None
    for axes, (name, grid) in zip(panels.flat, grids.items(), strict=False):
        image = axes.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(columns)), [str(c) for c in columns], fontsize=7, rotation=45)
        axes.set_yticks(range(len(rows)), [str(r) for r in rows], fontsize=7)
    for axes in panels.flat[len(grids) :]:
        axes.set_axis_off()
    figure.supxlabel(labels[0], fontsize=9)
    figure.supylabel(labels[1], fontsize=9)
    figure.tight_layout()
    if image is not None:
        figure.colorbar(image, ax=panels.ravel().tolist(), shrink=0.8)
    return _save(path)


def _by_curve(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows grouped by curve; those without a curve are left out."""
    found: dict[str, list[Scored]] = {}
    for s in rows:
        if s.configuration.curve:
            found.setdefault(s.configuration.curve, []).append(s)
    return found


def _save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # No software version in the file, so that the same figures give the same bytes.
    plt.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close("all")
    return path
