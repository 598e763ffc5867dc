"""Which addresses gateways are told. Knows nothing of Ray.

An actor that does not answer keeps its address: whether a worker lives, a gateway sees by its
heartbeat, sooner and better. It loses it when it says so, or when there is no such actor any more.
"""

from __future__ import annotations

from collections.abc import Collection

from service.cluster.actor_state import REACHABLE, ActorState


class AddressBook:
    """The addresses of worker processes by the names of their actors."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._heard: set[str] = set()

    def heard(self, state: ActorState) -> None:
        """An actor told its state."""
        self._heard.add(state.name)
        if state.address and state.phase in REACHABLE:
            self._addresses[state.name] = state.address
        else:
            self._addresses.pop(state.name, None)

    def keep(self, names: Collection[str]) -> None:
        """Only these actors are there."""
        for name in set(self._addresses) - set(names):
            del self._addresses[name]
        self._heard &= set(names)

    def missing(self, names: Collection[str]) -> bool:
        """Whether one of these actors has not told anything yet."""
        return not set(names) <= self._heard

    @property
    def addresses(self) -> list[str]:
        return sorted(self._addresses.values())
