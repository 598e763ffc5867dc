"""Which worker is chosen: by cost and by the policies that it is compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kvstitch.service.gateway.fleet.routing.cost import STALE_S, TRIALS, Backlog, Work, WorkerTable
from kvstitch.service.gateway.fleet.routing.directory import Directory, PrefixMap
from kvstitch.service.gateway.fleet.routing.router import Policy, Router, work_of
from kvstitch.service.messages.replies import Holdings, WorkerLoad
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method

LOAD = WorkerLoad(token_s=1e-3, token_bytes=1e5, tiers={"ssd": (1e-4, 1e-9)})
TEXTS = [ChunkTokens(n, [n * 1000 + i for i in range(100)]) for n in range(12)]


def prompt(*documents: ChunkTokens) -> Work:
    request = Generate("r", [1, 2], list(documents), [3, 4, 5], Method("a3"))
    return work_of(request, answer=16.0, repair=0.15)


def workers(*backlogs_s: float) -> WorkerTable:
    """A table of workers, whose clock stands still."""
    table = WorkerTable(lambda: 0.0)
    for number, seconds in enumerate(backlogs_s):
        table.add(number)
        table.set_load(number, LOAD)
        backlog = Backlog(lambda: 0.0)
        backlog.reported(seconds, 0)
        table.set_backlog(number, backlog)
    return table


def router(table: WorkerTable, policy: Policy = "cost", **options: Any) -> tuple[Router, Directory]:
    directory = Directory()
    options = {"slower_tiers": True, "prefix_cache": True, **options}
    return Router(policy, table, directory, PrefixMap(), **options), directory


def hold(directory: Directory, number: int, *documents: ChunkTokens) -> None:
    names = prompt(*documents).names
    directory.apply(number, Holdings(1, list(names), [], True, 0, LOAD))


def test_the_largest_overlap_wins_in_any_order() -> None:
    chosen, directory = router(workers(0.0, 0.0, 0.0))
    hold(directory, 0, TEXTS[0])
    hold(directory, 1, *TEXTS[:3])
    assert chosen.choose(prompt(TEXTS[2], TEXTS[0], TEXTS[1]), range(3)).number == 1
    assert chosen.choose(prompt(TEXTS[1], TEXTS[2], TEXTS[0]), range(3)).number == 1
    assert chosen.choose(prompt(*TEXTS[:3]), [0, 2]).number == 0


def test_a_worker_that_seems_slow_is_tried_again() -> None:
    """It is believed once it was sent some requests, for as long as there was one lately."""
    went: list[int] = []
    table = WorkerTable(lambda: float(len(went)))  # a request a second
    for number, token_s in enumerate((1e-3, 1e-3, 8e-3)):
        table.add(number)
        table.set_load(number, replace(LOAD, token_s=token_s, step_s=10 * token_s))
    chosen, directory = router(table, slower_tiers=False)
    hold(directory, 2, *TEXTS[:3])
    while len(went) < 100:
        went.append(chosen.choose(prompt(*TEXTS[:3]), range(3)).number)
        chosen.sent(prompt(*TEXTS[:3]), went[-1])
    tried = [second for second, number in enumerate(went) if number == 2]
    first = tried[0]
    assert first >= TRIALS, "before, nothing is usual"
    last = first + TRIALS - 1
    assert tried == [
        *range(first, last + 1),
        *range(last + int(STALE_S) + 1, 100, int(STALE_S) + 1),
    ]
    table.set_load(2, LOAD)  # it was only a guess
    assert chosen.choose(prompt(*TEXTS[:3]), range(3)).number == 2


def test_a_backlog_longer_than_what_is_saved_sends_it_elsewhere() -> None:
    loading_s = 3 * (1e-4 + 100 * 1e5 * 1e-9)
    for backlog_s, expected in ((loading_s * 0.9, 0), (loading_s * 1.1, 1)):
        chosen, directory = router(workers(backlog_s, 0.0))
        hold(directory, 0, *TEXTS[:3])
        assert chosen.choose(prompt(*TEXTS[:3]), range(2)).number == expected


def test_without_slower_tiers_what_is_held_is_worth_its_computing() -> None:
    saved_s = 0.3 - 0.15 * 0.3
    for backlog_s, expected in ((saved_s * 0.95, 0), (saved_s * 1.05, 1)):
        chosen, directory = router(workers(backlog_s, 0.0), slower_tiers=False)
        hold(directory, 0, *TEXTS[:3])
        assert chosen.choose(prompt(*TEXTS[:3]), range(2)).number == expected


def test_unknown_documents_have_homes_and_go_where_one_was_sent() -> None:
    chosen, _ = router(workers(0.0, 0.0, 0.0, 0.0))
    first = {n: chosen.choose(prompt(TEXTS[n]), range(4)).number for n in range(12)}
    assert len(set(first.values())) > 1
    assert first == {n: chosen.choose(prompt(TEXTS[n]), range(4)).number for n in range(12)}
    other = (first[0] + 1) % 4
    chosen.sent(prompt(TEXTS[0]), other)  # as it may have gone for its company
    assert chosen.choose(prompt(TEXTS[0]), range(4)).number == other


def test_prompts_without_documents_are_spread() -> None:
    chosen, _ = router(workers(0.0, 0.0), prefix_cache=False)
    counts: Counter[int] = Counter()
    for _ in range(40):
        number = chosen.choose(prompt(), range(2)).number
        chosen.sent(prompt(), number)
        counts[number] += 1
    assert counts == {0: 20, 1: 20}


def test_a_kept_prompt_is_continued_where_it_is() -> None:
    long = prompt(ChunkTokens(1, list(range(640))))
    for number in (0, 1):
        chosen, _ = router(workers(0.0, 0.0))
        chosen.sent(long, number)
        chosen._directory.forget(number)  # only the prompt is left there
        assert chosen.choose(long, range(2)).number == number


@pytest.mark.parametrize("policy", ["round_robin", "least_load", "longest_prefix"])
def test_policies_for_comparison(policy: Policy) -> None:
    chosen, directory = router(workers(0.0, 0.001, 0.0), policy)
    hold(directory, 1, *TEXTS[:3])
    numbers = []
    for order in ((0, 1, 2), (2, 1, 0), (0, 1, 2)):
        asked = prompt(*(TEXTS[n] for n in order))
        numbers.append(chosen.choose(asked, range(3)).number)
        chosen.sent(asked, numbers[-1])
    expected = {"round_robin": [0, 1, 2], "least_load": [0, 2, 0], "longest_prefix": [0, 2, 0]}
    assert numbers == expected[policy]


def test_a_backlog_between_two_reports() -> None:
    now = 0.0
    backlog = Backlog(lambda: now)
    backlog.sent(0.3)
    backlog.sent(0.4)
    assert backlog.seconds == pytest.approx(0.7)
    backlog.reported(0.25, received=1)  # the second request was on its way
    assert backlog.seconds == pytest.approx(0.65)
    now = 0.2
    assert backlog.seconds == pytest.approx(0.45)
    now = 9.0
    assert backlog.seconds == pytest.approx(0.4)
    backlog.reported(0.0, received=2)
    assert backlog.seconds == 0.0
