"""The router chooses the worker that is the cheapest when each is looked at by itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.gateway.fleet.routing.cost import Backlog, Place, Work, WorkerTable
from kvstitch.service.gateway.fleet.routing.directory import Directory, PrefixMap
from kvstitch.service.gateway.fleet.routing.router import EQUAL_DIGITS, Router, home
from kvstitch.service.messages.replies import Holdings, WorkerLoad
from tests.service.gateway.fleet.routing.one_worker import cost

NAMES = [bytes([number]) * 16 for number in range(10)]
BLOCKS = [bytes([number]) * 8 for number in range(6)]


class State(NamedTuple):
    """A worker, as the gateway knows it."""

    load: WorkerLoad
    backlog_s: float
    uncounted_s: float
    in_flight: int
    held: set[int]


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0.0, most)


loads = st.builds(
    WorkerLoad,
    token_s=seconds(1e-3),
    overhead_s=seconds(0.05),
    step_s=seconds(0.02),
    step_sequence_s=seconds(1e-3),
    token_bytes=seconds(1e5),
    tiers=st.dictionaries(
        st.sampled_from(["ssd", "redis", "s3"]), st.tuples(seconds(0.01), seconds(1e-8))
    ),
)
states = st.builds(
    State, loads, seconds(1.0), seconds(0.3), st.integers(0, 3), st.sets(st.integers(0, 9))
)
works = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 600)),
    max_size=6,
    unique_by=lambda document: document[0],
)


@settings(max_examples=150, deadline=None)
@given(
    known=st.lists(states, min_size=1, max_size=24),
    documents=works,
    question=st.integers(0, 100),
    system=st.integers(0, 100),
    answer=seconds(300.0),
    repair=seconds(1.0),
    sent=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=4),
    expected=st.dictionaries(st.integers(0, 9), st.integers(0, 30), max_size=4),
    slower_tiers=st.booleans(),
    prefix_cache=st.booleans(),
    data=st.data(),
)
def test_the_chosen_worker_is_the_cheapest_of_all(
    known: list[State],
    documents: list[tuple[int, int]],
    question: int,
    system: int,
    answer: float,
    repair: float,
    sent: list[tuple[int, int]],
    expected: dict[int, int],
    slower_tiers: bool,
    prefix_cache: bool,
    data: st.DataObject,
) -> None:
    numbers = range(len(known))
    candidates = data.draw(st.lists(st.sampled_from(numbers), min_size=1, unique=True))
    directory, prefixes, table = Directory(lambda: 0.0), PrefixMap(), WorkerTable(lambda: 0.0)
    for number, worker in enumerate(known):
        names = [NAMES[document] for document in sorted(worker.held)]
        directory.apply(number, Holdings(1, names, [], True, 0, worker.load))
        table.add(number)
        table.set_load(number, worker.load)
        backlog = Backlog(lambda: 0.0)
        backlog.reported(worker.backlog_s, 0)
        backlog.sent(worker.uncounted_s)
        table.set_backlog(number, backlog)
        table.in_flight[number] = worker.in_flight
    for document, number in expected.items():
        directory.expect(number % len(known), [NAMES[document]])
    for number, length in sent:
        prefixes.note(BLOCKS[:length], number % len(known))
    router = Router(
        "cost", table, directory, prefixes, slower_tiers=slower_tiers, prefix_cache=prefix_cache
    )
    names = [NAMES[number] for number, _ in documents]
    sizes = [tokens for _, tokens in documents]
    work = Work(names, sizes, question, answer, repair, system, BLOCKS)

    choice = router.choose(work, candidates)

    backlogs = {n: known[n].backlog_s + known[n].uncounted_s for n in candidates}
    longest = prefixes.longest(BLOCKS)
    totals: dict[int, float] = {}
    for number in candidates:
        places: list[Place] = []
        away: list[bool] = []
        for document, _ in documents:
            name = NAMES[document]
            holders = {n for n in candidates if document in known[n].held}
            stored = slower_tiers and any(document in worker.held for worker in known)
            places.append("memory" if number in holders else "slow" if stored else "nowhere")
            at = expected.get(document, -1) % len(known)
            nobody = not any(document in worker.held for worker in known)
            if not (nobody and document in expected and at in candidates):
                at = home(name, backlogs)
            away.append(not holders and number != at)
        totals[number] = cost(
            work,
            known[number].load,
            places,
            backlog_s=backlogs[number],
            in_flight=known[number].in_flight,
            away=away,
            reused=max(0, longest.get(number, 0) - system) if prefix_cache else 0,
        ).total_s
    found = router.costs(work, candidates)
    assert {n: float(found.total_s[n]) for n in candidates} == pytest.approx(totals)
    assert choice.prefill_s == found.prefill_s[choice.number]
    # Costs within half a unit of the last digit on either side of each other count as equal.
    assert totals[choice.number] <= min(totals.values()) + 1.0001 * 10**-EQUAL_DIGITS


def test_a_worker_that_reports_a_tier_widens_the_table() -> None:
    table = WorkerTable(lambda: 0.0)
    for number in range(3):
        table.add(number)
    fast = WorkerLoad(token_bytes=1e5, tiers={"ssd": (1e-4, 1e-9), "redis": (1e-5, 1e-10)})
    table.set_load(1, fast)
    read_s = table.read_s(np.array([[100.0]]))[0]
    assert read_s[1] == pytest.approx(1e-5 + 100 * 1e5 * 1e-10)
    assert read_s[0] == read_s[2] == pytest.approx(2e-4)  # no bytes known yet
