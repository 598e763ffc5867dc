"""Which server a chunk is on: the only one, or one of a Redis Cluster."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from kvstore.errors import TierError, TierUnavailable
from kvstore.tiers.redis.redis_errors import Redirected
from kvstore.tiers.redis.redis_server import RedisServer

T = TypeVar("T")

CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")


class Servers(Protocol):
    """The servers of a tier."""

    def start(self) -> None:
        """Prepare the clients; they connect at first use, so a server that is down delays nothing.

        Raises:
            TierError: the redis package is missing or the URL is malformed.
        """
        ...

    def close(self) -> None: ...

    def all(self) -> Sequence[RedisServer]:
        """Every server that takes writes.

        Raises:
            TierUnavailable: not started, or no server tells which there are.
        """
        ...

    def split(self, keys: Collection[str]) -> list[tuple[RedisServer, list[str]]]:
        """The keys by the server they are on; raises as `all`."""
        ...

    def on_server(
        self, key: str, work: Callable[[RedisServer], T], while_moving: Callable[[Any], T]
    ) -> T:
        """Call `work` with the server of the key, again with another one if the slot has moved.

        Args:
            key: chunk key.
            work: may be called several times.
            while_moving: called instead while the slot is moving, with a client of redis-py that
                follows redirects command by command. Slower, and without transactions.
        """
        ...

    def replicas(self, server: RedisServer) -> int | None:
        """How many replicas could take over from this server; None: none does by itself."""
        ...

    def learn(self, redirected: Redirected) -> RedisServer:
        """The server that a redirect names; if the slot has moved for good, this is kept.

        Raises:
            TierError: there is no other server.
        """
        ...


class OneServer:
    """A tier that is one server.

    Args:
        url: `redis://host:port/db`, `rediss://` or `unix://`.
        settings: further settings of redis-py.
        name: name of the tier, for messages.
    """

    def __init__(self, url: str, settings: Callable[[], dict[str, Any]], name: str) -> None:
        self._url = url
        self._settings = settings
        self._name = name
        self._server: RedisServer | None = None

    def start(self) -> None:
        settings = self._settings()
        import redis

        try:
            client = redis.Redis.from_url(self._url, **settings)
            # With RESP3 the server may send messages that were not requested.
            pool = redis.ConnectionPool.from_url(self._url, protocol=2, **settings)
        except ValueError as error:
            raise TierError(f"bad Redis URL: {error}") from error
        self._server = RedisServer(self._name, client, pool)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def all(self) -> list[RedisServer]:
        if self._server is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        return [self._server]

    def split(self, keys: Collection[str]) -> list[tuple[RedisServer, list[str]]]:
        return [(self.all()[0], list(keys))]

    def on_server(
        self, key: str, work: Callable[[RedisServer], T], while_moving: Callable[[Any], T]
    ) -> T:
        try:
            return work(self.all()[0])
        except Redirected as redirected:
            self.learn(redirected)
            raise

    def replicas(self, server: RedisServer) -> None:
        return None

    def learn(self, redirected: Redirected) -> RedisServer:
        raise TierError(
            f"{self._name}: this server is part of a cluster: give redis+cluster://host:port"
        ) from redirected
