"""The chart of README: time to first token beside vLLM, and what stays of full prefill's answers.

    python -m benchmarks.peers.chart [--out docs/images/ttft-and-agreement.png]

It draws what two committed pages of results say, of one model on one machine: the row "the same
documents in a new order" of peers/peers.md, and the agreement in real/nq_third.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path("benchmarks/results")
REORDERED = "the same documents in a new order"
AGREE = "agree"  # answer tokens of full prefill that are the most likely ones here, too
# What the bars are called; the column of peers.md; the row of nq_third.md. None: no approximation,
# so there is nothing to measure.
BARS = (
    ("vLLM, prefix caching", "vLLM", None),
    ("kvstitch, full prefill", "kvstitch vanilla", None),
    ("question_scout (default),\nbehind primers", "kvstitch question_scout",
     "question_scout r=0.15 primer-g3/32"),
    ("pie, behind primers", "kvstitch pie", "pie primer-g3/32"),
)  # fmt: skip
COLOURS = ("#9aa3ad", "#6c8ebf", "#2f6db5", "#7fb2e5")


def cells(page: Path, row: str, columns_of: str) -> dict[str, str]:
    """Return a row of the first table in `page` that has both the column and the row, by column.

    Raises:
        LookupError: There is none.
    """
    header: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        found = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = found
        elif found[0] == row and columns_of in header:
            return dict(zip(header, found, strict=True))
    raise LookupError(f"{page} has no row {row!r} with a column {columns_of!r}")


def number(text: str) -> float:
    """Return the value that stands before its interval."""
    return float(text.split("[")[0].strip().rstrip("%").strip())


def bars() -> list[tuple[str, float, float | None]]:
    """Return of each bar its label, TTFT over vLLM's, and percent of agreement with full prefill.

    The agreement is None for what does not approximate.
    """
    times = cells(RESULTS / "peers" / "peers.md", REORDERED, "vLLM")
    out = []
    for label, column, row in BARS:
        agreement = None
        if row is not None:
            agreement = number(cells(RESULTS / "real" / "nq_third.md", row, AGREE)[AGREE])
        out.append((label, number(times[column]), agreement))
    return out


def draw(path: Path) -> None:
    found = bars()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.5), sharey=True)
    labels = [label for label, _, _ in found]
    panels = (
        (left, [t for _, t, _ in found], "time to first token, over vLLM's", "{:.2f}"),
        (right, [a for _, _, a in found], "full prefill's answer tokens kept", "{:.0f} %"),
    )
    for axes, values, title, form in panels:
        lengths = [100.0 if value is None else value for value in values]
        texts = ["exact" if value is None else form.format(value) for value in values]
        drawn = axes.barh(labels, lengths, color=COLOURS, height=0.62)
        axes.bar_label(drawn, texts, padding=3, fontsize=9)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlim(0, max(lengths) * 1.15)
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0, labelsize=9)
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
    left.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=160)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.chart", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/ttft-and-agreement.png"))
    draw(parser.parse_args(given).out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
