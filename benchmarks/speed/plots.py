"""Pictures of the results, from the records with one number of threads."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.speed.engines import FULL
from benchmarks.speed.records import Record

STAGES = ("queue", "load", "prefill", "evict", "first_token")
Taken = Mapping[str, Sequence[float]]


def draw(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Draws every picture for which there are records."""
    made = []
    for threads in sorted({record["threads"] for record in records}):
        lines = {r["line"]: r for r in records if r["threads"] == threads}
        for name, picture in (
            ("ttft_context", _ttft_context),
            ("ttft_ratio", _ttft_ratio),
            ("ttft_tier", _ttft_tier),
            ("tpot", _tpot),
            ("stages", _stages),
        ):
            _, axes = plt.subplots(figsize=(7.5, 4.5))
            if picture(axes, lines):
                made.append(_save(folder / f"{name}_{threads}.png"))
            plt.close("all")
    return made


def _ttft_context(axes: Axes, lines: Mapping[str, Record]) -> bool:
    """TTFT by method: at the sweep's lengths, and at those of two other lines."""
    if "ttft_sweep" not in lines:
        return False
    by_length: dict[int, Taken] = {
        int(n): taken for n, taken in lines["ttft_sweep"]["samples"]["contexts"].items()
    }
    for line, size in (("ttft", "tokens"), ("long_prompt", "long_tokens")):
        if line in lines:
            seconds = lines[line]["samples"]["seconds"]
            taken = {name: clocks["wall"] for name, clocks in seconds.items()}
            by_length[lines[line]["shape"][size]] = taken
    names = dict.fromkeys(name for taken in by_length.values() for name in taken)
    for name in names:
        points = sorted((n, taken[name]) for n, taken in by_length.items() if name in taken)
        _curve(axes, points, name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of context", ylabel="TTFT, s")
    return _finish(axes, "TTFT against context length, chunks in memory")


def _ttft_ratio(axes: Axes, lines: Mapping[str, Record]) -> bool:
    if "ttft_sweep" not in lines:
        return False
    taken: Taken = lines["ttft_sweep"]["samples"]["ratios"]
    for method in dict.fromkeys(name.split()[0] for name in taken if name != FULL):
        points = [
            (float(name.split()[1]), [a / b for a, b in zip(taken[name], taken[FULL], strict=True)])
            for name in taken
            if name.split()[0] == method
        ]
        _curve(axes, points, method)
    axes.set(xlabel="ratio", ylabel="TTFT over full prefill")
    return _finish(axes, "TTFT against the share of rows computed")


def _ttft_tier(axes: Axes, lines: Mapping[str, Record]) -> bool:
    if "ttft_sweep" not in lines:
        return False
    taken: Taken = lines["ttft_sweep"]["samples"]["tiers"]
    medians = [statistics.median(values) for values in taken.values()]
    errors = [
        [m - min(v) for m, v in zip(medians, taken.values(), strict=True)],
        [max(v) - m for m, v in zip(medians, taken.values(), strict=True)],
    ]
    axes.bar(list(taken), medians, yerr=errors, capsize=4)
    axes.set(ylabel="TTFT of A3, s")
    return _finish(axes, "TTFT by the tier that holds the chunks", legend=False)


def _tpot(axes: Axes, lines: Mapping[str, Record]) -> bool:
    """TPOT: a curve for each budget."""
    if "tpot_sweep" not in lines:
        return False
    taken: Taken = lines["tpot_sweep"]["samples"]["tpot_s"]
    for budget in dict.fromkeys(name.split()[1] for name in taken):
        points = [
            (int(name.split()[0]), [1000 * s for s in taken[name]])
            for name in taken
            if name.split()[1] == budget
        ]
        _curve(axes, points, f"{float(budget):.3g} of the KV kept")
    axes.set(xlabel="sequences decoded together", ylabel="TPOT, ms", ylim=(0, None))
    return _finish(axes, "TPOT against batch and eviction budget")


def _stages(axes: Axes, lines: Mapping[str, Record]) -> bool:
    """What TTFT consists of: a bar for each method, divided into stages."""
    bars: dict[str, Mapping[str, float]] = {}
    if "ttft" in lines:
        bars |= {f"{m}, memory": s for m, s in lines["ttft"]["samples"]["stages"].items()}
    if "loading" in lines:
        for tier, runs in lines["loading"]["samples"]["runs"].items():
            stages = [run["stages"] for run in runs]
            bars[f"a3 r=0.15, {tier}"] = {
                name: statistics.median(s.get(name, 0.0) for s in stages) for name in STAGES
            }
    if not bars:
        return False
    names = list(bars)[::-1]
    left = [0.0] * len(names)
    for stage in STAGES:
        widths = [bars[name].get(stage, 0.0) for name in names]
        axes.barh(names, widths, left=left, label=stage)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlabel="seconds")
    return _finish(axes, "Stages of the time to the first token")


def _curve(axes: Axes, points: Sequence[tuple[float, Sequence[float]]], name: str) -> None:
    medians = [statistics.median(values) for _, values in points]
    low = [m - min(values) for m, (_, values) in zip(medians, points, strict=True)]
    high = [max(values) - m for m, (_, values) in zip(medians, points, strict=True)]
    at: Any = [x for x, _ in points]
    axes.errorbar(at, medians, yerr=[low, high], label=name, marker="o", markersize=4, capsize=2)


def _finish(axes: Axes, title: str, *, legend: bool = True) -> bool:
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)
    return True


def _save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # No software version in the file, so that the same figures give the same bytes.
    plt.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    return path
