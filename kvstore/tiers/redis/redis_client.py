"""Talks to a Redis server through redis-py, with bounded waits and this package's errors.

There are no retries here: the store has a circuit breaker. The redis package is imported by
`start`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvstore.errors import ChunkCorrupt, TierError, TierFull, TierTimeout, TierUnavailable
from kvstore.tiers.redis.resp import ProtocolError, Replies, ServerError
from kvstore.tiers.redis.value_connections import ValueConnections

# Error replies that mean the server cannot answer now, whatever the command.
_NOT_NOW = ("LOADING", "MASTERDOWN", "NOAUTH")
# The error reply for a name that holds a list, a set or a hash where a value should be.
_OTHER_TYPE = "WRONGTYPE"


class RedisClient:
    """One Redis server.

    Args:
        url: `redis://host:port/db`, `rediss://` or `unix://`.
        timeout_s: longest wait for one socket operation, connecting included, in seconds.
        name: name of the tier, for messages.
    """

    def __init__(self, url: str, timeout_s: float, name: str) -> None:
        self._url = url
        self._timeout = timeout_s
        self._name = name
        # redis-py's types are too loose for strict checking; results are checked where used.
        self._client: Any = None
        self._errors: Any = None
        self._bulk: ValueConnections | None = None

    def start(self) -> None:
        """Prepare the client. It connects at first use, so a Redis that is down delays nothing.

        Raises:
            TierError: the redis package is missing or the URL is malformed.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise TierError("the Redis tier needs the redis package: pip install redis") from error
        self._errors = redis.exceptions
        settings = {
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "socket_keepalive": True,
            # redis-py would retry three times with back-off, so a dead server would cost seconds.
            "retry": Retry(NoBackoff(), 0),
        }
        try:
            self._client = redis.Redis.from_url(self._url, **settings)
            # With RESP3 the server may send messages that were not requested.
            pool = redis.ConnectionPool.from_url(self._url, protocol=2, **settings)
        except ValueError as error:
            raise TierError(f"bad Redis URL: {error}") from error
        self._bulk = ValueConnections(pool)

    def close(self) -> None:
        client, self._client = self._client, None
        bulk, self._bulk = self._bulk, None
        if bulk is not None:
            bulk.close()
        if client is not None:
            client.close()

    @contextmanager
    def session(self) -> Iterator[Any]:
        """redis-py's client, for the duration of the block; its errors become tier errors.

        Raises:
            TierUnavailable: not started, or no connection.
            TierTimeout: no answer in time.
            TierFull: the server is out of memory.
            ChunkCorrupt: somebody else has put something of another type under a chunk's name.
            TierError: any other error of redis-py.
        """
        client = self._client
        if client is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        with self._errors_as_ours():
            yield client

    @contextmanager
    def values(self, give_up_at: float) -> Iterator[Replies]:
        """A connection that carries only values, for the duration of the block.

        Args:
            give_up_at: latest time for a reply, by `time.monotonic` (seconds).

        Raises:
            TierUnavailable: not started, no connection, or a reply that cannot be understood.
            TierTimeout: no answer in time.
            ChunkCorrupt: as in `session`.
            TierError: the server answered with an error.
        """
        bulk = self._bulk
        if bulk is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        with self._errors_as_ours():
            try:
                with bulk.lend(give_up_at) as replies:
                    yield replies
            except ServerError as error:
                if str(error).startswith(_OTHER_TYPE):
                    raise ChunkCorrupt(f"{self._name}: {error}") from error
                not_now = str(error).startswith(_NOT_NOW)
                kind = TierUnavailable if not_now else TierError
                raise kind(f"{self._name}: {error}") from error
            except ProtocolError as error:
                raise TierUnavailable(f"{self._name}: {error}") from error
            except TimeoutError as error:
                raise TierTimeout(f"{self._name}: {error}") from error
            except OSError as error:
                raise TierUnavailable(f"{self._name}: {error}") from error

    @contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.TimeoutError as error:
            raise TierTimeout(f"{self._name}: {error}") from error
        except errors.ConnectionError as error:
            raise TierUnavailable(f"{self._name}: {error}") from error
        except errors.OutOfMemoryError as error:
            raise TierFull(f"{self._name}: {error}") from error
        except errors.RedisError as error:
            if str(error).startswith(_OTHER_TYPE):
                raise ChunkCorrupt(f"{self._name}: {error}") from error
            raise TierError(f"{self._name}: {error}") from error
