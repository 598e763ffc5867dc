"""uvicorn around the gateway: signals, draining, exit codes. Knows no route.

SIGTERM, SIGINT ── /health/ready 503, new requests 503 ── open streams finish ── exit 0
again           ── exit at once
"""

from __future__ import annotations

import asyncio
from types import FrameType

import uvicorn

from service.errors import InvalidSetting
from service.gateway.app import create_app
from service.gateway.gateway import Gateway


class DrainingServer(uvicorn.Server):
    """Goes on listening while it drains, so that new requests get an answer that says so."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        gateway.on_failure = self._stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then stop. Second: stop now."""
        if self._draining:
            self._stop()
            self.force_exit = True
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._stop()
            return
        self._draining = True
        loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._gateway.drain()
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def make_server(gateway: Gateway, *, log_level: str = "info") -> DrainingServer:
    """A server for `gateway` at its settings' host and port."""
    settings = gateway.settings
    config = uvicorn.Config(
        create_app(gateway),
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        access_log=False,
        # Streams have had their time in drain(); what is still open is cut.
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    return DrainingServer(config, gateway)


def serve(gateway: Gateway) -> str | None:
    """Run until a signal or a failure; returns the failure's reason.

    Raises InvalidSetting if the port cannot be used.
    """
    server = make_server(gateway)
    try:
        server.run()
    except SystemExit:
        if gateway.failure is None:
            settings = gateway.settings
            raise InvalidSetting(
                f"cannot listen on {settings.host}:{settings.port}: is another service there? "
                "give another --port"
            ) from None
    return gateway.failure
