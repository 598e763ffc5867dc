"""Where the workers are that run by themselves: what KVSTITCH_WORKER_ADDRESSES names.

tcp://a:5700,tcp://b:5700     a list that never changes
dns://workers:5700            all addresses of a name, such as a headless service of Kubernetes
SCHEME://…                    what a plugin of this scheme finds, as kvstitch-ray does for ray://
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial

from service.errors import InvalidSetting
from service.plugins import hooks, load_object

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
    """Return the source for a value of the setting, which `service.settings` has checked."""
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
