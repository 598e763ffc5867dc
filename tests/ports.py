"""Ports for servers that tests start."""

from __future__ import annotations

import os
import random
import socket

_FIRST, _LAST = 11_000, 20_999
_SOURCE = random.SystemRandom()  # nobody seeds it
_given: set[int] = set()
CLUSTER_BUS = 10_000
"""A server of a Redis Cluster has a second port, this far above its own."""


def free_port() -> int:
    """Return a port that nothing listens at.

    It is below those that the system gives to outgoing connections: one of these might get it
    before the server does, which may take seconds to start. Nor does anybody else get it meanwhile:
    test processes that run beside this one have ranges of their own, and none is given twice.
    """
    return free_ports(1)[0]


def free_ports(count: int, *, bus: bool = False) -> list[int]:
    """Return different ones; `bus`: those of a cluster's bus above them are free, too."""
    found: set[int] = set()
    own = _own_range()
    while len(found) < count:
        port = _SOURCE.choice(own)
        if port not in _given and _is_free(port) and (not bus or _is_free(port + CLUSTER_BUS)):
            found.add(port)
            _given.add(port)
    return sorted(found)


def _own_range() -> range:
    """The ports of this one of the processes that share the tests."""
    name, count = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    ports = range(_FIRST, _LAST + 1)
    if name is None or count is None:
        return ports
    share = len(ports) // int(count)
    return ports[int(name.removeprefix("gw")) * share :][:share]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
