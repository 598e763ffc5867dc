"""A real S3 server for tests (moto), in a process of its own, which checks signatures if asked.

with s3_server() as server:
    S3Tier(server.place())
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvstitch_s3.bucket import Place
from tests.ports import free_port

BUCKET = "kv-test"
KEY_ID = "kvstitch-tests"
SECRET = "kvstitch-tests-secret"  # of a server that ends with the tests
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
_START_S = 120.0  # on a machine that does much else


class S3Server:
    """One server process that a test can stop, start again (empty) and freeze."""

    def __init__(self, port: int, unchecked: int | None) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._port = port
        self._unchecked = unchecked
        self._process: subprocess.Popen[bytes] | None = None

    def place(self, prefix: str = "kv") -> Place:
        return Place(f"s3://{BUCKET}/{prefix}", self.endpoint, "us-east-1")

    def client(self, key_id: str = KEY_ID, secret: str = SECRET, service: str = "s3") -> Any:
        """Amazon's own client."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
        )

    def start(self) -> None:
        """Start it with an empty bucket and wait until it answers."""
        extra = {}
        if self._unchecked is not None:
            extra["INITIAL_NO_AUTH_ACTION_COUNT"] = str(self._unchecked)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **extra},
        )
        give_up_at = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    self.stop()
                    raise RuntimeError("moto's server did not start") from None
                time.sleep(0.02)
        if self._unchecked is None:
            self.client().create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        """Kill it; what it held is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def empty(self) -> None:
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for one in page.get("Contents", []):
                client.delete_object(Bucket=BUCKET, Key=one["Key"])


@contextmanager
def s3_server(unchecked: int | None = None) -> Iterator[S3Server]:
    """A running server.

    Args:
        unchecked: it checks the signatures of all requests but the first so many; None: of none.
            Then a bucket is there too.
    """
    server = S3Server(free_port(), unchecked)
    server.start()
    try:
        yield server
    finally:
        server.stop()
