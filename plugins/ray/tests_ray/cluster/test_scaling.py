"""The number of workers is brought about; a cluster of memory stands for Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from kvstitch_ray.cluster.records import ActorState, Phase, WorkerPlan, name_of, workers_among
from kvstitch_ray.cluster.scaling import NotReady, Scaling

if TYPE_CHECKING:
    from kvstitch_ray.cluster.ray_cluster import RayCluster

PLAN = WorkerPlan(settings={})


@dataclass
class Actors:
    """New actors get the phase `starts_as`; those that are drained end at once."""

    starts_as: Phase = "ready"
    phases: dict[str, Phase] = field(default_factory=dict)
    plan: str = PLAN.digest
    done: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return workers_among(self.phases)

    def start(
        self, number: int, plan: WorkerPlan, runtime_env: Mapping[str, Any] | None = None
    ) -> str:
        self.done.append(f"start {number}")
        self.phases[name_of(number)] = self.starts_as
        return name_of(number)

    def states(
        self, names: Sequence[str] | None = None, patience_s: float = 1.0
    ) -> list[ActorState]:
        return [
            ActorState(name, self.phases.get(name, "ended"), plan=self.plan, reason="out of memory")
            for name in (self.names() if names is None else names)
        ]

    def drain(self, name: str) -> None:
        self.done.append(f"drain {name[-1]}")
        del self.phases[name]

    def kill(self, name: str) -> None:
        self.done.append(f"kill {name[-1]}")
        del self.phases[name]

    def why_no_place(self, demand: Mapping[str, float]) -> str:
        return f"it needs {demand}"


def scaling(actors: Actors) -> tuple[Scaling, list[str]]:
    said: list[str] = []
    return Scaling(cast("RayCluster", actors), PLAN, say=said.append, timeout_s=0.01), said


def test_up_starts_what_is_missing_and_nothing_the_second_time() -> None:
    actors = Actors(phases={name_of(2): "ready", name_of(4): "draining"})
    assert [s.name for s in scaling(actors)[0].up(2)] == [name_of(2), name_of(1)]
    assert len(scaling(actors)[0].up(2)) == 2
    assert actors.done == ["start 1"]


def test_fewer_drains_those_that_are_not_ready_then_the_highest() -> None:
    actors = Actors(phases={name_of(1): "loading", name_of(2): "ready", name_of(3): "ready"})
    assert [s.name for s in scaling(actors)[0].up(1)] == [name_of(2)]
    assert sorted(actors.done) == ["drain 1", "drain 3"]


@pytest.mark.parametrize("phase", ["refused", "failed", "waiting"])
def test_what_does_not_become_ready_is_named_with_its_reason(phase: Phase) -> None:
    with pytest.raises(NotReady) as raised:
        scaling(Actors(starts_as=phase))[0].up(1)
    reason = "it needs {'CPU': 1.0}" if phase == "waiting" else "out of memory"
    assert raised.value.message.splitlines()[1] == f"  kvstitch-worker-1: {phase}, {reason}"


def test_other_settings_are_told_and_not_changed() -> None:
    actors = Actors(phases={name_of(1): "ready"}, plan="another")
    made, said = scaling(actors)
    made.up(1)
    assert actors.done == []
    assert "cluster drain" in said[0]


def test_down_kills_what_has_no_process_and_drains_the_others() -> None:
    actors = Actors(phases={name_of(1): "waiting", name_of(2): "ready"})
    scaling(actors)[0].down()
    assert actors.done == ["kill 1", "drain 2"]
    actors = Actors(phases={name_of(1): "ready"})
    scaling(actors)[0].down(now=True)
    assert actors.done == ["kill 1"]
