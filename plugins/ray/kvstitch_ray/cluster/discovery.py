"""Where the workers on Ray are: a process of its own asks Ray, so that no gateway imports ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from importlib.util import find_spec

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.fleet.discovery import Source

COMMAND = (sys.executable, "-m", "kvstitch_ray.cluster.watch")
SCHEME = "ray://"
HEALTHY_AFTER_S = 60
_STOPPED_WITHIN_S = 5.0
logger = logging.getLogger(__name__)


def source(setting: str) -> Source:
    """Return the source of addresses for ray://auto or ray://HOST:PORT."""
    return RayActors(setting).watch


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
            raise InvalidSetting(f"{url} needs Ray: pip install 'kvstitch-ray[ray]'")
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
