"""What several workers say, as if it were one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from service.messages.replies import GateState, GateStates, Purged, Stats
from service.messages.reports import GATE_STATES

GATE_STATE_METRIC = "kvstitch_gate_state"


def stats(parts: Sequence[Stats]) -> Stats:
    """Sums of requests, the mean share of free pool; of the samples, the gate's worst states.

    All other samples are published for each worker by itself.
    """
    worst: dict[str, float] = {}
    for part in parts:
        for name, labels, value in part.values:
            if name == GATE_STATE_METRIC:
                worst[labels["method"]] = max(value, worst.get(labels["method"], 0.0))
    return Stats(
        values=[(GATE_STATE_METRIC, {"method": m}, value) for m, value in worst.items()],
        running=sum(part.running for part in parts),
        waiting=sum(part.waiting for part in parts),
        pool_free=sum(part.pool_free for part in parts) / len(parts),
    )


def gate_states(parts: Sequence[GateStates]) -> GateStates:
    """Of every method the state at the worker that trusts it least; trips are summed."""
    found: dict[str, list[GateState]] = {}
    for part in parts:
        for state in part.states:
            parameters = json.dumps(state.fusion.parameters, sort_keys=True)
            found.setdefault(f"{state.fusion.name} {parameters}", []).append(state)
    worst = [max(states, key=lambda s: GATE_STATES.index(s.state)) for states in found.values()]
    trips = [sum(state.trips for state in states) for states in found.values()]
    merged = [replace(state, trips=count) for state, count in zip(worst, trips, strict=True)]
    return GateStates(parts[0].id, any(part.on for part in parts), merged)


def purged(parts: Sequence[Purged]) -> Purged:
    """Copies that all have deleted, and every tier that one of them could not reach."""
    copies: dict[str, int] = {}
    for part in parts:
        for tier, count in part.copies.items():
            copies[tier] = copies.get(tier, 0) + count
    unreached = sorted({tier for part in parts for tier in part.unreached})
    return Purged(parts[0].id, copies, unreached)
