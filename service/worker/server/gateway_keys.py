"""The keys that gateways have sent to a worker, as one ring.

Gateways read the keys from their database at different moments. So a key is in the ring as soon as
one gateway sends it, and leaves it for good as soon as a gateway that had sent it stops sending it,
whatever the others still send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from encryption.keyring import DataKey, Keyring


class GatewayKeys:
    """Keeps a ring as the gateways say."""

    def __init__(self, ring: Keyring) -> None:
        self._ring = ring
        self._sent: dict[bytes, list[DataKey]] = {}  # by gateway
        self._silent: dict[bytes, list[DataKey]] = {}
        self._deleted: set[bytes] = set()

    def take(self, gateway: bytes, keys: Sequence[DataKey], *, alone: bool) -> bool:
        """Take over what a gateway sends: all keys that it has; return whether the ring changed."""
        before = self._sent.get(gateway) or self._silent.pop(gateway, [])
        self._deleted |= {key.id for key in before} - {key.id for key in keys}
        if alone:
            self._sent.clear()
        self._sent[gateway] = list(keys)
        return self._join()

    def silent(self, gateway: bytes) -> bool:
        """Count on a gateway no more, while there are others; return whether the ring changed."""
        if len(self._sent) > 1 and gateway in self._sent:
            self._silent[gateway] = self._sent.pop(gateway)
        return self._join()

    def heard(self, gateway: bytes) -> bool:
        """Count on a gateway again that was silent; return whether the ring changed."""
        if gateway not in self._silent:
            return False
        self._sent[gateway] = self._silent.pop(gateway)
        return self._join()

    def _join(self) -> bool:
        if not self._sent:
            return False
        return self._ring.replace(_joined(self._sent.values(), self._deleted))


def _joined(sent: Iterable[Sequence[DataKey]], deleted: set[bytes]) -> list[DataKey]:
    by_id = {key.id: key for keys in sent for key in keys if key.id not in deleted}
    return list(by_id.values())
