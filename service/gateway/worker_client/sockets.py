"""The gateway's sockets to workers, and the folder of local ones.

Sockets lie in /tmp/kvstitch-*, which is locked for as long as it is used. A gateway that is killed
cannot remove its folder. The next one that starts does.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from kvstitch.service.messages import wire
from kvstitch.service.shared import fleet_secret

# A machine that is switched off closes no connection, so silence has to be noticed.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2_000, 8_000


def dealer(context: zmq.asyncio.Context, address: str, secret: str) -> zmq.asyncio.Socket:
    """Return a new socket for one connection to a worker."""
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


PREFIX = "kvstitch-"
YOUNG_S = 60.0  # a folder may not be locked yet


def make_folder() -> tuple[Path, int]:
    """Make a folder, after removing those that are not used any more."""
    remove_unused_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def remove_unused_folders(parent: Path) -> None:
    """Remove folders of this user that no gateway has locked and no process listens in."""
    try:
        sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    except OSError:
        sockets = ""
    for folder in parent.glob(f"{PREFIX}*"):
        if f"{folder}/" not in sockets:  # releases before the lock
            _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    try:
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not ours or time.time() - status.st_mtime < YOUNG_S:
            return
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # it is gone
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if all(stat.S_ISSOCK(entry.lstat().st_mode) for entry in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # it is used
    finally:
        os.close(lock)
