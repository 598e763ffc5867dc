"""A real Redis Cluster for tests: three masters with a replica each, on ports of their own.

with redis_cluster() as cluster:
    RedisTier(cluster.url)
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import redis

from tests.ports import free_ports
from tests.redis_server import RedisServer

NODE_TIMEOUT_MS = 30_000
"""A master that is silent for so long is replaced by its replica. On busy cores one may get no turn
for seconds."""
_READY_S = 120.0


class RedisCluster:
    """The servers, by port."""

    def __init__(self, servers: dict[int, RedisServer]) -> None:
        self.servers = servers
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in servers)

    def client(self, port: int) -> redis.Redis:
        """A client of that server alone."""
        return redis.Redis(port=port, socket_timeout=30)

    def replace_after(self, milliseconds: int) -> None:
        """Have masters replaced that are silent for so long."""
        for port in self.servers:
            with suppress(redis.ConnectionError), self.client(port) as client:
                client.config_set("cluster-node-timeout", milliseconds)

    def masters(self) -> dict[int, str]:
        """Ids by port of the servers that say they are masters."""
        found: dict[int, str] = {}
        for port in self.servers:
            with suppress(redis.RedisError), self.client(port) as client:
                if client.role()[0] == b"master":
                    found[port] = client.execute_command("CLUSTER MYID").decode()
        return found

    def replica_of(self, port: int) -> int:
        """The port of a master's replica."""
        with self.client(port) as client:
            return int(client.role()[2][0][1])

    def holder(self, slot: int) -> int:
        """The port of the master that has a slot."""
        for port in self.servers:
            try:
                with self.client(port) as client:
                    found = client.execute_command("CLUSTER SLOTS")
            except redis.RedisError:
                continue
            for first, last, master, *_ in found:
                if first <= slot <= last:
                    return int(master[1])
        raise RuntimeError(f"no server has slot {slot}")

    def flush(self) -> None:
        for port in self.masters():
            with self.client(port) as client:
                client.flushall()

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """Say on both masters that a slot is going to move; nothing moves yet."""
        masters = self.masters()
        with self.client(source) as old, self.client(target) as new:
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", masters[source])
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", masters[target])

    def move_values(self, source: int, target: int, names: list[str]) -> None:
        """Move these values of a slot that is moving."""
        with self.client(source) as old:
            old.execute_command("MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *names)

    def end_move(self, slot: int, source: int, target: int) -> None:
        """Move the rest of a slot, and give it to its new master."""
        masters = self.masters()
        with self.client(source) as old:
            while names := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
                old.execute_command("MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *names)
        for port in (target, source, *(set(masters) - {source, target})):
            with self.client(port) as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", masters[target])

    def wait_until_whole(self) -> None:
        """Wait until every server says that all slots are served, and every master has a replica.

        Raises:
            RuntimeError: that took too long.
        """
        give_up_at = time.monotonic() + _READY_S
        while not self.is_whole():
            if time.monotonic() > give_up_at:
                raise RuntimeError("the Redis Cluster did not become whole")
            time.sleep(0.05)

    def is_whole(self) -> bool:
        """Whether all slots are served, and every master has a replica that is up to date."""
        if len(self.masters()) != len(self.servers) / 2:
            return False
        for port in self.servers:
            try:
                with self.client(port) as client:
                    if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                        return False
                    facts = client.info("replication")
            except redis.RedisError:
                return False
            if facts["role"] == "slave" and facts["master_link_status"] != "up":
                return False
            # A replica that says it is up may get nothing yet. With a sync that is diskless even
            # one that is online gets nothing before its first sign, a second later.
            if facts["role"] == "master" and facts.get("slave0", {}).get("state") != "online":
                return False
        return True


@contextmanager
def redis_cluster(maxmemory: str = "64mb") -> Iterator[RedisCluster]:
    """A running cluster of three masters and three replicas, nothing kept on disk.

    Args:
        maxmemory: of each server.
    """
    with ExitStack() as stack:
        servers: dict[int, RedisServer] = {}
        for port in free_ports(6, bus=True):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options = [
                *("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder),
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
                *("--cluster-require-full-coverage", "no"),
                *("--maxmemory", maxmemory, "--repl-diskless-sync", "no"),
            ]
            servers[port] = RedisServer(port, options)
            servers[port].start()
            stack.callback(servers[port].stop)
        cli = shutil.which("redis-cli")
        assert cli is not None, "redis-cli comes with redis-server"
        places = [f"127.0.0.1:{port}" for port in servers]
        subprocess.run(
            [cli, "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        cluster = RedisCluster(servers)
        cluster.wait_until_whole()
        yield cluster
