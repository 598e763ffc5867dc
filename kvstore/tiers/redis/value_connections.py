"""Connections that carry only values, beside those of redis-py.

redis-py opens them with its settings (address, TLS, password, database and name). After that only
this code uses the socket, and `resp.py` receives values directly into their buffers. A connection
that was left in the middle of a reply, or that has unexpected bytes, is closed.
"""

import os
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvstore.tiers.redis.resp import Replies

_IDLE = 8  # connections kept


class ValueConnections:
    """A pool with as many connections as there are readers at the same time.

    Args:
        pool: redis-py's pool, whose settings are used.
    """

    def __init__(self, pool: Any) -> None:
        self._make = pool.connection_class
        self._settings = dict(pool.connection_kwargs)
        self._idle: deque[Any] = deque()
        self._owner = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        self._closed = True
        while self._idle:
            self._idle.pop().disconnect()

    @contextmanager
    def lend(self, give_up_at: float) -> Iterator[Replies]:
        """Lend a connection for the duration of the block; connects when none is idle.

        Args:
            give_up_at: latest time for a reply, by `time.monotonic` (seconds).

        Raises:
            redis.RedisError: it cannot connect.
        """
        connection = self._take() or self._connect()
        replies = Replies(connection._sock, give_up_at)
        try:
            yield replies
        finally:
            if replies.expected or self._closed or len(self._idle) >= _IDLE:
                connection.disconnect()
            else:
                self._idle.append(connection)

    def _connect(self) -> Any:
        connection = self._make(**self._settings)
        connection.connect()
        return connection

    def _take(self) -> Any:
        """The idle connection used last, if the server has not closed it."""
        if self._owner != os.getpid():  # after a fork the sockets belong to the parent too
            self._idle.clear()
            self._owner = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _has_unexpected_bytes(connection._sock):
                return connection
            connection.disconnect()


def _has_unexpected_bytes(connection: socket.socket) -> bool:
    """Whether bytes have come, or the end of the stream, although nothing was requested."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
