"""Writes an experiment: JSON with every sample's score, and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.fidelity.results import compact
from benchmarks.quality.bench import Result
from benchmarks.quality.report.scored import Scored, Scores
from benchmarks.quality.report.tables import Compared
from tuning.environment import describe

_COSTS: dict[str, Callable[[Result], float]] = {
    "flops": lambda r: r.flops,
    "rows": lambda r: r.rows,
    "kept": lambda r: r.kept,
    "coverage": lambda r: r.coverage,
}


def write(
    folder: Path,
    name: str,
    facts: Mapping[str, Any],
    scores: Scores,
    sections: Sequence[str],
    rivals: Sequence[Compared] = (),
    *,
    pictures: Sequence[Path] = (),
) -> list[Path]:
    """Writes `<name>.json` and `<name>.md`; the environment is added to `facts`.

    Args:
        folder: where to.
        name: of the files.
        facts: about the run, with the title as `what`.
        scores: the results.
        sections: of the Markdown.
        rivals: comparisons for the JSON.
        pictures: paths of the figures.

    Returns:
        Paths of the two files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {**facts, "environment": describe(), **_record(scores)}
    record["comparisons"] = [_comparison(c) for c in rivals]
    (folder / f"{name}.json").write_text(compact(record), encoding="utf-8")
    shown = [f"![{p.stem.replace('_', ' ')}]({p.name})\n" for p in pictures]
    text = "\n".join([f"# {facts['what']}\n", *sections, *shown, provenance(record)])
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return [folder / f"{name}.json", folder / f"{name}.md", *pictures]


def _record(scores: Scores) -> dict[str, Any]:
    samples = scores.run.samples
    return {
        "tasks": scores.tasks,
        "ranked": scores.ranked,
        "samples": {
            "key": [s.key for s in samples],
            "task": [scores.tasks.index(s.task) for s in samples],
            "seed": [s.text.details.get("seed") for s in samples],
            "tokens": [s.tokens for s in samples],
        },
        "configurations": [_configuration(s, scores) for s in scores.rows],
    }


def _configuration(s: Scored, scores: Scores) -> dict[str, Any]:
    """A configuration's samples in a compact form.

    Scores of 0 and 1 are a string of digits, costs are in thousandths, and a list of equal values
    becomes that value. `seconds` are those of the timed samples.
    """
    c, timings = s.configuration, scores.run.timings
    return {
        **asdict(c),
        "by_task": {task: asdict(estimate) for task, estimate in s.by_task.items()},
        "average": asdict(s.average),
        "by_seed": s.by_seed,
        "ttft": asdict(s.ttft) if s.ttft else None,
        "scores": _scores([r.score for r in s.results]),
        "per_mille": {
            field: _column([round(1000 * of(r)) for r in s.results]) for field, of in _COSTS.items()
        },
        "seconds": {
            place: round(timings[sample.key, c.key].seconds, 4)
            for place, sample in enumerate(scores.run.samples)
            if (sample.key, c.key) in timings
        },
    }


def _scores(scores: list[float]) -> list[float] | str:
    if all(score in (0, 1) for score in scores):
        return "".join(str(int(score)) for score in scores)
    return [round(score, 4) for score in scores]


def _column(values: list[int]) -> list[int] | int:
    return values[0] if len(set(values)) == 1 else values


def _comparison(c: Compared) -> dict[str, Any]:
    return {
        "ours": c.ours.name,
        "theirs": c.theirs.name,
        **asdict(c.paired),
        "p_holm": c.p,
    }
