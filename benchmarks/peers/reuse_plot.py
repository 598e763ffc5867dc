"""Draws TTFT over the share of a prompt's documents that were known beforehand."""

from __future__ import annotations

import io

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt

from benchmarks.peers.results import Result
from benchmarks.peers.workloads import REUSE
from loadtest.measurement.percentiles import percentile

NAME = "reuse.png"
Curve = dict[float, list[float]]


def reuse_plot(result: Result) -> bytes | None:
    """A PNG with a curve per server, medians and quartiles; None: `reuse` was not asked."""
    found = curves(result)
    if not found:
        return None
    _, axes = plt.subplots(figsize=(7.5, 4.5))
    for name, curve in found.items():
        shares = [100 * share for share in curve]
        low, middle, high = ([percentile(s, q) for s in curve.values()] for q in (25, 50, 75))
        [line] = axes.plot(shares, middle, marker="o", markersize=4, label=name)
        axes.fill_between(shares, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(
        xlabel="% of the prompt's documents known beforehand", ylabel="TTFT, s", ylim=(0, None)
    )
    axes.set_title("TTFT, one prompt at a time: medians and quartiles", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    data = io.BytesIO()
    # No software version in the file, so that the same figures give the same bytes.
    plt.savefig(data, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close("all")
    return data.getvalue()


def curves(result: Result) -> dict[str, Curve]:
    """By server and share: TTFT of the prompts, in seconds."""
    out: dict[str, Curve] = {}
    for name in result.names:
        for workload, share in REUSE.items():
            samples = result.of(name, workload).values()
            if seconds := [s.ttft_s for s in samples if s.ttft_s is not None]:
                out.setdefault(name, {})[share] = seconds
    return out
