"""Where the workers are that run by themselves: what KVSTITCH_WORKER_ADDRESSES names.

tcp://a:5700,tcp://b:5700     a list that never changes
dns://workers:5700            all addresses of a name, such as a headless service of Kubernetes
ray://auto                    Ray actors; a process of its own asks Ray, so that the gateway
                              never imports ray
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from importlib.util import find_spec

from service.errors import InvalidSetting

logger = logging.getLogger(__name__)

EVERY_S = 5.0
COMMAND = (sys.executable, "-m", "service.cluster.watch")
SCHEME = "ray://"
HEALTHY_AFTER_S = 60
_STOPPED_WITHIN_S = 5.0


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


class RayActors:
    """The addresses of the workers that `kvstitch cluster up` has started."""

    def __init__(
        self,
        url: str,
        *,
        command: Sequence[str] = COMMAND,
        backoff_s: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        place = url.removeprefix(SCHEME).strip("/")
        if not url.startswith(SCHEME) or (place != "auto" and ":" not in place):
            raise InvalidSetting(f"{url!r} must be ray://auto or ray://HOST:PORT")
        if find_spec("ray") is None:
            raise InvalidSetting(f"{url} needs Ray: pip install 'kvstitch[ray]'")
        self._command = (*command, "auto" if place == "auto" else SCHEME + place)
        self._backoff_s = backoff_s

    async def watch(self) -> AsyncGenerator[list[str], None]:
        """Yields the whole list whenever it changed."""
        pause, longest = self._backoff_s
        last: list[str] | None = None
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
            errors = asyncio.create_task(_last_line(process))
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    addresses = _addresses(line)
                    if addresses is not None and addresses != last:
                        last = addresses
                        yield addresses
                why = await errors
            finally:
                errors.cancel()
                await _stop(process)
            if loop.time() - began > HEALTHY_AFTER_S:
                pause = self._backoff_s[0]
            logger.warning(
                "the workers' addresses stay as they are: %s; asked again in %.0f s", why, pause
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def _addresses(line: bytes) -> list[str] | None:
    """Return the list in a line; None if it is something else that Ray has printed."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return [str(address) for address in json.loads(line)["addresses"]]
    return None


async def _last_line(process: Process) -> str:
    assert process.stderr is not None
    last = b""
    async for line in process.stderr:
        last = line.strip() or last
    return last.decode("utf-8", "replace") or "the process that asks Ray ended"


async def _stop(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STOPPED_WITHIN_S)
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def source_of(setting: str) -> Source:
    """Return the source for a value of the setting, which `service.settings` has checked."""
    if setting.startswith("dns://"):
        return partial(dns_name, setting)
    if setting.startswith("ray://"):
        return RayActors(setting).watch
    return partial(static_list, setting)
