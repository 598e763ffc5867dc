"""How many workers a backlog asks for."""

from __future__ import annotations

import pytest

from service.cluster.autoscaling import Autoscaler, backlogs_in, busiest
from service.errors import InvalidSetting


def scaler(**changes: float) -> Autoscaler:
    return Autoscaler(**{"least": 1, "most": 8, "target_s": 2.0, "settle_s": 100.0, **changes})  # type: ignore[arg-type]


def test_backlog_above_the_target_adds_workers_in_proportion() -> None:
    assert scaler().decide(0, [3.0, 3.0], 2) == 3


def test_at_most_twice_as_many_at_once_and_never_more_than_most() -> None:
    assert scaler().decide(0, [60.0], 1) == 2
    assert scaler(most=3).decide(0, [60.0, 60.0], 2) == 3


def test_nothing_is_done_near_the_target_or_without_a_measurement() -> None:
    assert scaler().decide(0, [2.1, 2.1], 2) == 2
    assert scaler().decide(0, [], 5) == 5


def test_workers_that_load_are_counted_and_not_started_again() -> None:
    assert scaler().decide(0, [4.0], 2) == 2


def test_fewer_only_when_fewer_were_wanted_all_along() -> None:
    autoscaler = scaler()
    assert autoscaler.decide(0, [6.0, 6.0], 6) == 6
    assert autoscaler.decide(50, [0.0] * 6, 6) == 6
    assert autoscaler.decide(101, [0.0] * 6, 6) == 1


def test_a_loop_that_starts_drains_nothing_at_once() -> None:
    autoscaler = scaler()
    autoscaler.begin(0, 4)
    assert autoscaler.decide(1, [0.0] * 4, 4) == 4
    assert autoscaler.decide(101, [0.0] * 4, 4) == 1


def test_the_fewest_are_brought_back_at_once() -> None:
    assert scaler(least=3).decide(0, [], 0) == 3


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 9}, {"target_s": 0.0}])
def test_numbers_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match="must be"):
        scaler(**wrong)


def test_each_worker_of_a_gateway_counts_once_and_the_busiest_gateway_decides() -> None:
    text = (
        "# TYPE kvstitch_backlog_seconds gauge\n"
        'kvstitch_backlog_seconds{worker="a:1"} 1.5\nkvstitch_backlog_seconds{worker="b:1"} 0\n'
        "# TYPE kvstitch_workers_ready gauge\nkvstitch_workers_ready 2\n"
    )
    assert backlogs_in(text) == [1.5, 0.0]
    assert busiest([[1.5, 0.0], [4.0]]) == [4.0]
    assert busiest([]) == []
