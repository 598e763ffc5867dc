"""Runs uvicorn around the gateway: signals, draining, exit codes, deadlines of connections.

SIGTERM, SIGINT ── /health/ready 503, new requests 503 ── open streams finish ── exit 0
a second signal ── exit at once
SIGHUP ── the settings are read again

uvicorn waits for ever for a client to say what it wants, and to take what it asked for. A client
that sends a byte of a header now and then costs it a connection; one that never reads a long answer
costs a place among the answers in flight, and the worker its memory. `with_deadlines` ends both.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch.service.gateway.app import create_app
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.settings import Settings
from kvstitch.service.shared import resources

logger = logging.getLogger("kvstitch")

KEEP_ALIVE_S = 75
"""Unused connections are kept longer than clients and balancers use them: httpx 5 s, aiohttp 15,
balancers 60. After uvicorn's 5 s a call of httpx could meet the closing of its connection."""


class DrainingServer(uvicorn.Server):
    """Keeps listening while it drains, so that new requests are told that it shuts down."""

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        reread: Callable[[], Settings] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._reread = reread
        self._reloads: set[asyncio.Task[None]] = set()
        self._one_reload = asyncio.Lock()
        self._on_ready = on_ready
        self._draining = False
        self._task: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, then stop; stop now at the second."""
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
        """Return True to end uvicorn's main loop, which calls this ten times a second."""
        if self._on_ready is not None and self._gateway.not_ready() is None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
        return await super().on_tick(counter) or self._gateway.failure is not None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._reread is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self._begin_reload, self._reread)

    def _begin_reload(self, reread: Callable[[], Settings]) -> None:
        task = asyncio.create_task(self._reload(reread), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self, reread: Callable[[], Settings]) -> None:
        async with self._one_reload:
            try:
                found = await self._gateway.reload(await asyncio.to_thread(reread))
            except KvstitchError as error:
                logger.error("settings stay as they were: %s", error.message)
            else:
                logger.info(found.told())

    def _begin_drain(self) -> None:
        self._task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._gateway.drain()
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def make_server(
    gateway: Gateway,
    *,
    reread: Callable[[], Settings] | None = None,
    on_ready: Callable[[], None] | None = None,
) -> DrainingServer:
    """Return a server for `gateway` at its settings' host and port."""
    settings = gateway.settings
    config = uvicorn.Config(
        create_app(gateway),
        host=settings.host,
        port=settings.port,
        log_config=None,  # its own handlers would write lines of another kind
        log_level="warning",
        access_log=False,
        # Streams had their time in drain(); what is still open is cut off.
        timeout_graceful_shutdown=2,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        http=with_deadlines(
            header_s=settings.header_timeout_s, reading_s=settings.reading_timeout_s
        ),
    )
    return DrainingServer(config, gateway, reread, on_ready)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket; done before anything is loaded. Raises InvalidSetting: the address is taken,
    or not of this machine."""
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


def serve(
    gateway: Gateway,
    bound: socket.socket,
    started: float,
    reread: Callable[[], Settings] | None = None,
) -> str | None:
    """Serve on a socket from `listen` until a signal or a failure; return why it failed. `started`:
    time on the monotonic clock from which on whoever started it waits."""

    def greet() -> None:
        resources.look_after_memory()
        host = gateway.settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)
        address = f"http://{host}:{bound.getsockname()[1]}/ui"
        logger.info("ready in %.0f s: %s", time.monotonic() - started, address)

    server = make_server(gateway, reread=reread, on_ready=greet)
    try:
        server.run(sockets=[bound])
    except SystemExit:  # uvicorn raises it when the lifespan does not start
        return gateway.failure or "the service could not be started; the log says why"
    return gateway.failure


def with_deadlines(*, header_s: float, reading_s: float) -> type[H11Protocol]:
    """Return a protocol that ends connections of clients that are too slow."""

    class DeadlineProtocol(H11Protocol):
        _header_deadline: asyncio.TimerHandle | None = None
        _reading_deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # So that `pause_writing` is called as soon as the system takes no more bytes, and
            # `resume_writing` when it has taken all: otherwise 64 KiB could wait unnoticed.
            transport.set_write_buffer_limits(high=0)
            self._header_deadline = self.loop.call_later(header_s, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._forget_header_deadline()
            elif self._header_deadline is None:  # the next request on this connection has begun
                self._header_deadline = self.loop.call_later(header_s, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._expect_reading(self._unsent_bytes())

        def resume_writing(self) -> None:
            self._forget_reading_deadline()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_header_deadline()
            self._forget_reading_deadline()
            super().connection_lost(exc)

        def _unsent_bytes(self) -> int:
            return self.transport.get_write_buffer_size()

        def _expect_reading(self, unsent: int) -> None:
            """Look again when the time is over: fewer bytes than now must wait then."""
            self._reading_deadline = self.loop.call_later(reading_s, self._check_reading, unsent)

        def _check_reading(self, unsent_before: int) -> None:
            if self._unsent_bytes() < unsent_before:  # slow, but it reads
                self._expect_reading(self._unsent_bytes())
            else:
                self.transport.abort()  # `close` would wait until the client has read everything

        def _forget_header_deadline(self) -> None:
            if self._header_deadline is not None:
                self._header_deadline.cancel()
                self._header_deadline = None

        def _forget_reading_deadline(self) -> None:
            if self._reading_deadline is not None:
                self._reading_deadline.cancel()
                self._reading_deadline = None

    return DeadlineProtocol
