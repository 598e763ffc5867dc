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
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from typing import Protocol

from service.errors import InvalidSetting

logger = logging.getLogger(__name__)

EVERY_S = 5.0
COMMAND = (sys.executable, "-m", "service.cluster.watch")
SCHEME = "ray://"
HEALTHY_AFTER_S = 60
_STOPPED_WITHIN_S = 5.0


class Source(Protocol):
    """Knows where workers are."""

    def watch(self) -> AsyncIterator[list[str]]:
        """Yield all addresses, now and whenever they have changed."""
        ...


class StaticList:
    """Never changes.

    Args:
        setting: addresses, separated by commas.
    """

    def __init__(self, setting: str) -> None:
        self._addresses = list(dict.fromkeys(filter(None, map(str.strip, setting.split(",")))))

    async def watch(self) -> AsyncIterator[list[str]]:
        """Yield the addresses, once."""
        yield list(self._addresses)


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


class RayActors:
    """The addresses of the workers that `kvstitch cluster up` has started.

    Args:
        url: ray://auto, or ray://HOST:PORT of the cluster's Ray Client server.
        command: Prints lists; the address is its argument.
        backoff_s: First and longest pause before it is started again.

    Raises:
        InvalidSetting: The URL is another, or Ray is not installed.
    """

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

    async def watch(self) -> AsyncIterator[list[str]]:
        """Yields the whole list whenever it changed.

        While Ray's head is away nothing is yielded: the last list stays, and workers go on.
        """
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
    """The list in a line; None if it is something else that Ray has printed."""
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
    """The source for a value of the setting, which `service.settings` has checked."""
    if setting.startswith("dns://"):
        return DnsName(setting)
    if setting.startswith("ray://"):
        return RayActors(setting)
    return StaticList(setting)
