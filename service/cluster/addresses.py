"""Addresses for workers that gateways on other machines connect to."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from service.errors import InvalidSetting


def free_address(host: str, ports: tuple[int, int] | None, before: str = "") -> str:
    """tcp://HOST:PORT with a port that nobody listens on now.

    Args:
        host: IP address of this machine.
        ports: First and last that may be used; None: any.
        before: Address that is taken again if it is free.

    Raises:
        InvalidSetting: All of them are taken, or this machine has no such address.
    """
    candidates: Iterable[int] = (0,) if ports is None else range(ports[0], ports[1] + 1)
    earlier = before.rpartition(":")[2]
    for port in (*((int(earlier),) if earlier else ()), *candidates):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ binds
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise InvalidSetting(f"no worker can listen on {host}: {error.strerror}") from error
            written = f"[{host}]" if ":" in host else host
            return f"tcp://{written}:{probe.getsockname()[1]}"
    if ports is None:
        raise InvalidSetting(f"no port of {host} is free")
    raise InvalidSetting(
        f"all ports {ports[0]}-{ports[1]} of {host} are taken: give more (--ports)"
    )
