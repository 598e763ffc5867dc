"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 11_000, 22_000
_SOURCE = random.SystemRandom()  # nobody seeds it
CLUSTER_BUS = 10_000
"""A server of a Redis Cluster has a second port, this far above its own."""


def free_port() -> int:
    """Return a port that nothing listens at.

    It is below those that the system gives to outgoing connections: one of these might get it
    before the server does.
    """
    return free_ports(1)[0]


def free_ports(count: int, *, bus: bool = False) -> list[int]:
    """Return different ones; `bus`: those of a cluster's bus above them are free, too."""
    found: set[int] = set()
    while len(found) < count:
        port = _SOURCE.randint(_FIRST, _LAST)
        if _is_free(port) and (not bus or _is_free(port + CLUSTER_BUS)):
            found.add(port)
    return sorted(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
