"""Prompts of a fidelity run, and figures over them: intervals, pairs, rivals, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.prompts import of_file, of_tasks
from benchmarks.fidelity.report import table
from benchmarks.fidelity.report.records import Record
from benchmarks.fidelity.report.summary import Summary, duels
from service.errors import InvalidRequest
from service.settings import demo_model
from service.worker.api import Pie
from tuning.prompts import Prompt
from tuning.statistics import Bootstrap


def test_more_samples_keep_the_first_ones() -> None:
    def drawn(samples: int, seed: int = 1, **changes: Any) -> list[Prompt]:
        names = ["single", "hop"]
        return of_tasks(demo_model(), names, samples=samples, chunk_tokens=48, seed=seed, **changes)

    assert drawn(3)[:4] == drawn(2)
    assert drawn(2) != drawn(2, seed=2)
    assert drawn(2) != drawn(2, held_out=False)
    for prompt in drawn(2):
        assert all(len(d) == 48 for d in prompt.documents[:-1])
        assert prompt.answers


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    line = {"system": "S\n", "documents": ["one\n", ""], "question": "Question:", "answers": ["x"]}
    path.write_text(json.dumps(line) + "\n\n" + json.dumps({**line, "task": "t"}) + "\n")
    first, second = of_file(demo_model(), path)
    assert (first.task, second.task) == ("mine", "t")
    assert first.system[0] == 1  # BOS
    assert first.documents[1] == ()
    path.write_text(json.dumps(line) + "\n" + json.dumps({"question": "?"}) + "\n")
    with pytest.raises(InvalidRequest, match="line 2"):
        of_file(demo_model(), path)


# -- figures over prompts -------------------------------------------------------------------------


def a_record(**changes: Any) -> Record:
    facts: dict[str, Any] = {
        "prompt": "p", "configuration": "c", "tokens": 100, "kl_first": 0.5, "agree_first": 1.0,
        "next_count": 2, "kl_next": 0.2, "agree_next": 0.5, "right": True, "rows": 15, "hit": 0.4,
        "flops": 0.3, "bytes": 10, "seconds": 0.1, "map_l2": [0.1, 0.2], "k_error": [0.0, 0.5],
        "v_error": [0.0, 0.6],
    }  # fmt: skip
    return Record(**{**facts, **changes})


def a_summary(family: str, cost: float, kl: Sequence[float], **changes: Any) -> Summary:
    configuration = Configuration(family, Pie(), f"at {cost:g}", **changes)
    records = [a_record(flops=cost, kl_first=value) for value in kl]
    return Summary.of(configuration, records, Bootstrap(len(records)))


def test_bootstrap_of_a_constant_and_of_what_is_missing() -> None:
    bootstrap = Bootstrap(4)
    same = bootstrap.mean([2.0, 2.0, None, 2.0])
    assert (same.mean, same.low, same.high) == (2.0, 2.0, 2.0)
    assert math.isnan(bootstrap.mean([None] * 4).mean)
    spread = Bootstrap(200, seed=3).mean([0.0, 1.0] * 100)
    # Standard error √(0.25 / 200) = 0.0354; 95 % of a normal is 1.96 of them.
    assert spread.mean == 0.5
    assert spread.low == pytest.approx(0.5 - 0.0693, abs=0.01)
    assert spread.high == pytest.approx(0.5 + 0.0693, abs=0.01)


def test_means_and_pairs_by_hand() -> None:
    summary = a_summary("pie", 0.1, [0.2, 0.4])
    assert summary.kl == pytest.approx(0.3)
    assert summary.figures["rows"].mean == 0.15
    # (first + 2 · 0.2) / 3 of each prompt
    assert summary.figures["kl_answer"].mean == pytest.approx((0.6 / 3 + 0.8 / 3) / 2)
    ours, rival = a_summary("mine", 0.2, [1, 2, 3, 4]), a_summary("a3", 0.21, [2, 2, 5, 3])
    [fight] = duels([ours, rival], Bootstrap(4), None)["a3"][:1]
    assert fight.ours is ours and fight.rival is rival
    assert fight.first.difference.mean == pytest.approx(-0.5)
    assert fight.first.won == pytest.approx(2 / 3)


def test_the_rival_costs_as_much_or_more() -> None:
    ours = a_summary("mine", 0.20, [0.5] * 3)
    cheap = a_summary("a3", 0.10, [0.01] * 3)
    equal = a_summary("a3", 0.199, [0.4] * 3, prefix_mode="none")
    better = a_summary("a3", 0.25, [0.3] * 3)
    far = a_summary("a3", 0.60, [0.001] * 3)
    coded = a_summary("a3", 0.20, [0.0] * 3, codec="int8")

    def rival(*others: Summary) -> Summary:
        return duels([ours, *others], Bootstrap(3), None)["a3"][0].rival

    assert rival(cheap, equal, better, far, coded) is better
    assert rival(cheap, equal, far) is equal
    assert rival(cheap, far) is far
    only_cheap = duels([ours, cheap], Bootstrap(3), None)["a3"][0]
    assert only_cheap.rival is cheap and only_cheap.cheaper


def test_a_table_row_for_every_configuration() -> None:
    summaries = [a_summary("a3", c / 10, [0.1 * c, 0.3]) for c in range(1, 5)]
    rows = [line for line in table.quality(summaries).splitlines() if line.startswith("| a3")]
    assert len(rows) == 4
    against = duels(summaries, Bootstrap(2), None)
    text = table.report("title", summaries, ["x", "y"], against)
    assert "| a3 at 0.1 system | 15.0 % | 10.0 % | 0.2 [0.1, 0.3] | 0.2 |" in text
    tasks = table.tasks_table(summaries, ["x", "y"]).splitlines()
    assert tasks[0] == "| configuration | x | y |"
    assert tasks[2] == "| a3 at 0.1 system | 0.1 | 0.3 |"
