"""Scatter plots with intervals as inline SVG, drawn here so that no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 48
RADIUS = 4.5


@dataclass(frozen=True)
class Point:
    """One candidate: its place, the interval of y, its name and the colour's group.

    Attributes:
        x: cost.
        y: error or agreement.
        low: of y's interval.
        high: of y's interval.
        label: shown when the pointer is over it.
        group: name of the method; has one colour.
        marked: drawn with a ring and its label.
    """

    x: float
    y: float
    low: float
    high: float
    label: str
    group: str
    marked: bool = False


COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#b82e2e", "#668d1c")


def scatter(points: Sequence[Point], groups: Sequence[str], *, x_title: str, y_title: str) -> str:
    """A figure with its legend; y begins at 0 where no value is far from it.

    Args:
        points: what is drawn.
        groups: all groups of all pictures of a page, so that each has the same colour everywhere.
        x_title: of the horizontal axis.
        y_title: of the vertical axis.
    """
    xs, ys = [p.x for p in points], [v for p in points for v in (p.low, p.high)]
    x_of, x_ticks = _axis(0.0, max(xs), LEFT, WIDTH - RIGHT)
    bottom = 0.0 if min(ys) < 0.5 * max(ys) else min(ys)
    y_of, y_ticks = _axis(bottom, max(ys), HEIGHT - BOTTOM, TOP)
    drawn = {p.group for p in points}
    colours = {g: COLOURS[i % len(COLOURS)] for i, g in enumerate(groups) if g in drawn}
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_title)}">']
    parts += [_grid_x(x_of(t), t) for t in x_ticks] + [_grid_y(y_of(t), t) for t in y_ticks]
    parts.append(
        f'<text class="title" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="title" x="14" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(y_title)}</text>'
    )
    for p in sorted(points, key=lambda p: p.marked):
        parts.append(_point(p, x_of(p.x), y_of, colours[p.group]))
    parts.append("</svg>")
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{escape(group)}</span>'
        for group, colour in colours.items()
    )
    return f"<figure>{''.join(parts)}<figcaption>{legend}</figcaption></figure>"


def _axis(
    low: float, high: float, start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """Values to pixels, and about five round values between `low` and `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 5))
    step *= next(f for f in (1, 2, 5, 10) if span / (step * f) <= 6)
    first = math.ceil(low / step - 1e-9)
    ticks = [i * step for i in range(first, math.floor((low + span) / step + 1e-9) + 1)]
    return lambda value: start + (value - low) / (1.04 * span) * (end - start), ticks


def _grid_x(at: float, value: float) -> str:
    return (
        f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.4g}</text>'
    )


def _grid_y(at: float, value: float) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>'
    )


def _point(p: Point, x: float, y_of: Callable[[float], float], colour: str) -> str:
    y = y_of(p.y)
    parts = [
        f"<g><title>{escape(p.label)}: {p.y:.4g} ({p.low:.4g} to {p.high:.4g})</title>",
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(p.low):.1f}" y2="{y_of(p.high):.1f}" '
        f'stroke="{colour}" stroke-opacity=".45"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}"/>',
    ]
    if p.marked:
        anchor, shift = ("end", -9) if x > WIDTH / 2 else ("start", 9)
        parts.append(
            f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS + 3}"/>'
            f'<text class="mark" x="{x + shift:.1f}" y="{y - 8:.1f}" text-anchor="{anchor}">'
            f"{escape(p.label)}</text>"
        )
    return "".join([*parts, "</g>"])
