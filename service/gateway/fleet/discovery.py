"""Where the workers are that run by themselves: what KVSTITCH_WORKER_ADDRESSES names.

tcp://a:5700,tcp://b:5700     a list that never changes
dns://workers:5700            all addresses of a name, such as a headless service of Kubernetes
SCHEME://…                    what a plugin of this scheme finds, as kvstitch-ray does for ray://
"""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.data_folder import write_whole
from kvstitch.service.plugins import hooks, load_object
from kvstitch.service.shared.resources import uptime

logger = logging.getLogger(__name__)

EVERY_S = 5.0
Source = Callable[[], AsyncIterator[list[str]]]
"""Yields the addresses of all workers, now and whenever they have changed."""


async def static_list(addresses: str) -> AsyncIterator[list[str]]:
    """Yield the addresses of a list, separated by commas, once."""
    yield list(dict.fromkeys(filter(None, map(str.strip, addresses.split(",")))))


async def dns_name(url: str, every_s: float = EVERY_S) -> AsyncIterator[list[str]]:
    """Yield all addresses of dns://name:port, sorted, whenever they have changed."""
    last: list[str] | None = None
    while True:
        found = await look_up(url)
        if found is not None and found != last:
            last = found
            yield list(found)
        await asyncio.sleep(every_s)


async def look_up(url: str) -> list[str] | None:
    """Return all addresses of dns://name:port now; None: the resolver does not answer."""
    name, _, port = url.removeprefix("dns://").rpartition(":")
    name = name.strip("[]")
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        unknown = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None))
        if isinstance(error, socket.gaierror) and error.errno in unknown:
            return []
        logger.warning("%s cannot be looked up: %s", name, error)
        return None
    hosts = {(info[0], str(info[4][0])) for info in infos}
    return sorted(
        f"tcp://[{host}]:{port}" if family == socket.AF_INET6 else f"tcp://{host}:{port}"
        for family, host in hosts
    )


def source_of(setting: str) -> Source:
    """Return the source for a value of the setting, which the settings have checked."""
    if setting.startswith("dns://"):
        return partial(dns_name, setting)
    scheme = setting.partition("://")[0]
    if scheme == "tcp":
        return partial(static_list, setting)
    for found in hooks().worker_sources():
        if scheme in found:
            made: Source = load_object(found[scheme])(setting)
            return made
    raise InvalidSetting(
        f"worker_addresses: no plugin knows {scheme}:// (pip install kvstitch-{scheme})"
    )


FILE = "workers.json"
# Clocks of two machines do not run exactly alike, and a worker looks at its own now and then.
MARGIN = 1.05
MARGIN_S = 2.0


class KnownWorkers:
    """Which shared workers may hold something that a deletion has to reach, also after a restart.
    Reads its file at once.

        joined ── listed: it must answer ── left ── lease over: it has dropped what only it held
                                              └──── back at its address: it must answer

    A worker that hears nothing of a gateway's deletions for a lease drops what only it holds. So
    one that is no longer listed, and may be dead or only out of reach, counts as done a lease after
    it was spoken to last. Addresses are on disk before they are spoken to; those of an earlier
    process count from the start of this one.
    """

    def __init__(self, folder: Path, lease_s: float, clock: Callable[[], float] = uptime) -> None:
        self._path = folder / FILE
        self._wait_s = lease_s * MARGIN + MARGIN_S
        self._clock = clock
        self._listed: set[str] = set()
        self._until = dict.fromkeys(self._read(), clock() + self._wait_s)

    def joined(self, addresses: Iterable[str]) -> None:
        """Note that these addresses are listed, before messages are sent to them."""
        for address in addresses:
            self._listed.add(address)
            self._until.pop(address, None)
        self._write()

    def left(self, address: str, *, gone: bool) -> None:
        """Note that an address is not listed any more."""
        self._listed.discard(address)
        if not gone:
            self._until[address] = self._clock() + self._wait_s
        self._write()

    def absent(self) -> str | None:
        """Return why deletions must wait for a worker that is not listed; None if they need not."""
        now = self._clock()
        if over := [address for address, until in self._until.items() if until <= now]:
            for address in over:
                del self._until[address]
            self._write()
        if not self._until:
            return None
        address, until = min(self._until.items(), key=lambda item: item[1])
        return (
            f"the worker at {address} is not listed any more and may still hold deleted text for "
            f"{until - now:.0f} s"
        )

    def _read(self) -> list[str]:
        try:
            return [str(each) for each in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            logger.error("%s cannot be read, and is begun anew: %s", self._path, error)
            return []

    def _write(self) -> None:
        write_whole(self._path, json.dumps(sorted({*self._listed, *self._until})))
