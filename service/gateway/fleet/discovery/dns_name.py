"""All addresses of a DNS name, such as a headless service of Kubernetes: dns://workers:5700."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

logger = logging.getLogger(__name__)

EVERY_S = 5.0


class DnsName:
    """Asks the resolver again every few seconds.

    A name that is not known has no addresses: its last worker has gone. A resolver that does not
    answer says nothing, and what was known goes on.

    Args:
        setting: dns://name:port.
        every_s: pause between two questions.
    """

    def __init__(self, setting: str, every_s: float = EVERY_S) -> None:
        name, _, port = setting.removeprefix("dns://").rpartition(":")
        self._name, self._port = name.strip("[]"), int(port)
        self._every_s = every_s

    async def watch(self) -> AsyncIterator[list[str]]:
        """Yield all addresses, sorted, whenever they have changed."""
        last: list[str] | None = None
        while True:
            found = await self.look_up()
            if found is not None and found != last:
                last = found
                yield list(found)
            await asyncio.sleep(self._every_s)

    async def look_up(self) -> list[str] | None:
        """All addresses now; None: the resolver does not answer."""
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)):
                return []
            logger.warning("%s cannot be looked up: %s", self._name, error)
            return None
        except OSError as error:
            logger.warning("%s cannot be looked up: %s", self._name, error)
            return None
        hosts = {(info[0], str(info[4][0])) for info in infos}
        return sorted(
            f"tcp://[{host}]:{self._port}"
            if family == socket.AF_INET6
            else f"tcp://{host}:{self._port}"
            for family, host in hosts
        )
