"""The report's figures against hand computation, from made-up answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.quality import experiments
from benchmarks.quality.bench import Result, Timing
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.report import (
    codecs,
    document,
    eviction,
    fusion,
    index,
    needle,
    order,
)
from benchmarks.quality.report.plan import EXPERIMENTS, Setting
from benchmarks.quality.report.scored import Scores, Spread
from benchmarks.quality.run import Run
from benchmarks.quality.sample import Sample, TextSample
from tuning.statistics import Estimate

SETTING = Setting("none", 48, (0.25, 0.5), ("snapkv", "kvec"))


def sample(task: str, number: int, seed: int = 1, **details: float) -> Sample:
    text = TextSample(
        suite="multidoc", task=task, number=number, instruction="", context="", question="",
        references=("x y",), metric="exact", answer_tokens=4, details={"seed": seed, **details},
    )  # fmt: skip
    return Sample(text, (1,), ((2, 3), (4,)), (5, number, seed, *map(int, details.values())))


SAMPLES = [sample(task, n, seed) for n in range(2) for seed in (1, 2) for task in ("a", "b", "c")]


def run(
    configurations: Sequence[Configuration],
    given: Mapping[str, Mapping[str, Sequence[float]]],
    seconds: Mapping[str, Sequence[float]] | None = None,
    samples: Sequence[Sample] = SAMPLES,
) -> Run:
    """`given`: scores by configuration and task, samples in order; others are 0."""
    results, timings = {}, {}
    for c in configurations:
        left = {task: list(scores) for task, scores in given.get(c.name, {}).items()}
        for place, s in enumerate(samples):
            score = left[s.task].pop(0) if s.task in left else 0.0
            results[s.key, c.key] = Result(
                s.key, c.key, "x", score, s.tokens, 0.1 * (1 + place % 3), 0.2, 0.5, 0.75
            )
            if seconds and place < len(seconds.get(c.name, ())):
                timings[s.key, c.key] = Timing(s.key, c.key, seconds[c.name][place])
    return Run(samples, results, timings)


CONFIGURATIONS = experiments.fusion("none", 48, [0.15])
GIVEN = {
    "full prefill": {"a": [1, 1, 1, 1], "b": [1, 1, 1, 1], "c": [1, 0, 0, 0]},
    "a3 r=0.15": {"a": [1, 1, 1, 0], "b": [1, 1, 0, 0], "c": [1, 1, 1, 1]},
    "pie": {"a": [1, 0, 0, 0], "b": [0, 0, 0, 0]},
    "cacheblend r=0.15": {"a": [1, 1, 1, 0], "b": [1, 0, 0, 0]},
}


@pytest.fixture(scope="module")
def scores() -> Scores:
    seconds = {c.name: [0.1, 0.2, 0.4] for c in CONFIGURATIONS}
    seconds["full prefill"] = [1.0, 1.0, 1.0]
    return Scores(run(CONFIGURATIONS, GIVEN, seconds), CONFIGURATIONS, ranked_from=0.8)


# -- figures --------------------------------------------------------------------------------------


def test_ranked_tasks_make_the_average(scores: Scores) -> None:
    """Task c: full prefill is right once in four."""
    assert scores.ranked == ["a", "b"]
    assert scores.learnt
    a3 = scores.named("a3 r=0.15")
    assert a3 is not None
    assert a3.by_task["c"] == Estimate(1, 1, 1)
    assert a3.by_task["a"].mean == 0.75
    assert a3.average.mean == pytest.approx((3 / 4 + 2 / 4) / 2)
    assert a3.average.low < a3.average.mean < a3.average.high
    # Seeds take turns: of task a, seed 1 has samples 1 and 3, seed 2 has 2 and 4.
    assert a3.by_seed == {"1": (2 / 2 + 1 / 2) / 2, "2": (1 / 2 + 1 / 2) / 2}
    assert (a3.rows, a3.kept, a3.coverage) == pytest.approx((0.2, 0.5, 0.75))


def test_costs(scores: Scores) -> None:
    """FLOPs by place are 0.1, 0.2, 0.3, as tasks take turns a, b, c."""
    a3 = scores.rows[0]
    assert (a3.flops.low, a3.flops.middle, a3.flops.high) == pytest.approx((0.1, 0.15, 0.3))
    pie = scores.named("pie")
    assert pie is not None and pie.ttft is not None
    assert (pie.ttft.low, pie.ttft.middle, pie.ttft.high) == pytest.approx((0.15, 0.2, 0.3))
    assert scores.rows[0].ttft == Spread(1, 1, 1)


def test_share_recovered(scores: Scores) -> None:
    """PIE 1/8, full prefill 1, A3 5/8."""
    a3, pie = scores.named("a3 r=0.15"), scores.named("pie")
    assert a3 is not None and pie is not None
    assert scores.recovered(a3, pie) == pytest.approx((5 / 8 - 1 / 8) / (7 / 8))
    assert scores.recovered(pie, pie) == 0
    assert scores.recovered(pie, scores.rows[0]) is None


def test_paired_difference_and_p(scores: Scores) -> None:
    """A3 less CacheBlend: one sample of b better, nothing worse. Of its two signs both give as
    large a difference: p is 1."""
    a3, blend = scores.named("a3 r=0.15"), scores.named("cacheblend r=0.15")
    assert a3 is not None and blend is not None
    paired = scores.against(a3, blend)
    assert paired.difference.mean == pytest.approx(1 / 8)
    assert (paired.won, paired.lost, paired.tied, paired.p) == (1, 0, 7, 1)
    full = scores.against(scores.rows[0], a3)  # three better, none worse: 2 of 8 sign choices
    assert (full.won, full.lost, full.p) == (3, 0, 0.25)


def test_nothing_learnt_ranks_all() -> None:
    scores = Scores(run(CONFIGURATIONS, {}), CONFIGURATIONS, ranked_from=0.8)
    assert not scores.learnt
    assert scores.ranked == ["a", "b", "c"]


# -- tables ---------------------------------------------------------------------------------------


def test_fusion_tables(scores: Scores) -> None:
    text = "\n".join(fusion.sections(scores))
    assert "c (not ranked)" in text
    [line] = [row for row in fusion.gain_table(scores).splitlines() if "| a3 r=0.15 |" in row]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].startswith("62.5 [")
    assert cells[2] == "57 %"
    assert cells[3:6] == ["15.0 % [10.0 %, 30.0 %]", "20.0 %", "20.0 % [15.0 %, 30.0 %]"]
    assert cells[6:] == ["–", "–"]
    [line] = [row for row in fusion.gain_table(scores).splitlines() if "| full prefill |" in row]
    # 9 rows are compared with A3. It is right 5 times where five of them never are: p 2/32 becomes
    # 9 · 2/32. Next PIE, 3 · 2/16 and not less; full prefill 2 · 2/8; CacheBlend 1.
    assert [c.p for c in fusion.rivals(scores)] == [*[9 / 16] * 5, 1, *[9 / 16] * 3]
    assert "+37.5 [" in line and line.endswith("| 0.562 |")


def test_the_published_order(scores: Scores) -> None:
    found = {(p.compared.ours.name, p.compared.theirs.name): p for p in order.pairs(scores, 0.15)}
    assert len(found) == 15
    assert found["a3 r=0.15", "cacheblend r=0.15"].relation == "≥"
    assert {p.relation for p in found.values()} == {"≥", ">"}
    assert all(p.verdict == order.UNDECIDED for p in found.values())
    assert order.verdict(0.1, 0.01) == order.AS_PUBLISHED
    assert order.verdict(-0.1, 0.01) == order.REVERSED
    assert order.verdict(-0.1, 0.05) == order.UNDECIDED


def test_codecs_are_compared_with_raw() -> None:
    configurations = EXPERIMENTS["codecs"].configurations(SETTING)
    given = {"pie, raw": {"a": [1, 1, 1, 1]}, "pie, int4": {"a": [1, 0, 0, 0]}}
    scores = Scores(run(configurations, given), configurations)
    found = {c.ours.name: c for c in codecs.rivals(scores)}
    assert len(found) == 9
    assert all(c.theirs.name.endswith(", raw") for c in found.values())
    assert found["pie, int4"].paired.difference.mean == pytest.approx(-0.75 / 3)
    assert found["pie, int8"].paired.difference.mean == pytest.approx(-1 / 3)


def test_evictions_are_compared_at_their_budget() -> None:
    configurations = EXPERIMENTS["eviction"].configurations(SETTING)
    scores = Scores(run(configurations, {"kvec B=25 %": {"a": [1, 1, 1, 1]}}), configurations)
    found = [(c.ours.name, c.theirs.name) for c in eviction.rivals(scores)]
    assert found == [("snapkv B=25 %", "kvec B=25 %"), ("snapkv B=50 %", "kvec B=50 %")]
    text = "\n".join(eviction.sections(scores))
    assert "## 25 % of the prompt" in text and "## 50 % of the prompt" in text


def test_an_extension_is_compared_with_its_fusion() -> None:
    configurations = EXPERIMENTS["extension"].configurations(SETTING)
    scores = Scores(run(configurations, {}), configurations)
    for compared in eviction.extended(scores):
        assert compared.ours.name.startswith(f"{compared.theirs.name} (ex: ")


def test_needle_map() -> None:
    samples = [sample("needle", n, depth=d, length=100) for n in range(2) for d in (0, 50)]
    configurations = EXPERIMENTS["needle"].configurations(SETTING)
    made = run(configurations, {"pie": {"needle": [1, 0, 1, 1]}}, samples=samples)
    scores = Scores(made, configurations)
    pie = scores.named("pie")
    assert pie is not None
    assert needle.grid(scores, pie) == [[1.0], [0.5]]
    text = "\n".join(needle.sections(scores))
    # ROUGE-1 of "x" against "x y": recall 1/2, precision 1.
    assert "| pie | 75.0 [25.0, 100.0] | 66.7 | 50.0 | 17.5 % |" in text


# -- files ----------------------------------------------------------------------------------------


def test_every_experiment_is_written(tmp_path: Path) -> None:
    """JSON gives back the scores, pictures are linked and there."""
    for name, experiment in EXPERIMENTS.items():
        configurations = experiment.configurations(SETTING)
        samples = [sample("needle", n, depth=5, length=9) for n in range(3)]
        made = run(configurations, GIVEN, samples=samples if experiment.needle else SAMPLES)
        scores = Scores(made, configurations)
        pictures = experiment.figures(scores, tmp_path) if experiment.figures else []
        rivals = experiment.rivals(scores) if experiment.rivals else []
        sections = experiment.sections(scores)
        facts = {"what": name, "seeds": [1, 2]}
        document.write(tmp_path, name, facts, scores, sections, rivals, pictures=pictures)
        record = json.loads((tmp_path / f"{name}.json").read_text())
        assert record["environment"]["commit"]
        assert len(record["configurations"]) == len(configurations)
        assert len(record["comparisons"]) == len(rivals)
        for own, s in zip(record["configurations"], scores.rows, strict=True):
            assert own["scores"] == "".join(str(int(r.score)) for r in s.results)
            assert own["per_mille"]["rows"] == 200
        text = (tmp_path / f"{name}.md").read_text()
        for picture in pictures:
            assert picture.stat().st_size > 1000
            assert f"({picture.name})" in text


def test_the_index_keeps_its_table(tmp_path: Path, scores: Scores) -> None:
    for name in ("fusion", "codecs"):
        document.write(tmp_path, name, {"what": f"About {name}"}, scores, [])
    index.write(tmp_path, EXPERIMENTS, fusion.headline(scores))
    text = (tmp_path / "README.md").read_text()
    assert "[About fusion](fusion.md)" in text and "[About codecs](codecs.md)" in text
    assert "| a3 r=0.15 |" in text
    index.write(tmp_path, EXPERIMENTS, None)
    assert (tmp_path / "README.md").read_text() == text


def test_a_missing_value_is_no_number() -> None:
    """A cell of the grid that no sample fell into stays empty."""
    samples = [sample("needle", 0, depth=0, length=1), sample("needle", 1, depth=5, length=2)]
    configurations = EXPERIMENTS["needle"].configurations(SETTING)
    scores = Scores(run(configurations, {}, samples=samples), configurations)
    grid = needle.grid(scores, scores.rows[0])
    assert grid[0][0] == grid[1][1] == 0
    assert math.isnan(grid[0][1]) and math.isnan(grid[1][0])
