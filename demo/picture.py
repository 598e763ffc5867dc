"""The demo's picture: times to first token, right answers and agreement, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demo.outcome import Figures, Outcome
from demo.report import method_name
from demo.scenario import BASELINE, Method, Scenario

COLOURS = ("#4c566a", "#d08770", "#5e81ac", "#a3be8c")


def draw(path: Path, outcomes: Sequence[Outcome], scenario: Scenario) -> None:
    """Writes a PNG; its folder is made if need be."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    times, shares = figure.subplots(1, 2)
    slowest_first = sorted(outcomes, key=lambda o: -o.answers[BASELINE].ttft)
    colours: dict[Method, str] = dict(zip(scenario.methods, COLOURS, strict=False))
    for method, colour in colours.items():
        figures = Figures.of(outcomes, method)
        label = f"{method_name(method)}: {figures.ttft * 1e3:.0f} ms, ×{figures.ratio:.2f}"
        milliseconds = [o.answers[method].ttft * 1e3 for o in slowest_first]
        times.plot(milliseconds, "o", markersize=4, color=colour, label=label)
        times.axhline(figures.ttft * 1e3, color=colour, linewidth=0.8)
    times.set_ylim(bottom=0)
    times.set_xlabel("question, slowest full prefill first")
    times.set_ylabel("time to first token, ms")
    times.legend(title="median, paired ratio", fontsize=8, title_fontsize=8)

    names = [method_name(method) for method in colours]
    rows = range(len(names))
    for offset, counted, hatch in ((-0.2, "right", ""), (0.2, "same as full prefill", "//")):
        for row, (method, colour) in zip(rows, colours.items(), strict=True):
            figures = Figures.of(outcomes, method)
            count = figures.right if counted == "right" else figures.same
            bar = shares.barh(
                row + offset, 100 * count / figures.asked, 0.36, color=colour, hatch=hatch
            )
            shares.bar_label(bar, [f" {counted} {count}/{figures.asked}"], fontsize=8)
    shares.set_yticks(list(rows), names)
    shares.invert_yaxis()
    shares.set_xlim(0, 150)
    shares.set_xticks([0, 25, 50, 75, 100])
    shares.set_xlabel("% of the questions")
    for axes in (times, shares):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{len(outcomes)} questions, {scenario.model_title}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
