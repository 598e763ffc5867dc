"""Load or recompute: decisions minimise the expected time, follow the measurements, and never
recompute what is in memory."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.loading.cost_model import (
    EXHAUSTIVE,
    STALE_S,
    UNHIDDEN,
    CostModel,
    Line,
    LoadableSegment,
    Prompt,
    TierEstimates,
    cheapest,
    hidden_ratio,
)
from kvstitch.service.worker.loading.planner import LATE_FACTOR, MOST_RATIO, Planner
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch_methods.question_ranked import ProphetKV
from tests.service.worker.engines import DOCUMENTS, PIE, rig
from tests.service.worker.tiny import Tiny

MB = 1 << 20


Load = tuple[LoadableSegment, float]
"""A segment, and the seconds of loading it."""


def stored(tokens: int, tier: str, left_s: float, parts: int = 1, prefix: int = 0) -> Load:
    return LoadableSegment(tokens, tier, parts=parts, prefixes=(prefix,)), left_s


def random_model(source: random.Random, tiny: Tiny, documents: int) -> CostModel:
    loads = [
        stored(
            source.randint(1, 2000),
            source.choice(["ssd", "redis"]),
            source.choice([0.0, 10 ** source.uniform(-3, 2)]),
            source.choice([1, 5]),
            source.choice([0, 50]),
        )
        for _ in range(documents)
    ]
    uncached = source.choice([0, 300])
    tokens = 40 + uncached + sum(load.tokens for load, _ in loads)
    method = source.choice(
        [
            Pie(),
            A3(),
            QuestionScout(to_depth=0.4, from_depth=0.2),
            QuestionScout(),
            ProphetKV(),
        ]
    )
    rest: dict[str, Any] = source.choice(
        [
            {"uncached_tokens": uncached},
            {"as_stored": True, "alone": [(uncached, [50])], "documents": [uncached]},
        ]
    )
    return prompt_model(
        tiny,
        tokens,
        loads,
        method,
        overhead_s=0.01,
        flop_s=10 ** source.uniform(-11, -8),
        **rest,
    )


def prompt_model(
    tiny: Tiny,
    tokens: int,
    loads: list[Load],
    method: FusionMethod,
    *,
    overhead_s: float = 0.0,
    flop_s: float,
    **facts: Any,
) -> CostModel:
    """A prompt with a question of 20 tokens."""
    prompt = Prompt(tokens=tokens, question=20, method=method, **facts)
    return changed(CostModel(prompt, tiny.decoder, overhead_s, flop_s), loads=loads)


def changed(model: CostModel, *, loads: list[Load] | None = None, **facts: Any) -> CostModel:
    """The same with other facts of the prompt."""
    if loads is not None:
        model = replace(model, left_s=[left_s for _, left_s in loads])
        facts["loads"] = [load for load, _ in loads]
    return replace(model, prompt=replace(model.prompt, **facts))


@pytest.mark.parametrize("seed", range(40))
def test_the_decision_has_the_least_expected_time(model: Tiny, seed: int) -> None:
    source = random.Random(seed)
    plan = random_model(source, model, source.randint(0, EXHAUSTIVE))
    chosen = plan.seconds(cheapest(plan))
    numbers = range(len(plan.left_s))
    sets = (
        uncached for size in range(len(numbers) + 1) for uncached in combinations(numbers, size)
    )
    assert chosen == min(plan.seconds(uncached) for uncached in sets)


@pytest.mark.parametrize("seed", range(10))
def test_with_many_documents_no_single_change_is_better(model: Tiny, seed: int) -> None:
    source = random.Random(seed)
    plan = random_model(source, model, 14)
    uncached = cheapest(plan)
    chosen = plan.seconds(uncached)
    assert chosen <= min(plan.seconds(), plan.seconds(range(14)))
    assert all(chosen <= plan.seconds(uncached ^ {i}) for i in range(14))


def test_computing_by_itself_costs_more_than_with_the_prompt(model: Tiny) -> None:
    """It is computed behind a prefix, and the prompt repairs it like a stored one."""
    loads = [stored(100, "ssd", 0.0, prefix=50), stored(100, "ssd", 0.0)]
    plan = prompt_model(model, 220, loads, Pie(), flop_s=1e-9)
    alone = changed(plan, as_stored=True)
    assert alone.seconds() == plan.seconds()
    assert alone.seconds({0}) > alone.seconds({1})
    both, missing = alone.seconds({0, 1}), changed(alone, loads=[], documents=[100, 100])
    assert both == pytest.approx(changed(missing, alone=[(100, [50]), (100, [0])]).seconds())
    assert changed(missing, alone=[(100, [50])]).flops() > missing.flops()
    of_three = changed(missing, alone=[(100, [50, 50, 0])]).flops()
    of_one, of_none = (changed(missing, alone=[(100, [p])]).flops() for p in (50, 0))
    attended = 4.0 * 100 * 101 / 2 * (model.decoder.layers - 1) * model.decoder.heads
    behind_none = attended * model.decoder.head_dim
    # Attention behind each, and the products once.
    assert of_three - of_none == pytest.approx(2 * (of_one - of_none + behind_none))


def test_what_is_free_is_loaded_and_what_takes_for_ever_is_not(model: Tiny) -> None:
    free, endless = stored(100, "ssd", 0.0), stored(100, "redis", 1e6)
    plan = prompt_model(model, 220, [free, endless, free], Pie(), flop_s=1e-9)
    assert cheapest(plan) == {1}


def test_loading_behind_whole_layers_costs_nothing(model: Tiny) -> None:
    """A3 computes two layers before it looks at anything stored."""
    quick = prompt_model(model, 120, [], A3(), flop_s=1e-8)
    hidden = changed(quick, loads=[stored(100, "ssd", quick.seconds() / 10, 5)])
    assert hidden.seconds() == quick.seconds()
    pie = changed(hidden, method=Pie())
    assert pie.seconds() > changed(pie, loads=[stored(100, "ssd", 0.0, 5)]).seconds()


def test_what_comes_in_one_piece_holds_up_no_layer_of_the_others(model: Tiny) -> None:
    """A short system prompt beside long documents is worth its read, not its computing."""
    flop_s = 1e-8
    nothing = prompt_model(model, 1036, [], Pie(), flop_s=flop_s)
    computing = changed(nothing, uncached_tokens=16).seconds() - nothing.seconds()
    documents = [stored(500, "ssd", computing, 5)] * 2
    system = stored(16, "ssd", computing / 10)
    plan = changed(nothing, loads=[system, *documents])
    late = plan.seconds() - changed(plan, loads=documents).seconds()
    assert late == pytest.approx(system[1], rel=0.01)
    assert 0 not in cheapest(plan)


@pytest.mark.parametrize("seed", range(20))
def test_layers_begin_as_the_readers_turns_bring_them(model: Tiny, seed: int) -> None:
    """Against a reader that is played through: in every round one part of each."""
    source = random.Random(seed)
    layers = model.decoder.layers
    loads = [
        stored(1, "ssd", source.uniform(0.1, 1.0), source.choice([1, 2, layers]))
        for _ in range(source.randint(1, 6))
    ]
    flop_s = 10 ** source.uniform(-7, -4)
    free = prompt_model(model, 27, loads, Pie(), flop_s=flop_s)
    read, arrivals = 0.0, [0.0] * layers
    for turn in range(max(load.parts for load, _ in loads)):
        read += sum(left_s / load.parts for load, left_s in loads if load.parts > turn)
        for layer in range(layers):
            if any(layer * load.parts // layers == turn for load, _ in loads):
                arrivals[layer] = read
    now = 0.0
    for layer, arrival in enumerate(arrivals):
        count = FlopCount(model.decoder)
        count.project(layer, 20)
        finished = 1 if layer == layers - 1 else 20
        count.attend(finished * 27)
        count.finish(layer, finished)
        now = max(now, arrival) + count.total * flop_s
    count = FlopCount(model.decoder)
    count.unembed(1)
    assert free.seconds() == pytest.approx(now + count.total * flop_s)


def test_the_ratio_grows_until_loading_hides_it_no_more(model: Tiny) -> None:
    def chosen(load_s: float) -> float:
        loads = [stored(1000, "ssd", load_s, 5)]
        plan = prompt_model(model, 1020, loads, A3(), flop_s=1e-9)
        ratio = hidden_ratio(plan, MOST_RATIO)
        assert plan.seconds(method=A3(ratio=ratio)) <= plan.seconds() * (1 + UNHIDDEN)
        return ratio

    ratios = [chosen(seconds) for seconds in (0.0, 0.05, 0.2, 1e3)]
    assert ratios == sorted(ratios)
    assert ratios[0] == 0.15  # memory: nothing to hide behind
    assert ratios[-1] > 0.15


# -- estimates ------------------------------------------------------------------------------------


def test_a_line_is_found_and_followed() -> None:
    line = Line(0.001, 1e-9)
    for n in (1, 5, 2, 8, 4, 6) * 8:
        line.add(n * MB, 0.002 + n * MB / 50e6)
    assert line.overhead == pytest.approx(0.002, rel=0.6)
    assert 1 / line.slope == pytest.approx(50e6, rel=0.05)
    for _ in range(30):
        line.add(4 * MB, 4 * MB / 5e6)  # the network became ten times slower
    assert line.at(4 * MB) == pytest.approx(4 * MB / 5e6, rel=0.1)


def test_reads_side_by_side_share_the_tier() -> None:
    tiers = TierEstimates()
    for turn in range(20):
        for reader in range(4):  # all asked at once, served one after the other at 10 MB/s
            tiers.add("redis", MB, turn * 0.4, turn * 0.4 + (reader + 1) * 0.1)
    assert tiers.seconds("redis", 40 * MB, 1) == pytest.approx(4.0, rel=0.1)


def test_a_tier_not_read_for_long_is_stale() -> None:
    now = [100.0]
    tiers = TierEstimates(clock=lambda: now[0])
    assert not tiers.stale("ssd")
    tiers.add("ssd", MB, 99.0, 100.0)
    assert not tiers.stale("ssd")
    now[0] += STALE_S + 1
    assert tiers.stale("ssd")


# -- the planner ----------------------------------------------------------------------------------


def planner_at(model: Tiny, bytes_per_s: float, tier: str = "redis") -> Planner:
    tiers = TierEstimates()
    for i in range(20):
        tiers.add(tier, MB, i, i + MB / bytes_per_s)
    planner = Planner(model.decoder, tiers)
    for _ in range(20):
        planner.compute.add(1e9, 1.0)
    return planner


def prompt_with(loads: list[LoadableSegment], method: FusionMethod | None = None) -> Prompt:
    return Prompt(tokens=1020, question=20, method=method or Pie(), loads=loads)


@pytest.mark.parametrize(("bytes_per_s", "recomputed"), [(1e6, {0, 1}), (1e9, set())])
def test_slow_tiers_are_not_read(model: Tiny, bytes_per_s: float, recomputed: set[int]) -> None:
    planner = planner_at(model, bytes_per_s)
    loads = [LoadableSegment(500, "redis", 8 * MB, 5)] * 2
    for method in (Pie(), A3()):
        assert planner.recompute(prompt_with(loads, method)) == recomputed


def test_a_load_that_is_late_is_given_up(model: Tiny) -> None:
    """At most a 1/25 of what computing takes is lost by waiting for nothing."""
    planner = planner_at(model, 1e9)
    prompt = prompt_with([LoadableSegment(1000, "redis", MB)])
    uncached = planner.cost_model(prompt).seconds([0])

    def given_up(quiet: float) -> bool:
        load = LoadableSegment(1000, "redis", MB, quiet_s=quiet)
        return bool(planner.recompute(prompt_with([load])))

    assert not given_up(0.01)
    assert given_up(0.06 + uncached / LATE_FACTOR)


def test_a_load_that_waits_its_turn_is_not_late(model: Tiny) -> None:
    """The others that were asked for with it may be there already: they took the time."""
    planner = planner_at(model, 10 * MB)

    def given_up(turn_bytes: float) -> bool:
        last = LoadableSegment(100, "redis", MB, quiet_s=0.5, turn_bytes=turn_bytes)
        return bool(planner.recompute(prompt_with([last])))

    assert not given_up(5 * MB)
    assert given_up(MB)


def test_what_was_read_of_a_part_counts(model: Tiny) -> None:
    """A load that has run for nearly as long as it takes is expected in no time: just before it is
    there it must not look as far away as when it was asked for. Two beside each other share."""
    planner = planner_at(model, 10 * MB)

    def left(quiet_s: float, beside: int) -> list[float]:
        turn = MB * beside
        load = LoadableSegment(100, "redis", MB, quiet_s=quiet_s, turn_bytes=turn)
        return list(planner.cost_model(prompt_with([load] * beside)).left_s)

    whole = left(0.0, 1)[0]
    assert left(whole * 0.9, 1)[0] == pytest.approx(whole * 0.1, rel=0.01)
    assert sum(left(whole, 2)) == pytest.approx(whole, rel=0.01)
    assert min(left(whole * 1.2, 1)) >= 0


def test_auto_takes_the_methods_own_ratio_from_memory(model: Tiny) -> None:
    auto = Method("a3", {"ratio": "auto"})
    with rig(model, planner=True) as r:
        r.precompute()
        expected, first_report = r.answer(Method("a3"))
        tokens, report = r.answer(auto)
    assert tokens == expected
    assert report.ratio == first_report.ratio == 0.15


def test_auto_needs_a_method_with_a_ratio(model: Tiny) -> None:
    with (
        rig(model, planner=True) as r,
        pytest.raises(Exception, match="is not a parameter of this method"),
    ):
        r.submit(Method("pie", {"ratio": "auto"}))


def test_memory_is_always_loaded(model: Tiny) -> None:
    """Whatever computing seems to cost: plans for the memory tier are deterministic."""
    with rig(model, planner=True, tiers=[MemoryTier(1 << 24)]) as r:
        r.precompute()
        assert r.engine.planner is not None
        for _ in range(50):
            r.engine.planner.compute.add(1e12, 1e-9)
            r.engine.planner.tiers.add("memory", 1, 0.0, 1e3)
        _, report = r.answer(PIE, [*DOCUMENTS, ChunkTokens(9, [])])
    assert [d.tier for d in report.documents] == ["memory"] * 3 + ["cold"]
    assert [d.plan for d in report.documents] == ["load"] * 3 + [""]
