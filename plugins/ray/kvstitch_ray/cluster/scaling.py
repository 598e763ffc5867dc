"""Brings the number of the cluster's workers up or down. Knows nothing of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvstitch.service.errors import KvstitchError
from kvstitch_ray.cluster.records import (
    COUNTED,
    ActorState,
    Phase,
    WorkerPlan,
    lowest_free,
    number_of,
)

if TYPE_CHECKING:
    from kvstitch_ray.cluster.ray_cluster import RayCluster

_POLL_S = 0.5
# Only another command changes these: waiting for them is in vain.
_HOPELESS: tuple[Phase, ...] = ("refused", "failed", "ended")

Say = Callable[[str], None]


class NotReady(KvstitchError):
    """Some workers did not become ready, or did not end; the message names each and why."""

    code = "workers_not_ready"


class Scaling:
    """Changes the workers of a cluster, and says what goes on."""

    def __init__(
        self,
        cluster: RayCluster,
        plan: WorkerPlan,
        *,
        say: Say,
        timeout_s: float,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is done yet."""
        self._cluster = cluster
        self._plan = plan
        self._say = say
        self._timeout_s = timeout_s
        self._runtime_env = runtime_env
        self._said: dict[str, str] = {}

    def up(self, count: int) -> list[ActorState]:
        """Bring the number of workers to `count`, and wait until all are ready.

        Where there are too many, those go first that are not ready, then the highest numbers.
        """
        there = [state for state in self._cluster.states() if state.phase in COUNTED]
        there.sort(key=lambda state: (state.phase != "ready", number_of(state.name)))
        for state in there[count:]:
            self._say(f"{state.name} is drained")
            self._drain(state)
        names = [state.name for state in there[:count]]
        while len(names) < count:
            names.append(self._start())
        others = [s.name for s in there[:count] if s.plan and s.plan != self._plan.digest]
        if others:
            self._say(
                f"{', '.join(others)} have other settings than these; "
                "start as many more with `kvstitch cluster up`, then `kvstitch cluster drain` these"
            )
        return self._wait_ready(names)

    def down(self, names: Iterable[str] | None = None, *, now: bool = False) -> None:
        """Drain workers and wait until they have ended."""
        states = self._cluster.states(None if names is None else list(names))
        for state in states:
            if now:
                self._cluster.kill(state.name)
            else:
                self._drain(state)
        self._wait_ended([state.name for state in states])

    def _start(self) -> str:
        name = self._cluster.start(
            lowest_free(self._cluster.names()), self._plan, self._runtime_env
        )
        self._say(f"{name} is started")
        return name

    def _drain(self, state: ActorState) -> None:
        if state.phase in ("waiting", "failed"):  # no process runs there that could be drained
            self._cluster.kill(state.name)
        else:
            self._cluster.drain(state.name)

    def _wait_ready(self, names: Sequence[str]) -> list[ActorState]:
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            states = [self._explained(state) for state in self._cluster.states(names)]
            for state in states:
                self._report(state)
            pending = [state for state in states if state.phase != "ready"]
            if not pending:
                return states
            late = time.monotonic() > give_up_at
            if late or all(state.phase in _HOPELESS for state in pending):
                raise NotReady(_account(pending, len(states), self._timeout_s if late else None))
            time.sleep(_POLL_S)

    def _wait_ended(self, names: Sequence[str]) -> None:
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            there = set(self._cluster.names())
            left = [name for name in names if name in there]
            for name in names:
                if name not in left and self._said.get(name) != "ended":
                    self._said[name] = "ended"
                    self._say(f"{name} has ended")
            if not left:
                return
            if time.monotonic() > give_up_at:
                raise NotReady(
                    f"{', '.join(left)} did not end in {self._timeout_s:g} s: give the command "
                    "again to wait longer, or `kvstitch cluster drain --now` to cut streams off"
                )
            for state in self._cluster.states(left):
                if state.phase not in ("draining", "waiting", "ended"):  # brought back by Ray
                    self._drain(state)
            time.sleep(_POLL_S)

    def _explained(self, state: ActorState) -> ActorState:
        if state.phase != "waiting":
            return state
        return ActorState(
            state.name, "waiting", reason=self._cluster.why_no_place(self._plan.demand)
        )

    def _report(self, state: ActorState) -> None:
        text = _line(state)
        if self._said.get(state.name) != text:
            self._said[state.name] = text
            self._say(text)


def _line(state: ActorState) -> str:
    where = f" on {state.node}" if state.node else ""
    return f"{state.name}{where}: {state.phase}" + (f", {state.reason}" if state.reason else "")


def _account(pending: Sequence[ActorState], count: int, timeout_s: float | None) -> str:
    when = "" if timeout_s is None else f" after {timeout_s:g} s"
    head = f"{len(pending)} of {count} workers are not ready{when}:"
    return "\n".join([head, *(f"  {_line(state)}" for state in pending)])
