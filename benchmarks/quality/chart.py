"""Draws what each method keeps of full prefill's answers, over what its first token costs.

    python -m benchmarks.quality.chart --mode primer-g3/32 --out docs/images/quality.png \\
        "SmolLM2-135M=nq_135m.json" "Qwen2.5-Coder-1.5B=nq_1b5.json"

Reads the JSON files of `benchmarks.quality.table`, one a model. Every method is a line from
PIE, which recomputes nothing, over its ratios; PIE behind the system prompt is a point beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

COLOURS = {
    "pie": "tab:brown", "question_scout": "tab:red", "infoflow": "tab:purple",
    "cacheblend": "tab:orange", "a3": "tab:blue", "legolink": "tab:green",
    "prophetkv": "tab:pink", "fusionrag": "tab:olive", "qcfuse": "tab:cyan",
    "agentkvshift": "tab:gray",
}  # fmt: skip
PANELS = {
    "same": "the same answer, letter by letter",
    "right_of_full": "right where full prefill is",
}
Point = tuple[float, float]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.chart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", help="MODEL=FILE.json")
    parser.add_argument("--mode", default="primer-g3/32", help="prefix mode of the lines")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    tables = [table.partition("=") for table in args.tables]
    figure, axes = plt.subplots(
        len(PANELS), len(tables), figsize=(3.6 * len(tables) + 1, 6.4),
        sharex=True, sharey="row", squeeze=False,
    )  # fmt: skip
    for (model, _, file), column in zip(tables, axes.T, strict=True):
        record = json.loads(Path(file).read_text(encoding="utf-8"))
        column[0].set_title(f"{model}, {len(record['prompts'])} prompts", fontsize=10)
        for name, panel in zip(PANELS, column, strict=True):
            _draw(panel, record["results"], name, args.mode)
    for panel, text in zip(axes[:, 0], PANELS.values(), strict=True):
        panel.set_ylabel(text)
    for panel in axes[-1]:
        panel.set_xlabel("seconds of the prefill over full prefill's")
    handles = {line.get_label(): line for panel in axes.flat for line in panel.get_lines()}
    named = {label: line for label, line in handles.items() if not str(label).startswith("_")}
    figure.legend(
        list(named.values()), list(named), loc="lower center", ncols=5, fontsize=8, frameon=False
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    # No software version in the file, so that the same figures give the same bytes.
    figure.savefig(args.out, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return 0


def lines(results: Sequence[dict[str, Any]], column: str, mode: str) -> dict[str, list[Point]]:
    """Each method's points `(seconds, share)` in a prefix mode, the cheapest first.

    A line begins at PIE in that mode, which is every method with a ratio of 0.
    """
    found: dict[str, list[Point]] = {}
    for result in results:
        name, samples = result["name"], result["samples"]
        if not name.endswith(f" {mode}") or None in samples["seconds"]:
            continue
        found.setdefault(name.split()[0], []).append(
            (_mean(samples["seconds"]), _mean(samples[column]))
        )
    start = found.get("pie", [])
    return {name: sorted(points if name == "pie" else start + points)
            for name, points in found.items()}  # fmt: skip


def _draw(panel: Axes, results: Sequence[dict[str, Any]], column: str, mode: str) -> None:
    for name, points in lines(results, column, mode).items():
        if name != "pie":
            ours = name == "question_scout"
            seconds, shares = zip(*points, strict=True)
            panel.plot(
                seconds, shares, "o-", label=name, color=COLOURS.get(name, "black"), markersize=4,
                linewidth=2.2 if ours else 1, zorder=3 if ours else 2,
            )  # fmt: skip
    for which, marker in ((mode, "s"), ("system", "D")):
        for x, y in lines(results, column, which).get("pie", []):
            label = f"pie, {'primer' if which == mode else which}"
            panel.plot(x, y, marker, label=label, color=COLOURS["pie"], zorder=4, markersize=6)
    panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    panel.set_ylim(0, 1.05)
    panel.grid(alpha=0.3)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


if __name__ == "__main__":
    sys.exit(main())
