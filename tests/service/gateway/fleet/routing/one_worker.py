"""What a prompt takes at one worker alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvstitch.service.gateway.fleet.routing.cost import Backlog, Place, Work, WorkerTable, costs
from kvstitch.service.messages.replies import WorkerLoad


class Cost(NamedTuple):
    backlog_s: float
    prefill_s: float
    decode_s: float
    away_s: float

    @property
    def total_s(self) -> float:
        return sum(self)


def work(documents: Sequence[int], question: int, answer: float = 0.0, repair: float = 0.0) -> Work:
    names = [number.to_bytes(16, "big") for number in range(len(documents))]
    return Work(names, documents, question, answer, repair)


def cost(
    work: Work,
    load: WorkerLoad,
    places: Sequence[Place],
    *,
    backlog_s: float = 0.0,
    in_flight: int = 0,
    away: Sequence[bool] = (),
    reused: int = 0,
) -> Cost:
    """The only column of a table of one worker."""
    table = WorkerTable(lambda: 0.0)
    table.add(0)
    table.set_load(0, load)
    backlog = Backlog(lambda: 0.0)
    backlog.reported(backlog_s, 0)
    table.set_backlog(0, backlog)
    table.in_flight[0] = in_flight
    found = costs(
        work,
        table,
        held=np.array([place == "memory" for place in places], np.bool_)[:, None],
        places=["slow" if place == "slow" else "nowhere" for place in places],
        away=np.array(list(away) or [False] * len(places), np.bool_)[:, None],
        reused=np.array([float(reused)]),
    )
    return Cost(*(float(seconds[0]) for seconds in found))
