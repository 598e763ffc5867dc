"""Talks to one Redis server, with bounded waits and this package's errors.

redis-py opens the connections (address, TLS, password, database, name), sends the commands and
gives error replies their meaning. Only the values of a chunk are received here, because redis-py
hands out every value as a new bytes object, which would then have to be copied to its place:
`ValueReplies` reads them from the same connection straight into their buffers.

There are no retries here: the store has a circuit breaker, and each server of a cluster has one.
"""

import io
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvstitch.kvstore.errors import (
    ChunkCorrupt,
    ChunkError,
    KvStoreError,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)
from kvstitch.kvstore.tier_caller import CircuitBreaker

Words = tuple[str | int, ...]
"""A command."""

_IDLE = 8  # connections for values that are kept for the next reader
_BUFFER = 1 << 16  # bytes of replies that are read ahead, and copied
_LONGEST_LINE = 1 << 10
_LONGEST_VALUE = 512 << 20  # the limit of Redis itself
_NIL = (b"$-1\r\n", b"_\r\n")  # in RESP2 and RESP3


class NotServed(TierUnavailable):
    """The server answers, but the cluster cannot serve this slot now."""


class Redirected(KvStoreError):
    """The slot is, or is about to be, another server's. No tier lets this out."""

    def __init__(self, text: str, address: str = "", *, moved: bool = False) -> None:
        super().__init__(text)
        self.moved = moved
        self.address = address


class RedisServer:
    def __init__(self, address: str, client: Any, breaker: CircuitBreaker | None = None) -> None:
        self.address = address
        self._client = client
        self._pool = client.connection_pool
        self._breaker = breaker
        self._lock = threading.Lock()
        self._readers = 0
        self._closed = False

    @property
    def answers(self) -> bool:
        """Whether its circuit breaker lets calls through."""
        return self._breaker is None or self._breaker.state == "closed"

    def close(self) -> None:
        """Close idle connections now, and those of readers when they are returned."""
        self._closed = True
        self._pool.disconnect(inuse_connections=False)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Yield redis-py's client; its errors become tier errors."""
        with self._guard(), redis_errors(self.address):
            yield self._client

    @contextmanager
    def values(self, give_up_at: float) -> Iterator["ValueReplies"]:
        """Yield a connection for receiving values. Raises what `session` does."""
        with self._guard(), redis_errors(self.address):
            connection = self._pool.get_connection()
            with self._lock:
                self._readers += 1
            replies = ValueReplies(connection, give_up_at)
            try:
                yield replies
            finally:
                with self._lock:
                    self._readers -= 1
                    keep = self._readers < _IDLE and not self._closed
                if not (keep and replies.complete):
                    connection.disconnect()
                self._pool.release(connection)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Ask the circuit breaker, tell it how the block went, and name this server in errors."""
        breaker = self._breaker
        if breaker is None:
            yield
            return
        if not breaker.allow():
            raise TierUnavailable(f"{self.address} did not answer lately", server=self.address)
        try:
            with breaker.watching(_server_answered):
                yield
        except TierError as error:
            error.server = self.address
            raise


def _server_answered(error: Exception) -> bool:
    return isinstance(error, ChunkError | NotServed | TierFull | Redirected)


class ValueReplies:
    """Commands and the replies to them on one connection of redis-py."""

    def __init__(self, connection: Any, give_up_at: float) -> None:
        self._connection = connection
        self._socket = _Receiver(connection._sock, give_up_at)
        self._reader = io.BufferedReader(self._socket, _BUFFER)
        self._expected = 0
        self._taken = 0

    @property
    def complete(self) -> bool:
        """Whether all replies have come and nothing else. If not, close the connection."""
        return not self._expected and self._taken == self._socket.received

    def ask(self, commands: Sequence[Words]) -> None:
        """Send these commands; their replies come in the same order."""
        self._expected += len(commands)
        self._connection.send_packed_command([b"".join(map(_packed, commands))])

    def fill(self, target: memoryview) -> int | None:
        """Receive the next value into `target`, if it has that length."""
        line = self._line()
        if line != b"$%d\r\n" % len(target):
            return self._length(line)
        self._fill(target)
        return len(target)

    def value(self) -> bytes | None:
        """Receive one value of unknown length; None when there is no such value."""
        nbytes = self._length(self._line())
        value = None
        if nbytes is not None:
            value = bytearray(nbytes)
            self._fill(memoryview(value))
        if not self.complete:
            raise _invalid("more came than was asked for")
        return None if value is None else bytes(value)

    def flags(self, count: int) -> None:
        """Receive `count` replies that are each 0 or 1, and ignore which."""
        for _ in range(count):
            line = self._line()
            if line not in (b":0\r\n", b":1\r\n"):
                raise self._unexpected(line)
            self._expected -= 1

    def _length(self, line: bytes) -> int | None:
        """Return the length that the first line of a value gives; None for no such value."""
        if line in _NIL:
            self._expected -= 1
            return None
        if line[:1] != b"$" or not line[1:-2].isdigit():
            raise self._unexpected(line)
        nbytes = int(line[1:-2])
        if nbytes > _LONGEST_VALUE:
            raise _invalid(f"a value of {nbytes} bytes")
        return nbytes

    def _fill(self, target: memoryview) -> None:
        count = self._reader.readinto(target)
        end = self._reader.read(2)
        self._taken += count + len(end)
        if len(end) < 2:
            raise ConnectionError("the server closed the connection")
        if end != b"\r\n":
            raise _invalid(f"a value that does not end: {end!r}")
        self._expected -= 1

    def _line(self) -> bytes:
        line = self._reader.readline(_LONGEST_LINE)
        self._taken += len(line)
        if line.endswith(b"\r\n"):
            return line
        if len(line) == _LONGEST_LINE:
            raise _invalid(f"a line without end: {line[:16]!r}")
        raise ConnectionError("the server closed the connection")

    def _unexpected(self, line: bytes) -> Exception:
        """Return the exception for a line that is not what was requested."""
        if line.startswith(b"-"):
            text = line[1:-2].decode(errors="replace")
            error: Exception = self._connection._parser.parse_error(text)
            return error
        return _invalid(f"not a reply to what was asked: {line[:32]!r}")


class _Receiver(io.RawIOBase):
    """A socket with a deadline, as the buffered reader's source; it counts the bytes received."""

    def __init__(self, connection: socket.socket, give_up_at: float) -> None:
        self._connection = connection
        self._give_up_at = give_up_at
        self.received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._connection.recv_into(buffer)
        if time.monotonic() > self._give_up_at:
            raise TimeoutError("a read took over its deadline")
        self.received += count
        return count


@contextmanager
def redis_errors(address: str) -> Iterator[None]:
    """Turn redis-py's errors and those of the socket in the block into ours."""
    try:
        yield
    except Exception as error:
        ours = error_of_redis(error, address)
        if ours is error:
            raise
        raise ours from error


def error_of_redis(error: Exception, address: str) -> Exception:
    """Return the exception for one of redis-py or of a socket; any other comes back as it is."""
    from redis import exceptions

    text = f"{address}: {error}"
    # An error reply for a name that holds a list, a set or a hash where a value should be.
    other_type = str(error).startswith("WRONGTYPE")
    match error:
        case exceptions.AskError():  # also MovedError
            moved = isinstance(error, exceptions.MovedError)
            return Redirected(text, f"{error.host}:{error.port}", moved=moved)
        case exceptions.TryAgainError():
            return Redirected(text)
        case exceptions.TimeoutError() | TimeoutError():
            return TierTimeout(text)
        case exceptions.MasterDownError() | exceptions.ConnectionError():
            return TierUnavailable(text)
        case exceptions.InvalidResponse():
            return TierUnavailable(text)
        case exceptions.ClusterError() | exceptions.RedisClusterException():
            return NotServed(text)
        case exceptions.OutOfMemoryError():
            return TierFull(text)
        case exceptions.RedisError():
            return ChunkCorrupt(text) if other_type else TierError(text)
        case KvStoreError():
            return error
        case OSError():
            return TierUnavailable(text)
    return error


def _packed(words: Words) -> bytes:
    """Encode a command. redis-py's own encoder, written in Python, takes three times as long."""
    encoded = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(w), w) for w in encoded])


def _invalid(text: str) -> Exception:
    from redis.exceptions import InvalidResponse

    error: Exception = InvalidResponse(text)
    return error
