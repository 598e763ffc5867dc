"""Which addresses gateways are told."""

from __future__ import annotations

from service.cluster.actor_state import ActorState, Phase
from service.cluster.address_book import AddressBook


def state(number: int, phase: Phase, port: int = 1) -> ActorState:
    return ActorState(f"w{number}", phase, address=f"tcp://a:{port}" if port else "")


def test_a_worker_that_drains_or_restarts_keeps_its_address_until_it_is_gone() -> None:
    book = AddressBook()
    for phase in ("loading", "ready", "restarting", "draining"):
        book.heard(state(1, phase))  # type: ignore[arg-type]
        assert book.addresses == ["tcp://a:1"]
    book.heard(state(1, "ended", 0))
    assert book.addresses == []


def test_an_actor_on_another_machine_has_another_address() -> None:
    book = AddressBook()
    book.heard(state(1, "ready", 1))
    book.heard(state(1, "loading", 2))
    assert book.addresses == ["tcp://a:2"]


def test_only_actors_that_are_there_count_and_silence_is_no_reason_to_go() -> None:
    book = AddressBook()
    book.heard(state(1, "ready", 1))
    book.heard(state(2, "ready", 2))
    assert book.missing(["w1", "w3"]) and not book.missing(["w1", "w2"])
    book.keep(["w2"])
    assert book.addresses == ["tcp://a:2"]


def test_states_of_other_versions_are_understood() -> None:
    told = {"name": "w1", "phase": "meditating", "address": "tcp://a:1", "mood": "good"}
    assert ActorState.of(told).phase == "loading"
    assert ActorState.of(state(1, "ready").fields()) == state(1, "ready")
