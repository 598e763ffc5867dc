"""The socket that the service listens on."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from http.client import HTTPConnection

import httpx
import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.server import listen
from tests.service.gateway.rig import HANG_S, Rig


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_response_is_not_held_back_for_an_acknowledgement(host: str) -> None:
    """Nagle's algorithm is off on accepted connections: it costs 40 ms a response."""

    async def accepted() -> int:
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            option.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        server = await asyncio.start_server(answer, sock=listen(host, 0))
        async with server:
            address = server.sockets[0].getsockname()
            _, writer = await asyncio.open_connection(*address[:2])
            try:
                return await option
            finally:
                writer.close()

    assert asyncio.run(accepted())


def test_a_taken_port_is_a_clear_error() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(InvalidSetting, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_connection_is_kept_longer_than_clients_use_it(rig: Rig) -> None:
    """One that both give up at the same time ends a call that was just sent on it."""
    address = httpx.URL(rig.url)
    expiry = httpx.Limits().keepalive_expiry or 0.0
    with closing(HTTPConnection(address.host, address.port, timeout=HANG_S)) as connection:
        for pause_s in (0.0, expiry + 1.0):
            time.sleep(pause_s)
            connection.request("GET", "/health/ready")
            response = connection.getresponse()
            assert response.status == 200 and response.read()
