"""A redis-py client with bounded waits whose errors are this package's. Knows no chunk.

Retries, back-off and the circuit breaker are the store's business. The redis package is imported
by ``start``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvstore.errors import TierError, TierFull, TierTimeout, TierUnavailable


class RedisClient:
    """One server.

    Args:
        url: ``redis://host:port/db``, ``rediss://`` or ``unix://``.
        timeout_s: longest wait for one socket operation, connecting included.
        name: of the tier, for messages.
    """

    def __init__(self, url: str, timeout_s: float, name: str) -> None:
        self._url = url
        self._timeout = timeout_s
        self._name = name
        # redis-py's types are too loose for strict checking; results are checked where used.
        self._client: Any = None
        self._errors: Any = None

    def start(self) -> None:
        """Prepare the client. Connects at first use, so a Redis that is down delays nothing.

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
        try:
            self._client = redis.Redis.from_url(
                self._url,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                socket_keepalive=True,
                # redis-py would retry three times with back-off: a dead server would cost seconds.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise TierError(f"bad Redis URL: {error}") from error

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        """The client, for as long as the block runs.

        Raises:
            TierUnavailable, TierTimeout, TierFull, TierError: in place of redis-py's errors.
        """
        client, errors = self._client, self._errors
        if client is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        try:
            yield client
        except errors.TimeoutError as error:
            raise TierTimeout(f"{self._name}: {error}") from error
        except errors.ConnectionError as error:
            raise TierUnavailable(f"{self._name}: {error}") from error
        except errors.OutOfMemoryError as error:
            raise TierFull(f"{self._name}: {error}") from error
        except errors.RedisError as error:
            raise TierError(f"{self._name}: {error}") from error
