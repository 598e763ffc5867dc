"""A Redis tier that is one server, and calls to every server of a tier."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from kvstore.errors import TierError, TierUnavailable
from kvstore.tiers.redis.redis_server import Redirected, RedisServer

T = TypeVar("T")
R = TypeVar("R")


class OneServer:
    """The only server of a tier; `Cluster` has the same methods."""

    def __init__(self, url: str, settings: Callable[[], dict[str, Any]], name: str) -> None:
        self._url = url
        self._settings = settings
        self._name = name
        self._server: RedisServer | None = None

    def start(self) -> None:
        """Prepare the client; it connects at first use, so a server that is down delays nothing."""
        settings = self._settings()
        import redis

        try:
            self._server = RedisServer(self._name, redis.Redis.from_url(self._url, **settings))
        except ValueError as error:
            raise TierError(f"bad Redis URL: {error}") from error

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def all(self) -> list[RedisServer]:
        """Return every server that takes writes."""
        if self._server is None:
            raise TierUnavailable(f"tier {self._name} is not started")
        return [self._server]

    def split(self, keys: Collection[str]) -> list[tuple[RedisServer, list[str]]]:
        """Group the keys by the server they are on; raises what `all` does."""
        return [(self.all()[0], list(keys))]

    def on_server(
        self, key: str, work: Callable[[RedisServer], T], while_moving: Callable[[Any], T]
    ) -> T:
        """Call `work` with the server of the key, again with another one if the slot has moved."""
        try:
            return work(self.all()[0])
        except Redirected as redirected:
            self.redirect(redirected)
            raise

    def replicas(self, server: RedisServer) -> int | None:
        """Return how many replicas could take over from this server; None: none does by itself."""
        return None

    def redirect(self, redirected: Redirected) -> RedisServer:
        """Return the server that a redirect names; if the slot has moved, remember that."""
        raise TierError(
            f"{self._name}: this server is part of a cluster: give redis+cluster://host:port"
        ) from redirected


def call_each(calls: Iterable[Callable[[], T]], joined: Callable[[list[T]], R]) -> R:
    """Call every server, also after one that failed."""
    answers: list[T] = []
    failed: TierError | None = None
    for call in calls:
        try:
            answers.append(call())
        except TierError as error:
            failed = error
    if failed is not None:
        failed.found = joined(answers)
        raise failed
    return joined(answers)
