"""Writes a result as Markdown: what was run, one row per step, the knees, notes.

The same text goes to the console and into the result's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADINGS = (
    *("rate/s", "method", "sent", "good", "goodput/s", "TTFT ms p50", "p95", "TPOT ms p50"),
    *("E2E ms p50", "hits", "429", "503", "failed", "cut", "lag ms p99"),
)


def markdown(result: Mapping[str, Any], picture: str | None = None) -> str:
    """The report; `picture` is the name of an image file to show."""
    parts = [f"# Open-loop load: {result['model']}", _what(result), _steps(result)]
    parts += [_knees(result)] if result["knees"] else []
    parts += [f"![goodput, attainment and TTFT by offered rate]({picture})"] if picture else []
    parts += [_unloaded(result)] if result["unloaded"] else []
    parts += ["\n".join(f"- {note}" for note in result["notes"])] if result["notes"] else []
    return "\n\n".join(parts) + "\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table whose columns are also aligned as plain text."""
    cells = [[str(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    lines = [
        "| " + " | ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _what(result: Mapping[str, Any]) -> str:
    machine, pattern = result["machine"], result["pattern"]
    work = ", ".join(f"{k} {v}" for k, v in result["workload"].items() if v is not None)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"SLO: {result['slo_text']} ({result['slo_origin']}); latency counts from the intended "
        "send time.",
        f"Workload: {work}; route {result['route']}; Poisson arrivals, seed {pattern['seed']}, "
        f"{pattern['step_s']:g} s a step, the first {pattern['warmup_s']:g} s not counted, answers "
        f"cut {pattern['patience_s']:g} s after the last request.",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, load average before the start "
        f"{machine['load_average']}; Python {machine['python']}, {packages}; commit "
        f"{machine['commit'][:12]}{' with changes' if machine['uncommitted'] else ''}.",
    ]
    if result["service_environment"]:
        set_to = ", ".join(f"{k}={v}" for k, v in result["service_environment"].items())
        lines.append(f"Service settings: {set_to}.")
    return "\n".join(f"- {line}" for line in lines)


def _steps(result: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{step['rate']:.3g}",
            step["method"],
            step["sent"],
            _percent(step["slo_attainment"]) + ("" if step["valid"] else " INVALID"),
            f"{step['offered_goodput']:.2f}",
            *(_number(step[f"{key}_ms"]) for key in ("median_ttft", "p95_ttft")),
            *(_number(step[f"{key}_ms"]) for key in ("median_tpot", "median_e2el")),
            _percent(step["token_hit_rate"]),
            step["rejected_429"],
            step["overloaded_503"],
            step["errors"],
            step["unfinished"],
            _number(step["lag_ms"]["p99"]),
        ]
        for step in sorted(result["steps"], key=lambda step: step["rate"])
    ]
    invalid = [step["why_invalid"] for step in result["steps"] if not step["valid"]]
    warning = f"\n\n**{len(invalid)} steps are no measurements:** {invalid[0]}." if invalid else ""
    return table(HEADINGS, rows) + warning


def _knees(result: Mapping[str, Any]) -> str:
    rows = []
    for method, knee in result["knees"].items():
        further = knee["further_right"]
        times = "" if further is None else f"{'≥ ' if knee['at_least'] else ''}{further:.2f}"
        crossing = "not reached" if knee["crossing"] is None else f"{knee['crossing']:.2f}"
        rate = "below the lowest" if knee["rate"] is None else f"{knee['rate']:.3g}"
        rows.append([method, rate, crossing, times])
    target, base = result["attainment"], result["baseline"]
    headings = (
        "method",
        f"highest rate with {target:.0%} good",
        f"crosses {target:.0%} at",
        f"times {base}'s",
    )
    return "Knees (crossings are interpolated between two steps):\n\n" + table(headings, rows)


def _unloaded(result: Mapping[str, Any]) -> str:
    rows = []
    for method, before in result["unloaded"].items():
        after = result["unloaded_after"][method]
        times = [1000 * run[key] for key in ("ttft_s", "e2e_s") for run in (before, after)]
        rows.append([method, *(f"{ms:.0f}" for ms in times), f"{before['prompt_tokens']:.0f}"])
    headings = ("method", "TTFT ms before", "after", "E2E ms before", "after", "prompt tokens")
    return "One request at a time, before and after the steps (medians):\n\n" + table(
        headings, rows
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
