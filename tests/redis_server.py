"""A real redis-server for tests: its own port, nothing on disk, gone afterwards.

with redis_server(maxmemory="4mb") as server:
    RedisTier(server.url)
"""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.ports import free_port

_START_S = 60.0  # on a machine that does much else


class RedisServer:
    """One server process that a test can stop, start again and freeze."""

    def __init__(self, port: int, options: list[str]) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def patient_url(self) -> str:
        """For a service of which a test wants to see that it uses Redis, on a busy machine, too:
        by default it waits for half a second."""
        return f"{self.url}?socket_timeout=60&socket_connect_timeout=60"

    def start(self) -> None:
        """Start it (empty) and wait until it answers."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise RuntimeError("redis-server is not installed: apt-get install redis-server")
        command = [binary, "--port", str(self.port), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up_at = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.stop()
                raise RuntimeError(f"redis-server did not start on port {self.port}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Keep its sockets open and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def redis_server(
    port: int | None = None, maxmemory: str | None = None, policy: str = "noeviction"
) -> Iterator[RedisServer]:
    """A running server on ``port`` (a free one by default), e.g. ``maxmemory="4mb"``."""
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    if maxmemory is not None:
        options += ["--maxmemory", maxmemory, "--maxmemory-policy", policy]
    server = RedisServer(port or free_port(), options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
