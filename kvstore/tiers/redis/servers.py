"""The servers of a Redis tier: one, or those of a cluster.

Of a cluster, redis-py's `RedisCluster` knows which server has which slot, and everything is asked
of that server as of a single one. Only servers that take writes are asked: a replica may lag
behind, and would show chunks that were deleted, or miss some and make us delete the rest.

While a slot moves, its values are on two servers. Until all have arrived at the new one, its chunks
are out of reach: reads ask the next tier, and deletions are tried again.

Each server has its own circuit breaker, so one that is down costs the chunks that it holds and no
others. While a breaker is open, or a server gave an error, the map of slots is read again, at most
once per `_REFRESH_S`: so a replica that took over is found. It is read at once when a slot moved.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from kvstitch.kvstore.errors import TierError, TierTimeout, TierUnavailable
from kvstitch.kvstore.tier_caller import BreakerSettings, CircuitBreaker
from kvstitch.kvstore.tiers.redis.redis_server import Redirected, RedisServer, redis_errors

T = TypeVar("T")
R = TypeVar("R")

_REFRESH_S = 0.5
_MOVES = 4  # a slot that moves more often during one call counts as moving


class SlotMoving(TierUnavailable):
    """The chunk's values are about to be another server's."""


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

    def on_server(self, key: str, work: Callable[[RedisServer], T]) -> T:
        """Call `work` with the server of the key, again with another one if the slot has moved."""
        try:
            return work(self.all()[0])
        except Redirected as redirected:
            raise TierError(
                f"{self._name}: this server is part of a cluster: give redis+cluster://host:port"
            ) from redirected

    def replicas(self, server: RedisServer) -> int | None:
        """Return how many replicas could take over from this server; None: none does by itself."""
        return None


class Cluster:
    """The servers of a tier that is a cluster. The methods do what those of `OneServer` do."""

    def __init__(
        self,
        url: str,
        settings: Callable[[], dict[str, Any]],
        name: str,
        breaker: BreakerSettings | None = None,
    ) -> None:
        self._url = url
        self._make_settings = settings
        self._name = name
        self._breaker = breaker or BreakerSettings()
        self._settings: dict[str, Any] = {}
        self._seeds: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._refreshing = threading.Lock()
        self._refreshed_at = 0.0
        self._started = False
        self._cluster: Any = None
        self._servers: dict[str, RedisServer] = {}

    def start(self) -> None:
        settings = self._make_settings()
        self._seeds, of_url = _parse(self._url)
        self._settings = {**settings, **of_url}
        self._started = True

    def close(self) -> None:
        with self._lock:
            self._started = False
            cluster, self._cluster = self._cluster, None
            servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        if cluster is not None:
            cluster.close()

    def all(self) -> list[RedisServer]:
        nodes = self._map().get_primaries()
        servers = [self._server(node.name) for node in nodes]
        if not all(server.answers for server in servers) and self._refresh():
            servers = [self._server(node.name) for node in self._map().get_primaries()]
        return servers

    def split(self, keys: Collection[str]) -> list[tuple[RedisServer, list[str]]]:
        by_name: dict[str, tuple[RedisServer, list[str]]] = {}
        for key in keys:
            server = self._server_of(key)
            by_name.setdefault(server.address, (server, []))[1].append(key)
        return list(by_name.values())

    def on_server(self, key: str, work: Callable[[RedisServer], T]) -> T:
        server = self._server_of(key)
        for _ in range(_MOVES):
            try:
                return work(server)
            except Redirected as redirected:
                if not redirected.moved:
                    break
                self._refresh(at_once=True)
                server = self._server(redirected.address)
            except (TierTimeout, TierUnavailable):
                self._refresh()
                raise
        raise SlotMoving(f"{server.address}: the slot of {key} is moving", server=server.address)

    def replicas(self, server: RedisServer) -> int | None:
        self._refresh()  # a replica that was lost since must not be waited for
        slots = self._map().nodes_manager.slots_cache
        of_server = (nodes for nodes in slots.values() if nodes[0].name == server.address)
        return len(next(of_server, [None])) - 1

    def _server_of(self, key: str) -> RedisServer:
        slot = self._map().keyslot(f"{{{key}}}")
        server = self._server(self._holder(slot))
        if not server.answers and self._refresh():
            server = self._server(self._holder(slot))
        return server

    def _holder(self, slot: int) -> str:
        cluster = self._map()
        # Where nobody serves the slot, any server says so.
        nodes = cluster.nodes_manager.slots_cache.get(slot) or cluster.get_primaries()
        return str(nodes[0].name)

    def _server(self, address: str) -> RedisServer:
        nodes = self._map().nodes_manager
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                host, _, port = address.rpartition(":")
                client = nodes.create_redis_node(host, int(port), **nodes.connection_kwargs)
                server = RedisServer(address, client, CircuitBreaker(self._breaker))
                self._servers[address] = server
            return server

    def _map(self) -> Any:
        """Return redis-py's client of the cluster, which knows the slots; connects at first use."""
        if not self._started:
            raise TierUnavailable(f"tier {self._name} is not started")
        if self._cluster is None:
            with self._connecting:
                if self._cluster is None:
                    cluster = self._connect()
                    self._refreshed_at = time.monotonic()
                    self._cluster = cluster
        return self._cluster

    def _connect(self) -> Any:
        import redis
        from redis.cluster import ClusterNode

        settings = dict(self._settings)
        retry = settings.pop("retry")
        with redis_errors(self._name):
            return redis.RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in self._seeds],
                require_full_coverage=False,  # slots of a lost server cost their chunks only
                retry=retry,
                ssl=self._url.startswith("rediss"),
                **settings,
            )

    def _refresh(self, *, at_once: bool = False) -> bool:
        """Read the map of slots again, unless this was done lately; return whether it was read."""
        if not self._refreshing.acquire(blocking=False):
            return False
        try:
            lately = not at_once and time.monotonic() - self._refreshed_at < _REFRESH_S
            if lately or self._cluster is None:
                return False
            try:
                with redis_errors(self._name):
                    self._cluster.nodes_manager.initialize()
            except TierError:
                return False  # the old map stays; the servers it names say what is wrong
            finally:
                self._refreshed_at = time.monotonic()  # also then: asking again takes as long
            return True
        finally:
            self._refreshing.release()


Servers = OneServer | Cluster


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


def _parse(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the addresses in the URL, and its other settings."""
    from redis.connection import parse_url

    scheme, _, rest = url.partition("+cluster://")
    before, slash, after = rest.partition("/")
    if not slash:
        before, question, after = before.partition("?")
        after = question + after
    login, at, addresses = before.rpartition("@")
    seeds: list[tuple[str, int]] = []
    settings: dict[str, Any] = {}
    try:
        for address in addresses.split(","):
            settings = dict(parse_url(f"{scheme}://{login}{at}{address}/{after}"))
            seeds.append((settings.pop("host"), settings.pop("port", 6379)))
    except (KeyError, ValueError) as error:
        raise TierError(f"bad address of a Redis Cluster: {error}") from error
    if settings.pop("db", 0):
        raise TierError("a Redis Cluster has one database: leave the number out of the address")
    settings.pop("connection_class", None)
    return seeds, settings
