"""A whole fleet on one machine, and each kind of process in it that can be killed.

own_workers                          shared_workers
gateway 0 ── worker, worker          gateway 0 ──┬── worker 0 … worker 3 (TCP)
gateway 1 ── worker, worker          gateway 1 ──┘

PostgreSQL with pgvector │ Redis Cluster: three masters, three replicas │ an S3 server
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Protocol, Self

import psycopg
import redis

from benchmarks.fleet.proofs.processes import (
    ChildWorker,
    FleetFailed,
    Gateway,
    StandaloneWorker,
    environment,
    free_port,
    until,
)
from tests.postgresql_server import PostgresqlServer, postgresql_server
from tests.redis_cluster import RedisCluster, redis_cluster
from tests.s3_server import ENVIRONMENT, S3Server, s3_server

Layout = Literal["own_workers", "shared_workers"]
LAYOUTS: tuple[Layout, ...] = ("own_workers", "shared_workers")
KINDS = ("worker", "gateway", "redis", "postgresql", "s3")
GATEWAYS, WORKERS = 2, 4
SECRET = "a-secret-of-this-fleet-and-no-other"  # of processes that end with the proof
FAILOVER_S = 30.0


class Part(Protocol):
    """What can be killed and comes back."""

    name: str

    def kill(self) -> None: ...

    def restart(self) -> None:
        """Begin to bring it back; does not wait until it serves."""

    def is_back(self) -> bool:
        """Whether the others know it again; only where that is not seen by `Fleet.is_whole`."""


class RedisMaster:
    """A master of the cluster; it comes back, empty, when its replica has taken its place."""

    def __init__(self, cluster: RedisCluster, port: int) -> None:
        self.name = "Redis master"
        self._cluster, self._port = cluster, port
        with cluster.client(port) as client:
            self._id = client.execute_command("CLUSTER MYID").decode()

    def kill(self) -> None:
        self._cluster.servers[self._port].stop()

    def restart(self) -> None:
        until(self._is_replaced, "no replica took the master's place", FAILOVER_S)
        self._cluster.servers[self._port].start()

    def is_back(self) -> bool:
        return True

    def _is_replaced(self) -> bool:
        """Whether three others are masters."""
        masters = self._cluster.masters()
        return self._port not in masters and len(masters) == len(self._cluster.servers) // 2


class Postgresql:
    """The database; what was committed is there when it comes back."""

    name = "PostgreSQL"

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()

    def is_back(self) -> bool:
        return True


class ObjectStore:
    """The S3 server; it comes back with an empty bucket."""

    name = "S3 server"

    def __init__(self, server: S3Server) -> None:
        self._server = server

    def kill(self) -> None:
        self._server.stop()

    def restart(self) -> None:
        self._server.start()

    def is_back(self) -> bool:
        return True


class Fleet:
    """Two gateways, four workers and what they share. Use as a context manager.

    Attributes:
        gateways: by number.
        database: the address of their database.
    """

    def __init__(
        self, folder: Path, model: Path, layout: Layout, settings: dict[str, object]
    ) -> None:
        """Nothing is started yet.

        Args:
            folder: for data folders and logs.
            settings: of all gateways and workers, beside those that make them a fleet.
        """
        self.layout = layout
        self.gateways: list[Gateway] = []
        self.workers: list[StandaloneWorker] = []
        self._folder, self._model, self._settings = folder, model, settings
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        enter = self._stack.enter_context
        self.redis: RedisCluster = enter(redis_cluster(maxmemory="512mb"))
        self.postgresql: PostgresqlServer = enter(postgresql_server(durable=True))
        self.s3: S3Server = enter(s3_server())
        _check_pgvector(self.postgresql)
        self.database = self.postgresql.database()
        addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(WORKERS)]
        shared: dict[str, object] = {
            "threads": 1,
            **self._settings,
            "model": self._model,
            "redis_url": self.redis.url,
            "s3_url": self.s3.place().url,
            "s3_endpoint": self.s3.endpoint,
            "s3_region": "us-east-1",
        }
        if self.layout == "shared_workers":
            shared["fleet_secret"] = SECRET
            for number, address in enumerate(addresses):
                own = {**shared, "data_dir": self._folder / f"worker-{number}"}
                variables = environment(own, **ENVIRONMENT)
                name = f"worker-{number}"
                self.workers.append(StandaloneWorker(name, address, variables, self._folder))
        for number in range(GATEWAYS):
            own = {**shared, "data_dir": self._folder / f"gateway-{number}"}
            own |= {"database": self.database, "vectors": "pgvector"}
            if self.layout == "shared_workers":
                own["worker_addresses"] = ",".join(addresses)
            else:
                own["workers"] = WORKERS // GATEWAYS
            variables = environment(own, **ENVIRONMENT)
            self.gateways.append(Gateway(f"gateway-{number}", free_port(), variables, self._folder))
        for process in (*self.workers, *self.gateways):
            process.start()
            self._stack.callback(process.kill)
        self.wait_ready()

    @property
    def workers_per_gateway(self) -> int:
        """Workers that each gateway can send to."""
        return WORKERS if self.layout == "shared_workers" else WORKERS // GATEWAYS

    def wait_ready(self) -> float:
        """Wait until every gateway serves with all its workers; the seconds that took.

        Raises:
            FleetFailed: One ends or is never ready.
        """
        began = time.monotonic()
        for gateway in self.gateways:
            try:
                until(lambda: self._is_ready(gateway), f"{gateway.name} is not ready")  # noqa: B023
            except FleetFailed as error:
                raise FleetFailed(f"{error}\n{self._logs()}") from None
            gateway.note_ready()
        return time.monotonic() - began

    def is_whole(self) -> bool:
        """Whether every gateway serves with all its workers, and Redis has all its replicas."""
        return self.redis.is_whole() and all(
            g.is_ready(self.workers_per_gateway) for g in self.gateways
        )

    def part(self, kind: str, chance: random.Random) -> Part:
        """One part of a kind, drawn from those there are.

        Raises:
            FleetFailed: There is no such kind.
        """
        if kind == "worker" and self.layout == "own_workers":
            gateway = chance.choice(self.gateways)
            return ChildWorker(gateway, chance.randrange(self.workers_per_gateway))
        if kind == "worker":
            return chance.choice(self.workers)
        if kind == "gateway":
            return chance.choice(self.gateways)
        if kind == "redis":
            return RedisMaster(self.redis, chance.choice(sorted(self.redis.masters())))
        if kind == "postgresql":
            return Postgresql(self.postgresql)
        if kind == "s3":
            return ObjectStore(self.s3)
        raise FleetFailed(f"no part is a {kind!r}; there are: {', '.join(KINDS)}")

    def versions(self) -> dict[str, str]:
        """Of the servers."""
        with closing(psycopg.connect(self.database)) as connection:
            rows = connection.execute(
                "SELECT current_setting('server_version'), "
                "(SELECT extversion FROM pg_extension WHERE extname = 'vector')"
            ).fetchall()
        with self.redis.client(next(iter(self.redis.masters()))) as client:
            redis_version = str(client.info("server")["redis_version"])
        postgresql, pgvector = rows[0]
        return {
            "postgresql": str(postgresql),
            "pgvector": str(pgvector),
            "redis": redis_version,
            "moto": version("moto"),
        }

    def redis_masters(self) -> list[redis.Redis]:
        """Clients of all masters."""
        return [self.redis.client(port) for port in self.redis.masters()]

    def ssd_files(self) -> set[str]:
        """Names of the chunks on all SSD tiers."""
        return {p.stem for p in self._folder.glob("*/kv/??/??/*.safetensors")}

    def _is_ready(self, gateway: Gateway) -> bool:
        for process in (*self.workers, *self.gateways):
            process.check()
        return gateway.is_ready(self.workers_per_gateway)

    def _logs(self) -> str:
        return "\n".join(process.log() for process in (*self.workers, *self.gateways))


def _check_pgvector(server: PostgresqlServer) -> None:
    """
    Raises:
        FleetFailed: Its pgvector has instructions that this machine lacks, and would take the
            server down with every insert.
    """
    vector = "'" + str([0.5] * 384) + "'"
    try:
        with closing(psycopg.connect(server.database(), autocommit=True)) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("CREATE TABLE made (vector halfvec(384))")
            connection.execute("CREATE INDEX ON made USING hnsw (vector halfvec_ip_ops)")
            for _ in range(3):  # the first meets no other
                connection.execute(f"INSERT INTO made VALUES ({vector})".encode())
    except psycopg.Error as error:
        raise FleetFailed(
            f"pgvector does not work on this machine: {error}. Wheels may be built for other "
            "processors: build it (scripts/build-pgvector.sh)"
        ) from None
