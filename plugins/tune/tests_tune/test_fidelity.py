"""What a promised share of full prefill's answers takes, by trials whose leads are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kvstitch_tune.candidates import Candidate, fixed_defaults
from kvstitch_tune.fidelity import Promise, cheapest
from kvstitch_tune.statistics import Bootstrap, Summary
from kvstitch_tune.trial import Trial, agreement, least_lead
from tests_tune.fake_runner import FakeRunner, prompts

LEADS = (0.004, 0.05, 0.3, 2.0)  # of answers that differ
SCOUT = fixed_defaults("none")


def trials(candidate: Candidate, differing: Sequence[float], same: Sequence[float]) -> list[Trial]:
    leads = [*((lead, 0.0) for lead in differing), *((lead, 1.0) for lead in same)]
    runner = FakeRunner(lambda *_: 0.1)
    made = [next(runner.measure(p, [candidate]))[0] for p in prompts("test", len(leads))]
    return [
        replace(trial, lead=lead, same=agrees, operations=0.2)
        for trial, (lead, agrees) in zip(made, leads, strict=True)
    ]


def promise(asked: float, *candidates: tuple[Candidate, list[Trial]]) -> Promise:
    bootstrap = Bootstrap(len(candidates[0][1]))
    return cheapest(asked, [Summary.of(c, made, bootstrap) for c, made in candidates], bootstrap)


@pytest.mark.parametrize(
    ("asked", "below", "taken_over"),
    [(0.6, 0.0, 0.0), (0.7, 0.01, 0.1), (0.8, 0.06, 0.3), (0.9, 0.31, 0.4), (0.99, 2.01, 0.6)],
)
def test_the_least_value_that_is_enough(asked: float, below: float, taken_over: float) -> None:
    """Six of ten are the same; one of these leads by so little that it is computed in full, too."""
    found = promise(asked, (SCOUT, trials(SCOUT, LEADS, (0.02, 1.0, 3, 4, 5, 6))))
    assert found.exact_below == below and found.taken_over == pytest.approx(taken_over)
    assert found.operations == pytest.approx(0.2 + taken_over) and found.pays


def test_every_prompt_is_judged_by_what_the_others_need() -> None:
    """The one that leads by most is not kept: without it a lesser value is enough."""
    found = promise(0.99, (SCOUT, trials(SCOUT, LEADS, (1.0,) * 6)))
    assert found.exact_below == 2.01 and found.same.mean == 0.9


def test_what_takes_as_much_as_full_prefill_does_not_pay() -> None:
    found = promise(0.99, (SCOUT, trials(SCOUT, (0.5,) * 9, (0.1,))))
    assert found.operations == pytest.approx(1.2) and not found.pays


def test_the_cheapest_keeps_it_and_only_what_full_prefill_may_take_over() -> None:
    good, bad = Candidate("pie"), replace(SCOUT, eviction="snapkv")
    parts = Candidate("samkv")
    all_same = (1.0,) * 10
    found = promise(
        0.9,
        (SCOUT, trials(SCOUT, LEADS, (1.0,) * 6)),
        (good, trials(good, LEADS[:1], (1.0,) * 9)),
        (bad, trials(bad, (), all_same)),
        (parts, trials(parts, (), all_same)),
    )
    assert found.summary.candidate == good and found.exact_below == 0.0


def test_a_lead_counts_up_to_where_the_answer_differs() -> None:
    own = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert least_lead(own, agreement(same, own)) == 2.0
    assert least_lead(own, agreement(own, own)) == 1.0
