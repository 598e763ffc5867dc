"""Checks of answers that another engine decodes: it tells the gate what it has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pytest
from torch import Tensor

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.messages.replies import HandedOver
from kvstitch.service.messages.requests import Generate, Method
from kvstitch.service.worker.gate.correctness_gate import MAX_PENDING
from kvstitch.service.worker.gate.policy import Observation
from tests.service.worker.engines import DOCUMENTS, VANILLA, Rig, rig
from tests.service.worker.gate.gated_engine import ALL, BROKEN, check, gate_of, state_of
from tests.service.worker.tiny import Q, S, Tiny, tiny

GOOD, BAD = Observation(0.01, True), Observation(4.0, False)


@dataclass(frozen=True)
class Segment:
    place: str = "somewhere"

    def close(self) -> None:
        pass


class Room:
    """Takes all KV, and keeps none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def put(self, layers: Sequence[tuple[Tensor, Tensor]], ids: Sequence[int]) -> Segment:
        return Segment()


@pytest.fixture
def r(model: Tiny) -> Iterator[Rig]:
    with rig(model, checks=ALL, pool_tokens=4000, hand_over=Room()) as r:
        r.precompute()
        yield r


def hand(r: Rig, name: str, fusion: Method = BROKEN) -> HandedOver:
    """Of a request whose KV is loaded at once."""
    r.engine.submit(Generate(name, S, DOCUMENTS, Q, fusion, hand_over=True))
    while not (found := [e for e in r.events if isinstance(e, HandedOver) and e.id == name]):
        r.events.extend(r.engine.step())
    r.engine.abort(name, "loaded")
    r.run()
    return found[0]


def test_latent_rows_are_not_handed_over() -> None:
    refused = pytest.raises(InvalidSetting, match="family deepseek_v2")
    with refused, rig(tiny("deepseek_v2"), hand_over=Room()):
        pass


def test_what_it_is_told_counts_and_nothing_is_computed_here(r: Rig) -> None:
    gate = gate_of(r)
    for number in range(4):
        name = f"r{number}"
        assert state_of(r, BROKEN.name).state == "ok" if number else True
        assert hand(r, name).check and gate.pending == 0
        gate.compared(name, BAD)
        gate.compared(name, BAD)  # a second time it is nobody's
    assert gate.counts.of("disagree") == 4
    assert state_of(r, BROKEN.name).state == "full_prefill"


def test_replaced_the_step_below_is_looked_at_here(r: Rig) -> None:
    gate = gate_of(r)
    for number in range(4):
        hand(r, f"r{number}")
        gate.compared(f"r{number}", BAD)
    assert not hand(r, "full").check  # it is full prefill itself
    assert gate.pending == 1
    check(r)
    assert gate.counts.of("disagree") + gate.counts.of("agree") == 5


def test_nobody_tells(r: Rig) -> None:
    """What was lost on the way is counted, and does not pile up; vanilla needs no check."""
    for number in range(MAX_PENDING + 3):
        hand(r, f"r{number}")
        if number >= 4:
            gate_of(r).compared("another", GOOD)
    assert gate_of(r).counts.of("skipped") == 3
    assert not hand(r, "v", VANILLA).check
