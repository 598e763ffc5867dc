"""The socket that the service listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from service.errors import InvalidSetting
from service.gateway.server import listen


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
