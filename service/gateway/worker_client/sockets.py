"""The gateway's sockets: how they are set up, and how one is seen to break."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from service.messages import wire
from service.shared import fleet_secret

# A worker's machine that is gone says so to nobody.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2_000, 8_000


def dealer(context: zmq.asyncio.Context, address: str, secret: str) -> zmq.asyncio.Socket:
    """A socket for one connection to a worker, which nobody has had before.

    Raises:
        InvalidSetting: others could reach the address, and there is no secret.
    """
    fleet_secret.require_secret(address, secret)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, f"gateway-{uuid.uuid4().hex}".encode())
    socket.setsockopt(zmq.LINGER, 200)  # lets Shutdown be sent, but does not delay closing
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RCVHWM, 0)
    if address.startswith("tcp://"):
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for who does not answer
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.IPV6, 1)
    if fleet_secret.is_encrypted(address, secret):
        own = fleet_secret.curve_keys(secret, "gateway")
        socket.curve_secretkey, socket.curve_publickey = own.secret, own.public
        socket.curve_serverkey = fleet_secret.curve_keys(secret, "worker").public
    return socket


async def when_broken(socket: zmq.asyncio.Socket, matters: Callable[[], bool]) -> None:
    """Return when the connection of a socket breaks at a time when that matters."""
    monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())
            if event["event"] == zmq.EVENT_DISCONNECTED and matters():
                return
    finally:
        if not socket.closed:
            socket.disable_monitor()
        monitor.close(linger=0)
