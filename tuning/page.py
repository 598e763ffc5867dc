"""The report as one HTML file that needs nothing else, neither scripts nor styles nor pictures.

Scatter plots with intervals as inline SVG, drawn here so that no plotting library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

STAGES = {
    "screen": "Methods, with chunks stored behind the system prompt",
    "prefix": "What chunks are precomputed behind",
    "storage": "Codecs and evictions",
    "test": "Test part: prompts that decided nothing",
}
STYLE = """
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
tr.best{font-weight:600}
.wide{overflow-x:auto}
svg{width:100%;height:auto;font-size:11px;fill:currentColor}
svg .grid{stroke:var(--line)} svg .title{font-size:12px}
svg .ring{fill:none;stroke:currentColor} svg .mark{font-weight:600}
figure{margin:1rem 0} figcaption span{margin-right:1rem;white-space:nowrap}
figcaption i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:50%}
pre{overflow-x:auto;padding:.8rem;border:1px solid var(--line)}
"""
COLUMNS = (
    "configuration", "prompts", "KL per token", "KL first", "agreement", "same answer",
    "operations", "TTFT", "MiB", "KV kept",
)  # fmt: skip


def page(report: Mapping[str, Any], settings: str) -> str:
    """The page.

    Args:
        report: from `report.report`.
        settings: the recommended settings, as text to copy.
    """
    found = report["evidence"]
    best, fixed = report["recommended"], report["fixed_defaults"]
    title = f"kvstitch tune: {found['model_name']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>",
        f"<p>{escape(verdict(report))}</p>",
        *(f"<p><strong>{escape(text)}</strong></p>" for text in report["warnings"]),
        f"<pre>{escape(settings)}</pre>",
        f"<p>{escape(_basis(found))}</p>",
        "<p>KL is that of full prefill's next-token distribution to the configuration's, in nats, "
        "along full prefill's greedy answer. Agreement is the share of that answer's tokens that "
        "are the configuration's most likely ones too; same answer is the share of prompts with "
        "the same greedy answer. Operations and TTFT are relative to full prefill; TTFT is the "
        "prefill's time with stored KV in memory. Intervals are 95 %, over prompts.</p>",
    ]
    methods = sorted(
        {r["fusion"]["method"] for stage in report["stages"] for r in stage["candidates"]}
    )
    for stage in reversed(report["stages"]):
        parts.append(f"<h2>{escape(STAGES[stage['name']])}</h2>")
        rows = stage["candidates"]
        marked = {best["label"], fixed["label"]}
        if stage["name"] in ("screen", "test"):
            parts.append(_picture(rows, marked, methods))
        parts.append(_table(rows, best["label"]))
    return "\n".join(parts) + "\n</html>\n"


def verdict(report: Mapping[str, Any]) -> str:
    """The result in two sentences."""
    found = report["evidence"]
    best, fixed = report["recommended"], report["fixed_defaults"]
    prompts = found["prompts"]["test"]
    if best["label"] == fixed["label"]:
        return (
            f"Nothing that was measured is better than the fixed defaults ({fixed['label']}) at "
            f"their cost on {prompts} test prompts, so they are recommended."
        )
    gap = found["kl_minus_fixed_defaults"]
    return (
        f"{best['label']} is recommended: on {prompts} test prompts its KL to full prefill is "
        f"{best['kl']['mean']:.3g} nats per token, the fixed defaults' ({fixed['label']}) "
        f"{fixed['kl']['mean']:.3g}; difference {gap['mean']:.3g} ({gap['low']:.3g} to "
        f"{gap['high']:.3g}). Its answer is full prefill's on "
        f"{best['same_answer']['mean']:.0%} of them, theirs on {fixed['same_answer']['mean']:.0%}; "
        f"it takes {best['operations']:.0%} of full prefill's operations, they "
        f"{fixed['operations']:.0%}."
    )


def _basis(found: Mapping[str, Any]) -> str:
    machine = found["environment"]
    return (
        f"{found['documents']} documents; {found['questions']}; median prompt "
        f"{found['prompt_tokens_median']} tokens; {found['dtype']}, seed {found['seed']}, "
        f"{found['spent_s']} s of {found['minutes']:g} min on {machine['cpu'] or 'a CPU'}"
        f"{' with ' + machine['gpu'] if machine['gpu'] else ''}, {found['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        + (f"; commit {machine['commit'][:12]}" if machine["commit"] else "")
        + "."
    )


def _picture(rows: list[dict[str, Any]], marked: set[str], methods: list[str]) -> str:
    points = [
        Point(
            r["operations"], r["kl"]["mean"], r["kl"]["low"], r["kl"]["high"], r["label"],
            r["fusion"]["method"], r["label"] in marked,
        )
        for r in rows
    ]  # fmt: skip
    return scatter(
        points,
        methods,
        x_title="operations, share of full prefill",
        y_title="KL per token, nats",
    )


def _table(rows: list[dict[str, Any]], best: str) -> str:
    head = "".join(f"<th>{name}" for name in COLUMNS)
    body = "".join(
        f"<tr{' class=best' if r['label'] == best else ''}>"
        + "".join(f"<td>{escape(cell)}" for cell in _cells(r))
        for r in rows
    )
    return f"<div class=wide><table><tr>{head}{body}</table></div>"


def _cells(r: Mapping[str, Any]) -> list[str]:
    def with_interval(name: str, form: str) -> str:
        e = r[name]
        return f"{e['mean']:{form}} ({e['low']:{form}}–{e['high']:{form}})"

    return [
        r["label"],
        str(r["prompts"]),
        with_interval("kl", ".3f"),
        with_interval("kl_first", ".3f"),
        with_interval("agreement", ".1%"),
        f"{r['same_answer']['mean']:.0%}",
        f"{r['operations']:.1%}",
        f"{r['ttft_ratio']:.2f}",
        f"{r['bytes'] / 2**20:.1f}",
        f"{r['kept']:.0%}",
    ]


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
