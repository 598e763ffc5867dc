"""Writes the answers as two tables like Tables 3 and 4 of SamKV's paper, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.fidelity.results import compact
from benchmarks.quality.answering import Answer
from benchmarks.quality.compared import Ablated, Compared
from tuning.environment import describe
from tuning.prompts import Prompt
from tuning.statistics import Bootstrap, Estimate

LEGEND = """\
F1: words in common with the expected answer; exact: the answer is the expected one. Mean over
prompts × 100 [95 % bootstrap interval]; average: over all prompts, in brackets behind it the
difference from Recompute on the same prompts. An interval over equal values is a point, however few
they are. Kept: document tokens whose KV a layer holds
(Multi-InfLLM holds all; what the question's last row sees). Recomputed: document tokens that some
layer computes anew, or the last layer where rows are dropped on the way.
"""
FIGURES: dict[str, Callable[[Answer], float]] = {"F1": lambda a: a.f1, "exact": lambda a: a.right}


@dataclass(frozen=True)
class Scores:
    """The numbers of one method.

    For each figure: estimates by task, over all prompts, and of the difference from the baseline
    over all prompts.
    """

    compared: Compared
    answers: Sequence[Answer]
    by_task: dict[str, dict[str, Estimate]]
    average: dict[str, Estimate]
    difference: dict[str, Estimate]

    @classmethod
    def of(
        cls,
        compared: Compared,
        answers: Sequence[Answer],
        baseline: Sequence[Answer],
        tasks: Sequence[str],
        seed: int,
    ) -> Scores:
        """Computes the numbers; `tasks` has the task of every answer."""
        everything = Bootstrap(len(answers), seed=seed)
        by_task: dict[str, dict[str, Estimate]] = {}
        average, difference = {}, {}
        for name, figure in FIGURES.items():
            values, base = [float(figure(a)) for a in answers], [float(figure(a)) for a in baseline]
            by_task[name] = {}
            for task in dict.fromkeys(tasks):
                own = [v for v, of in zip(values, tasks, strict=True) if of == task]
                by_task[name][task] = Bootstrap(len(own), seed=seed).mean(own)
            average[name] = everything.mean(values)
            difference[name] = everything.mean([a - b for a, b in zip(values, base, strict=True)])
        return cls(compared, answers, by_task, average, difference)

    @property
    def kept(self) -> float:
        return sum(a.kept for a in self.answers) / len(self.answers)

    @property
    def recomputed(self) -> float:
        return sum(a.recomputed for a in self.answers) / len(self.answers)


def report(
    title: str, about: str, methods: Sequence[Scores], ablated: Sequence[tuple[Ablated, Scores]]
) -> str:
    parts = [f"# {title}\n", about, LEGEND]
    for name in FIGURES:
        parts += [f"## Methods: {name}\n", methods_table(methods, name)]
    for name in FIGURES:
        parts += [f"## Parts of SamKV: {name}\n", ablation_table(ablated, name)]
    return "\n".join(parts)


def methods_table(scores: Sequence[Scores], figure: str) -> str:
    """Table 3: a row for each method, a column for each task."""
    tasks = list(scores[0].by_task[figure])
    rows = [[s.compared.name, *_cells(s, figure)] for s in scores]
    return table(["method", *tasks, "average", "kept", "recomputed"], rows)


def ablation_table(scores: Sequence[tuple[Ablated, Scores]], figure: str) -> str:
    """Table 4: which parts are used, then columns as in the first table."""
    rows = []
    for number, (of, s) in enumerate(scores, start=1):
        parts = [_mark(part) for part in (of.selection, of.bias, of.recompute)]
        rows.append([str(number), s.compared.name, *parts, of.note, *_cells(s, figure)])
    tasks = list(scores[0][1].by_task[figure])
    head = ["#", "method", "selection", "bias", "recompute", "but", *tasks]
    return table([*head, "average", "kept", "recomputed"], rows)


def _cells(s: Scores, figure: str) -> list[str]:
    """Cells of all tasks, then average, kept share, recomputed share."""
    average = with_interval(s.average[figure], _points)
    change = f"{100 * s.difference[figure].mean:+.1f}"
    return [
        *(with_interval(estimate, _points) for estimate in s.by_task[figure].values()),
        f"{average} ({change})",
        percent(s.kept),
        percent(s.recomputed),
    ]


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _mark(part: bool | None) -> str:
    return "–" if part is None else "✓" if part else "✗"


def write(
    folder: Path,
    name: str,
    facts: Mapping[str, Any],
    about: str,
    *,
    prompts: Sequence[Prompt],
    methods: Sequence[Scores],
    ablated: Sequence[tuple[Ablated, Scores]],
) -> list[Path]:
    """Writes `<name>.json` and `<name>.md`, environment included; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        **facts,
        "environment": describe(),
        "prompts": [
            {"key": p.key, "task": p.task, "tokens": p.tokens,
             "documents": list(map(len, p.documents)), "answers": list(p.answers)}
            for p in prompts
        ],
        "methods": [_scores(s) for s in methods],
        "ablation": [
            {"selection": of.selection, "bias": of.bias, "recompute": of.recompute,
             "but": of.note, **_scores(s)}
            for of, s in ablated
        ],
    }  # fmt: skip
    (folder / f"{name}.json").write_text(compact(record), encoding="utf-8")
    text = report(str(facts["what"]), about, methods, ablated)
    (folder / f"{name}.md").write_text(text + provenance(record), encoding="utf-8")
    return [folder / f"{name}.json", folder / f"{name}.md"]


def _scores(s: Scores) -> dict[str, Any]:
    kind = type(s.compared.method)
    fields = ("text", "right", "f1", "kept", "recomputed", "seconds")
    return {
        "name": s.compared.name,
        "method": f"{kind.__module__}: {s.compared.method!r}",
        "prefix_mode": s.compared.prefix_mode,
        "kept": s.kept,
        "recomputed": s.recomputed,
        "average": {name: asdict(e) for name, e in s.average.items()},
        "difference": {name: asdict(e) for name, e in s.difference.items()},
        "by_task": {
            name: {task: asdict(e) for task, e in tasks.items()}
            for name, tasks in s.by_task.items()
        },
        "samples": {field: [getattr(a, field) for a in s.answers] for field in fields},
    }
