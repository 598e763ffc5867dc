"""Verdicts, turns, and which record may be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed import records, report
from benchmarks.speed.outcome import Figure, Outcome, at_least, at_most
from benchmarks.speed.paired import Paired, Taken, run_paired
from benchmarks.speed.setup import TINY, Setup

SETUP = Setup(TINY, threads=1, repetitions=3)


@pytest.mark.parametrize(
    ("samples", "target", "verdict"),
    [
        ([1.0, 2.0, 9.0], at_most(2.0), "met"),
        ([1.0, 2.1, 2.2], at_most(2.0), "missed"),
        ([1.0, 2.0, 9.0], at_least(2.0), "met"),
        ([1.0, 1.9, 9.0], at_least(2.0), "missed"),
        ([1.0], None, ""),
    ],
)
def test_the_median_decides(samples, target, verdict) -> None:
    assert Figure("x", samples, target).verdict == verdict


def test_ways_take_turns_and_the_first_round_is_thrown_away() -> None:
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in "ab"}
    before = {"b": lambda: order.append("prepare b")}
    paired = run_paired(ways, 2, before=before)
    timed = [step for step in order if step != "prepare b"]
    assert timed == ["b", "a", "a", "b", "b", "a"]
    assert all(order[i - 1] == "prepare b" for i, step in enumerate(order) if step == "b")
    assert [len(taken.wall) for taken in paired.taken.values()] == [2, 2]
    order.clear()
    run_paired(ways, 2, warm_up=False)
    assert order == ["a", "b", "b", "a"]


def test_a_ratio_is_of_the_same_repetition() -> None:
    paired = Paired({"a": Taken([2.0, 9.0], [1.0, 1.0]), "b": Taken([4.0, 3.0], [2.0, 4.0])})
    figure = paired.figure("x", "a", "b", scale=10)
    assert figure.samples == [5.0, 30.0] and figure.cpu == [5.0, 2.5]


def test_a_record_is_kept_for_the_same_circumstances_only(tmp_path: Path) -> None:
    outcome = Outcome([Figure("x", [1.0, 2.0, 3.0], at_most(2))], {"seconds": [1, 2, 3]}, ["why"])
    records.save(tmp_path, records.of("ttft", SETUP, outcome, 1.5))
    kept = records.read(tmp_path, "ttft", 1)
    assert kept is not None and kept["samples"] == {"seconds": [1, 2, 3]}
    head = records.head_of("ttft", SETUP)
    for one in (kept, head):
        one["environment"] = dict(one["environment"], uncommitted=False)
    assert records.same_run(kept, head)
    other = json.loads(json.dumps(head))
    other["environment"]["commit"] = "another"
    assert not records.same_run(kept, other)
    assert not records.same_run(kept, head | {"repetitions": 4})
    changed = head["environment"] | {"uncommitted": True}
    assert not records.same_run(kept | {"environment": changed}, head | {"environment": changed})
    assert records.read(tmp_path, "ttft", 2) is None


def test_the_page_has_targets_verdicts_and_notes(tmp_path: Path) -> None:
    figures = [Figure("slow", [3.0], at_most(2), "ms"), Figure("shown only", [1.0])]
    record = records.of("ttft", SETUP, Outcome(figures, notes=["a peer is missing"]), 1.0)
    report.write(tmp_path / "speed.md", [record])
    page = (tmp_path / "speed.md").read_text()
    assert "| slow | 1 | 3 ms | 3 to 3 |  | ≤ 2 | missed |" in page
    targets, others = page.split("## Without a target")
    assert "shown only" not in targets and "shown only" in others
    assert "ttft: a peer is missing" in page
