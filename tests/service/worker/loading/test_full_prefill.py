"""Full prefill takes the place of a method that nobody named where it is not slower."""

from __future__ import annotations

import pytest

from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.loading.cost_model import Prompt, TierEstimates
from kvstitch.service.worker.loading.planner import (
    KNOWN,
    MOST_TOKENS,
    RENEWED,
    WHOLE,
    Planner,
    SecondsBySize,
)
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.methods.fusion.vanilla import Method as FullPrefill
from kvstitch.service.worker.methods.registry import fusion_methods
from kvstitch.service.worker.model.model_facts import full_prefill
from tests.service.worker.engines import DOCUMENTS, VANILLA, Rig, rig
from tests.service.worker.tiny import Tiny

FLOP_S = 1e-9
SIZES = (1e6, 1e7, 1e8) * KNOWN  # operations of the prefills that were measured


def fed(planner: Planner, kind: type[FusionMethod], overhead_s: float) -> None:
    """As after prefills that took so long besides their operations."""
    for flops in SIZES:
        planner.finished(flops, overhead_s + FLOP_S * flops, (), kind)


def planner_of(model: Tiny) -> Planner:
    return Planner(model.decoder, TierEstimates(lambda: 0.0))


def prompt(tokens: int, method: FusionMethod | None = None, *, crowded: bool = False) -> Prompt:
    """All of its documents are in memory."""
    question = 10
    return Prompt(
        tokens=tokens,
        question=question,
        method=method or QuestionScout(),
        documents=[tokens - question],
        crowded=crowded,
    )


def crossing(model: Tiny, overhead_s: float) -> int:
    """The length of a prompt of which full prefill takes so long."""
    tokens = 20
    while full_prefill(model.decoder, tokens) * FLOP_S < overhead_s:
        tokens += 1
    return tokens


@pytest.mark.parametrize("crowded", [False, True])
def test_short_prompts_are_computed_whole_and_long_ones_are_not(model: Tiny, crowded: bool) -> None:
    planner = planner_of(model)
    overhead_s = full_prefill(model.decoder, 200) * FLOP_S
    fed(planner, FullPrefill, 0.0)
    fed(planner, QuestionScout, overhead_s)
    fed(planner, A3, 0.0)
    tokens = crossing(model, overhead_s)
    assert planner.whole(prompt(tokens - 10, crowded=crowded))
    assert not planner.whole(prompt(tokens * 2, crowded=crowded))
    assert not planner.whole(prompt(tokens - 10, A3(), crowded=crowded)), "every kind has its own"


def test_nothing_is_turned_down_before_both_are_known(model: Tiny) -> None:
    planner = planner_of(model)
    fed(planner, QuestionScout, 10.0)
    for _ in range(KNOWN - 1):
        planner.finished(1e6, 1e-3, (), FullPrefill)
        assert not planner.whole(prompt(40))
    planner.finished(1e6, 1e-3, (), FullPrefill)
    assert planner.whole(prompt(40))


def test_the_first_of_a_kind_does_not_count(model: Tiny) -> None:
    planner = planner_of(model)
    planner.finished(1e6, 100.0, (), QuestionScout)
    fed(planner, QuestionScout, 0.0)
    fed(planner, FullPrefill, 0.0)
    assert not planner.whole(prompt(200))


def test_a_method_that_is_turned_down_is_tried_again(model: Tiny) -> None:
    """Else one that was slow on a busy machine would be slow for ever."""
    planner = planner_of(model)
    fed(planner, FullPrefill, 0.0)
    fed(planner, QuestionScout, 10.0)
    for _ in range(RENEWED):
        assert planner.whole(prompt(200))
        planner.finished(1e6, 1e-3, (), FullPrefill, instead_of=QuestionScout)
    assert not planner.whole(prompt(200))
    planner.finished(1e6, 10.0, (), QuestionScout)
    assert planner.whole(prompt(200))


def test_full_prefill_is_timed_until_it_is_known_and_again_where_it_is_near(model: Tiny) -> None:
    planner = planner_of(model)
    assert planner.wants_full(prompt(200))
    assert not planner.wants_full(prompt(MOST_TOKENS + 1))
    fed(planner, FullPrefill, 0.0)
    assert not planner.wants_full(prompt(200))
    fed(planner, QuestionScout, 1.5 * full_prefill(model.decoder, 200) * FLOP_S)
    for _ in range(RENEWED):
        planner.finished(1e6, 1e-3, (), QuestionScout)
    fed(planner, QuestionScout, 1.5 * full_prefill(model.decoder, 200) * FLOP_S)
    assert planner.wants_full(prompt(200))
    assert not planner.wants_full(prompt(2000)), "it is far from being faster"


@pytest.mark.parametrize(
    "name", sorted(n for n, m in fusion_methods().items() if m.reads.name == "CHUNKS")
)
def test_a_prompt_whose_method_is_slow_is_answered_as_by_full_prefill(
    model: Tiny, name: str
) -> None:
    with rig(model, planner=True) as r:
        r.precompute()
        stored = r.store.stats().new_keys
        fed(r.engine.planner, FullPrefill, 0.0)
        fed(r.engine.planner, fusion_methods()[name], 10.0)
        expected = answered(r, VANILLA)
        named = r.submit(Method(name), logprobs=3)
        r.run()
        report = r.done(named).report
        assert [d.plan for d in report.documents] == ["load"] * 3, "a method that is named is used"
        tokens, report = r.answer(Method(name), any_method=True)
        assert {d.plan for d in (report.system, *report.documents)} == {"recompute"}
        assert {d.why for d in (report.system, *report.documents)} == {WHOLE}
        assert report.recomputed_tokens == report.prompt_tokens and not report.cached_tokens
        assert answered(r, Method(name), any_method=True) == expected
        assert tokens == expected[0]
        assert r.store.stats().new_keys == stored
        kept = answered(r, Method(name), any_method=True, cold="as_stored")
        assert kept == answered(r, Method(name), cold="as_stored"), "the answer is that of a cache"


def answered(r: Rig, method: Method, **fields: object) -> tuple[list[int], list[object]]:
    name = r.submit(method, logprobs=3, **fields)  # type: ignore[arg-type]
    r.run()
    return r.tokens(name), list(r.logprobs(name))


def test_full_prefill_is_timed_in_spare_time(model: Tiny) -> None:
    """Where every chunk is stored before the first question, no request shows what it takes."""
    with rig(model, planner=True) as r:
        r.precompute()
        for _ in range(KNOWN):
            assert r.engine.planner.wants_full(prompt(38))
            r.answer(Method("question_scout"), any_method=True)
            while not r.engine.idle_work.idle:
                r.engine.step()
        assert not r.engine.planner.wants_full(prompt(38))


def test_without_the_planner_the_method_is_used(model: Tiny) -> None:
    with rig(model) as r:
        r.precompute()
        fed(r.engine.planner, FullPrefill, 0.0)
        fed(r.engine.planner, QuestionScout, 10.0)
        _, report = r.answer(Method("question_scout"), DOCUMENTS, any_method=True)
        assert [d.plan for d in report.documents] == ["load"] * 3
        assert r.engine.idle_work.idle


def test_short_prompts_are_known_before_the_first_question(model: Tiny) -> None:
    """Both kinds are timed at both sizes in spare time, without the store."""
    with rig(model, planner=True) as r:
        times, timer = r.engine.planner.times, r.engine.prefilling.timer
        timer.probe()
        assert times.measured(QuestionScout, FullPrefill) is False
        while not r.engine.idle_work.idle:
            r.engine.step()
        assert times.measured(QuestionScout, FullPrefill) and not times.measured(A3)
        assert not r.store.stats().new_keys and not r.engine.planner.wants_full(prompt(200))


def test_sizes_are_remembered_apart() -> None:
    """What long prompts take says nothing of short ones, which have been measured before."""
    times = SecondsBySize()
    times.add(1e6, 1.0)
    assert times.at(1e6) == 1.0 and times.at(3e6) == 3.0, "one size: as fast as that"
    times.add(1e8, 100.0)
    times.add(1e9, 2000.0)
    for _ in range(50):
        times.add(1e9, 1000.0)
    assert times.at(1e6) == 1.0 and times.at(1e8) == 100.0
    assert times.at(1e9) == pytest.approx(1000.0) and times.at(5.5e8) == pytest.approx(550.0)
    assert times.at(2e9) == pytest.approx(2000.0, rel=0.01), "beyond: the line of all sizes"
    assert times.at(5e5) == pytest.approx(0.5, rel=0.01)
