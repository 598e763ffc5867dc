"""Talks to one Redis server through redis-py, with bounded waits and this package's errors.

There are no retries here: the store has a circuit breaker, and each server of a cluster has one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvstore.circuit_breaker import CircuitBreaker
from kvstore.errors import (
    ChunkError,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)
from kvstore.tiers.redis.redis_errors import NotServed, Redirected, error_of_reply, redis_errors
from kvstore.tiers.redis.resp import ProtocolError, Replies, ServerError
from kvstore.tiers.redis.value_connections import ValueConnections


class RedisServer:
    """One Redis server.

    Args:
        address: of this server, for messages.
        client: redis-py's client of it.
        values_pool: redis-py's pool whose settings the connections for values use.
        breaker: turns calls away while this server does not answer; None where the store's own
            breaker does that, because the tier is this server alone.
    """

    def __init__(
        self, address: str, client: Any, values_pool: Any, breaker: CircuitBreaker | None = None
    ) -> None:
        self.address = address
        self._client = client
        self._bulk = ValueConnections(values_pool)
        self._breaker = breaker

    @property
    def answers(self) -> bool:
        """Whether its circuit breaker lets calls through."""
        return self._breaker is None or self._breaker.state == "closed"

    def close(self) -> None:
        self._bulk.close()
        self._client.close()

    @contextmanager
    def session(self) -> Iterator[Any]:
        """redis-py's client, for the duration of the block; its errors become tier errors.

        Raises:
            TierUnavailable: no connection.
            TierTimeout: no answer in time.
            TierFull: the server is out of memory.
            ChunkCorrupt: somebody else has put something of another type under a chunk's name.
            Redirected: another server of the cluster has the slot.
            TierError: any other error of redis-py.
        """
        with self._guarded(), redis_errors(self.address):
            yield self._client

    @contextmanager
    def values(self, give_up_at: float) -> Iterator[Replies]:
        """A connection that carries only values, for the duration of the block.

        Args:
            give_up_at: latest time for a reply, by `time.monotonic` (seconds).

        Raises:
            TierUnavailable: no connection, or a reply that cannot be understood.
            TierTimeout: no answer in time.
            ChunkCorrupt: as in `session`.
            Redirected: as in `session`.
            TierError: the server answered with an error.
        """
        with self._guarded(), redis_errors(self.address):
            try:
                with self._bulk.lend(give_up_at) as replies:
                    yield replies
            except ServerError as error:
                raise error_of_reply(str(error), self.address) from error
            except ProtocolError as error:
                raise TierUnavailable(f"{self.address}: {error}") from error
            except TimeoutError as error:
                raise TierTimeout(f"{self.address}: {error}") from error
            except OSError as error:
                raise TierUnavailable(f"{self.address}: {error}") from error

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Ask the circuit breaker, tell it how the block went, and name this server in errors."""
        breaker = self._breaker
        if breaker is None:
            yield
            return
        if not breaker.allow():
            raise TierUnavailable(f"{self.address} did not answer lately", server=self.address)
        try:
            yield
        except (ChunkError, NotServed, TierFull, Redirected) as error:
            breaker.succeeded()  # it did answer
            if isinstance(error, TierError):
                error.server = self.address
            raise
        except BaseException as error:
            breaker.failed(timeout=isinstance(error, TierTimeout))
            if isinstance(error, TierError):
                error.server = self.address
            raise
        breaker.succeeded()
