"""What chunks of a prompt file are precomputed behind, by every way to choose it."""

from __future__ import annotations

from itertools import chain

import pytest

from benchmarks.quality.behind import Neighbourhood
from benchmarks.quality.configurations import behind
from benchmarks.quality.suites import Choice, Suites
from kvstitch_tune.prompts import Prompt
from service.settings import demo_model
from tests.fakes.models import HashingEmbedder

MODES = ("primer-n2", "neighbours-n2,first", "primer-r3", "primer-c2,all", "primer-g3/16",
         "primer-g2/16x3")  # fmt: skip


@pytest.fixture(scope="module")
def suites() -> Suites:
    return Suites(demo_model(), HashingEmbedder().embed)


@pytest.fixture(scope="module")
def prompts(suites: Suites) -> list[Prompt]:
    drawn = suites.draw("nq", Choice(samples=3, others=4))
    pool = [tuple(ids) for ids in suites.passages("dev")[:200]]
    pool += list(chain.from_iterable(prompt.documents for prompt in drawn))
    found = Neighbourhood(suites, HashingEmbedder().embed, list(dict.fromkeys(pool)), seed=0)
    return [found.add(prompt, MODES) for prompt in drawn]


def test_the_first_chunk_is_exact_unless_asked_otherwise(prompts: list[Prompt]) -> None:
    for prompt in prompts:
        assert set(prompt.behind) == set(MODES)
        for mode, chunks in prompt.behind.items():
            assert len(chunks) == len(prompt.documents)
            assert bool(chunks[0]) is ("all" in mode)
            assert all(chunks[1:])
            prefixes = 3 if "x3" in mode else 1
            assert {len(each) for each in chunks[1:]} <= {prefixes, prefixes - 1} - {0}


def test_no_chunk_stands_behind_itself(prompts: list[Prompt]) -> None:
    for prompt in prompts:
        for mode in ("primer-n2", "neighbours-n2,first", "primer-g3/16", "primer-g2/16x3"):
            for ids, others in zip(prompt.documents, prompt.behind[mode], strict=True):
                assert all(ids not in prefix for prefix in others)


def test_the_same_ones_for_all_or_each_its_own(prompts: list[Prompt]) -> None:
    def sets(mode: str) -> set[tuple[tuple[int, ...], ...]]:
        return {
            tuple(tuple(ids) for ids in chunk)
            for prompt in prompts
            for [chunk] in prompt.behind[mode][1:]
        }

    # But for those that are among them, which stand behind the others alone.
    assert len({s for s in sets("primer-r3") if len(s) == 3}) == 1
    assert len({s for s in sets("primer-c2,all") if len(s) == 2}) == 1
    assert len(sets("primer-n2")) > 6
    assert 1 < len({frozenset(s) for s in sets("primer-g3/16") if len(s) == 3}) <= 14
    assert {s[::-1] for s in sets("neighbours-n2,first")} == sets("primer-n2")


def test_a_prompts_key_is_that_of_its_text(prompts: list[Prompt], suites: Suites) -> None:
    """So that records of other modes are about the same prompts."""
    assert [p.key for p in prompts] == [
        p.key for p in suites.draw("nq", Choice(samples=3, others=4))
    ]


def test_every_mode_is_measured_under_its_name() -> None:
    made = behind(["primer-r3", "neighbours-n2"], [5])
    names = [configuration.name for configuration in made]
    assert "pie primer-r3" in names and "pie neighbours-n2" in names
    assert len(set(names)) == len(names)
    assert len({configuration.key for configuration in made}) == len(made)
