"""Writes the result of a run: JSON with raw samples, Markdown, pictures.

Floats of samples have the five significant digits of the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from benchmarks.fidelity.report import plots, table
from benchmarks.fidelity.report.summary import Duel, Summary, by_task, duels
from tuning.environment import describe
from tuning.prompts import Prompt
from tuning.statistics import Bootstrap

_SAMPLED = (
    "kl_first", "kl_next", "agree_first", "agree_next", "right", "rows", "hit", "flops", "bytes",
    "seconds", "map_l2",
)  # fmt: skip
"""Fields of the records that go into the JSON, besides means of the errors by layer."""


def write(
    folder: Path,
    name: str,
    facts: Mapping[str, Any],
    prompts: Sequence[Prompt],
    summaries: Sequence[Summary],
    bootstrap: Bootstrap,
    *,
    depths: Sequence[int],
    base: Summary | None = None,
) -> list[Path]:
    """Writes `<name>.json`, `<name>.md` and `<name>_*.png` to `folder`.

    Args:
        folder: where to.
        name: of the files.
        facts: about the run; the environment is added.
        prompts: that were measured.
        summaries: of the configurations.
        bootstrap: for intervals.
        depths: layers of the attention maps.
        base: what all are compared with; None for the rivals of each.

    Returns:
        Paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [p.task for p in prompts]
    against = duels(summaries, bootstrap, base)
    record = {
        **facts,
        "environment": describe(),
        "attention_depths": list(depths),
        "prompts": [
            {"key": p.key, "task": p.task, "tokens": p.tokens, "documents": len(p.documents)}
            for p in prompts
        ],
        "configurations": [_configuration(s, tasks) for s in summaries],
        "comparisons": [_comparison(d) for fought in against.values() for d in fought],
    }
    (folder / f"{name}.json").write_text(compact(record), encoding="utf-8")
    text = table.report(str(facts["what"]), summaries, tasks, against)
    (folder / f"{name}.md").write_text(text + provenance(record), encoding="utf-8")
    if base is None:
        pictures = plots.draw(summaries, folder, prefix=f"{name}_", depths=depths)
    else:
        pictures = [plots.effects(against[base.name], folder / f"{name}_effects.png")]
    return [folder / f"{name}.json", folder / f"{name}.md", *pictures]


def _configuration(s: Summary, tasks: Sequence[str]) -> dict[str, Any]:
    c = s.configuration
    return {
        "name": s.name,
        "curve": c.curve,
        "method": f"{type(c.method).__module__}: {c.method!r}",
        "prefix_mode": c.prefix_mode,
        "codec": c.codec,
        "figures": {name: asdict(estimate) for name, estimate in s.figures.items()},
        "kl_first_median": s.kl_median,
        "kl_first_by_task": by_task(s, tasks),
        "map_l2": s.map_l2,
        "k_error_by_layer": s.k_error,
        "v_error_by_layer": s.v_error,
        "samples": {field: [getattr(r, field) for r in s.records] for field in _SAMPLED},
    }


def _comparison(d: Duel) -> dict[str, Any]:
    return {
        "configuration": d.ours.name,
        "rival": d.rival.name,
        "rival_is_cheaper": d.cheaper,
        "kl_first": asdict(d.first),
        "kl_answer": asdict(d.answer),
    }


def compact(record: Mapping[str, Any]) -> str:
    """JSON with one line for every item of top-level lists; NaN becomes null."""
    lines = []
    for name, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n  ".join(_line(item) for item in value)
            lines.append(f" {json.dumps(name)}: [\n  {inner}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {_line(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
