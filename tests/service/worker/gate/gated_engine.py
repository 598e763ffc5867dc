"""An engine with a gate, and helpers that read the gate's state."""

from __future__ import annotations

from kvstitch.service.messages.replies import GateState
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.gate.correctness_gate import Gate, GateSettings
from kvstitch.service.worker.gate.policy import Bounds
from tests.service.worker.engines import Rig

BROKEN = Method("full_reuse")  # of a random model, whose attention to places is far from flat
ALL = GateSettings(1.0, Bounds(min_checks=4, recovery=3))


def gate_of(r: Rig) -> Gate:
    assert r.engine.gate is not None
    return r.engine.gate


def check(r: Rig) -> None:
    """Until every check is made."""
    while gate_of(r).pending:
        r.events.extend(r.engine.step())


def ask(r: Rig, *args: object, **kwargs: object) -> tuple[list[int], Report]:
    answer = r.answer(*args, **kwargs)
    check(r)
    return answer


def state_of(r: Rig, name: str) -> GateState:
    (found,) = [state for state in gate_of(r).states() if state.fusion.name == name]
    return found


def values(r: Rig) -> dict[tuple[str, ...], float]:
    return {(name, *labels.values()): value for name, labels, value in gate_of(r).values()}
