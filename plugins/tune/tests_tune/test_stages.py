"""The stages find what is best, keep to their time, and refuse a choice that does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kvstitch.service.worker.methods.api import ModelFacts
from kvstitch_tune.candidates import Candidate, fixed_defaults
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import TimeBudget, Trials
from kvstitch_tune.stages import LEAST_RECOMMENDED, UNTIL, Stages
from tests_tune.fake_runner import Errors, FakeRunner, cost, prompts

FIXED = fixed_defaults("none")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def tick(self, times: int = 1) -> None:
        self.now += times


def error_of(candidate: Candidate, prompt: Prompt) -> float:
    """question_scout behind S is best, the more the better; int8 costs little, int4 much."""
    method = {"question_scout": 0.05, "a3": 0.1}.get(candidate.method, 0.2)
    modes = {"system": 0.0, "primer": 0.02, "neighbours": 0.03, "bos": 0.05, "none": 0.1}
    mode = modes[candidate.prefix_mode]
    codec = {"raw": 0.0, "k8v8": 0.001, "k8v4": 0.2, "int4": 0.3}[candidate.codec]
    ratio = float(dict(candidate.parameters).get("ratio", 0.0))
    slow = 0.001 * len(candidate.parameters)
    return method * (1 - ratio) + mode + codec + slow + 0.0001 * prompt.documents[0][1]


def stages_of(
    folder: Path,
    kl: Errors = error_of,
    *,
    seconds: float = 1e6,
    count: int = 16,
    prepare: int = 0,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[Stages, FakeRunner]:
    clock = Clock()
    budget = TimeBudget(folder / "time.json", seconds, clock=clock)
    budget.load()
    if not budget.spent:  # else a run goes on
        clock.now += UNTIL["heads"] * seconds
    runner = FakeRunner(kl, clock.tick, partial(clock.tick, prepare))
    trials = Trials(folder / "trials.jsonl", runner, budget, on_progress)
    made = Stages(
        trials, prompts("dev", count), prompts("test", count), FIXED,
        facts=ModelFacts(12, 4, 2), has_bos=True, seed=0,
    )  # fmt: skip
    return made, runner


def choose(stages: Stages) -> tuple[Candidate, Candidate]:
    """What is chosen on the development part, and what is recommended after the test."""
    screened = stages.screen()
    prefixed = stages.prefix(screened)
    allowed = [s for s in prefixed.summaries if cost(s.candidate) <= cost(FIXED) * 1.02]
    raw = min(allowed, key=lambda s: s.kl.mean).candidate
    best = stages.codec_of(stages.storage(raw), raw)
    return best, stages.holding(stages.test(screened, best), best).candidate


def test_the_best_is_found(tmp_path: Path) -> None:
    best, recommended = choose(stages_of(tmp_path)[0])
    assert best == recommended
    assert (best.method, best.prefix_mode, best.codec) == ("question_scout", "system", "k8v8")
    assert dict(best.parameters)["ratio"] == 0.15


def test_what_does_not_hold_on_the_test_part_is_not_recommended(tmp_path: Path) -> None:
    def misleading(candidate: Candidate, prompt: Prompt) -> float:
        good = error_of(candidate, prompt)
        return good if prompt.task == "dev" or candidate == FIXED else 1.0 + good

    best, recommended = choose(stages_of(tmp_path, misleading)[0])
    assert best.method == "question_scout" and recommended == FIXED


def test_raw_chunks_where_only_the_codec_does_not_hold(tmp_path: Path) -> None:
    def codec_fails(candidate: Candidate, prompt: Prompt) -> float:
        fails = prompt.task == "test" and candidate.codec == "k8v8"
        return error_of(candidate, prompt) + fails

    best, recommended = choose(stages_of(tmp_path, codec_fails)[0])
    assert best.codec == "k8v8" and recommended.codec == "raw"
    assert recommended.method == "question_scout"


def test_a_codec_that_costs_a_fifth_of_a_small_error_is_not_chosen(tmp_path: Path) -> None:
    """As int4 did on a real model (plugins/tune/README.md), and 10 of 98 answers with it."""

    def as_measured(candidate: Candidate, prompt: Prompt) -> float:
        codec = {"raw": 0.0, "k8v8": 0.003, "k8v4": 0.003, "int4": 0.003}[candidate.codec]
        return error_of(replace(candidate, codec="raw"), prompt) / 3 + codec

    best, recommended = choose(stages_of(tmp_path, as_measured)[0])
    assert best == recommended and best.codec == "raw"
    assert best.method == "question_scout"


def test_nothing_is_recommended_by_few_test_prompts(tmp_path: Path) -> None:
    best, recommended = choose(stages_of(tmp_path, count=LEAST_RECOMMENDED - 1)[0])
    assert best.prefix_mode == "system" and recommended == FIXED


def test_what_saves_nothing_has_to_be_nearer_on_all_resamples(tmp_path: Path) -> None:
    def uncertain(candidate: Candidate, prompt: Prompt) -> float:
        other = prompt.task == "test" and candidate != FIXED
        return error_of(candidate, prompt) + other * (0.3 if prompt.documents[0][1] % 3 else -0.5)

    tested = stages_of(tmp_path, uncertain)[0]
    screened = tested.screen()
    raw = Candidate(FIXED.method, FIXED.parameters, "system")
    stage = tested.test(screened, raw)
    assert stage.find(raw).kl.mean < stage.find(FIXED).kl.mean
    assert tested.holding(stage, raw).candidate == FIXED


def test_what_is_worth_trying_is_tried_first_and_the_rest_told(tmp_path: Path) -> None:
    stages, runner = stages_of(tmp_path, seconds=170.0, count=50)
    assert stages.probe() == 1.0 and stages.probe() == 0.0
    screened = stages.screen()
    tried = {s.candidate.label for s in screened.summaries}
    assert fixed_defaults("system").label in tried and "pie · system" in tried
    assert screened.left_out > 10
    assert len(screened.left[0].trials) >= 6  # fewer candidates, on more prompts
    prefixed = stages.prefix(screened)
    assert prefixed.left_out > 0
    assert "none" in {s.candidate.prefix_mode for s in prefixed.summaries}  # that is served here
    assert len(runner.asked) <= 0.5 * 170 + 10


@pytest.mark.parametrize("prepare", [5, 13])
def test_a_model_whose_prompts_take_long_gets_enough_of_them(tmp_path: Path, prepare: int) -> None:
    """A model of half a billion parameters has 15 minutes; a trial takes 1.9 s of one core, a
    prompt of 1,000 tokens before its first trial 13 times as much."""
    stages, runner = stages_of(tmp_path, seconds=900 / 1.9, count=35, prepare=prepare)
    stages.probe()
    assert {prompt for prompt, _ in runner.asked} == {prompts("dev", 1)[0].key}
    screened = stages.screen()
    assert len(screened.summaries) >= 8 and screened.prompts >= 4
    raw = Candidate(FIXED.method, FIXED.parameters, "system")
    tested = stages.test(screened, stages.codec_of(stages.storage(raw), raw))
    assert tested.prompts >= LEAST_RECOMMENDED
    spent = len(runner.asked) + prepare * len({prompt for prompt, _ in runner.asked})
    assert spent <= 1.1 * 900 / 1.9


def test_screening_halves_and_keeps_the_frontier(tmp_path: Path) -> None:
    screened = stages_of(tmp_path)[0].screen()
    assert screened.prompts == 16 and screened.left_out == 0
    assert len(screened.left) < len(screened.summaries) / 2
    left = {s.candidate.label for s in screened.left}
    assert "question_scout ratio=0.15 · system" in left
    assert fixed_defaults("system").label in left  # the cost that is compared with
    dropped = [s for s in screened.summaries if s not in screened.left]
    assert all(len(s.trials) in (2, 4, 8) for s in dropped)


@pytest.mark.parametrize("seconds", [1.0, 150.0, 400.0])
def test_every_stage_ends_in_time_but_measures_something(tmp_path: Path, seconds: float) -> None:
    stages, runner = stages_of(tmp_path, seconds=seconds, count=50)
    _, recommended = choose(stages)
    asked = [(p, c) for p, c in runner.asked]
    assert len(asked) == len(set(asked))
    assert recommended.method == "question_scout"
    overtime = max(0, len(asked) - seconds)
    assert overtime <= 50  # two prompts of a few candidates in every stage, four in the last


def test_a_stopped_run_measures_only_what_is_missing(tmp_path: Path) -> None:
    whole, first = stages_of(tmp_path / "whole", seconds=300.0), tmp_path / "parts"
    for folder in (tmp_path / "whole", first):
        folder.mkdir()
    expected = choose(whole[0])

    class Killed(Exception):
        pass

    def kill(candidate: Candidate, prompt: Prompt) -> float:
        if len(cut.asked) > 100:
            raise Killed
        return error_of(candidate, prompt)

    stages, cut = stages_of(first, kill, seconds=300.0)
    with pytest.raises(Killed):
        choose(stages)
    again, rest = stages_of(first, seconds=300.0)
    assert choose(again) == expected
    assert not set(rest.asked) & set(cut.asked[:-1])
    assert len(rest.asked) + 100 == len(whole[1].asked)


def test_progress_counts_the_prompts_of_a_stage(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    stages = stages_of(
        tmp_path, on_progress=lambda stage, prompts, _: told.append((stage, prompts))
    )[0]
    screened = stages.screen()
    stages.prefix(screened)
    for name in ("screen", "prefix"):
        assert [prompts for stage, prompts in told if stage == name] == list(range(1, 17))
