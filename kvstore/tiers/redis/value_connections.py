"""Connections that carry values only, beside those of redis-py. Knows no chunk.

redis-py makes them (address, TLS, password, database and name are its settings), and from then on
the socket is ours alone: replies go straight to where they belong
(:mod:`kvstore.tiers.redis.resp`). One that was left in the middle of a reply, or that has bytes
nobody asked for, is closed.
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
    """As many as there are readers at a time.

    Args:
        pool: redis-py's pool, for its settings.
    """

    def __init__(self, pool: Any) -> None:
        self._make = pool.connection_class
        self._settings = dict(pool.connection_kwargs)
        self._idle: deque[Any] = deque()
        self._owner = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Close those that are idle; the others when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().disconnect()

    @contextmanager
    def lend(self, give_up_at: float) -> Iterator[Replies]:
        """A connection, as long as the block runs; connects when none is idle.

        Raises:
            redis.RedisError: it cannot connect; else what the block raises.
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
        """The connection used last, if the server has not closed it; None when there is none."""
        if self._owner != os.getpid():  # a fork: the sockets are its parent's too
            self._idle.clear()
            self._owner = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _has_something(connection._sock):
                return connection
            connection.disconnect()


def _has_something(connection: socket.socket) -> bool:
    """Whether there are bytes, or the end, where nothing was asked for."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
