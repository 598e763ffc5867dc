"""Runs uvicorn around the gateway: signals, draining, exit codes.

SIGTERM, SIGINT ── /health/ready 503, new requests 503 ── open streams finish ── exit 0
a second signal ── exit at once
"""

from __future__ import annotations

import asyncio
import socket
from types import FrameType

import uvicorn

from service.errors import InvalidSetting
from service.gateway.app import create_app
from service.gateway.composition import Gateway
from service.gateway.connection_deadlines import with_deadlines


class DrainingServer(uvicorn.Server):
    """Keeps listening while it drains, so that new requests are told that it shuts down.

    Stops when the gateway reports a failure.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._draining = False
        self._task: asyncio.Task[None] | None = None

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

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; True ends its main loop."""
        return await super().on_tick(counter) or self._gateway.failure is not None

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
        # Streams had their time in drain(); what is still open is cut off.
        timeout_graceful_shutdown=2,
        server_header=False,
        http=with_deadlines(
            header_s=settings.header_timeout_s, reading_s=settings.reading_timeout_s
        ),
    )
    return DrainingServer(config, gateway)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket; done before anything is loaded.

    Raises:
        InvalidSetting: The address is taken, or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio turns Nagle's algorithm off only on sockets whose protocol says TCP. Left on, a
        # response's second write waits 40 ms for the client's delayed acknowledgement.
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(1)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise InvalidSetting(
            f"cannot listen on {host}:{port} ({error.strerror or error}): give another --port or "
            "--host, or stop what is there"
        ) from error
    return bound


def serve(gateway: Gateway, bound: socket.socket) -> str | None:
    """Serve on a socket from `listen` until a signal or a failure; returns why it failed."""
    server = make_server(gateway)
    try:
        server.run(sockets=[bound])
    except SystemExit:  # uvicorn raises it when the lifespan does not start
        return gateway.failure or "the service could not be started; the log says why"
    return gateway.failure
