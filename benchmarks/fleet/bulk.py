"""`kvstitch bulk` on a Ray cluster of three nodes: every chunk exactly once, and what it costs.

    python -m benchmarks.fleet.bulk [--chunks 2000] [--workers 1 2 3] [--out FILE]

Everything is real and on this machine: three nodes by ray.cluster_utils, PostgreSQL, Redis, the
demo model, the command itself. The documents are tiny and no two chunks are the same, so that each
has a key of its own. The embedder counts hashed words behind HTTP, because embedding is not what is
measured; the results say so.

exactly_once   the driver is killed at a third of the chunks, a node at two thirds of the rest, and
               the command is given again until all is done. Redis counts its SETs: as many as there
               are values, so none was written twice.
scaling        the same input into fresh databases with 1, 2 and 3 workers: chunks per second, and
               processor seconds per chunk, which do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fleet.hashing_endpoint import hashing_endpoint
from service.settings import load
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet/bulk.json")
CHUNK_TOKENS = 48
WORDS_PER_DOCUMENT = 100
SYLLABLES = tuple(consonant + vowel for consonant in "bdklmn" for vowel in "aeio")
NODES = 3
MOST_COMMANDS = 3  # given again for documents that failed
START_S = 300.0  # of a node
OBJECT_STORE_BYTES = 80 << 20  # of each node: only numbers and counts go through it
TICKS = os.sysconf("SC_CLK_TCK")


def write_documents(path: Path, documents: int, seed: int) -> None:
    """Documents whose chunks are all different: every sentence has a number of its own."""
    source = random.Random(seed)
    with path.open("w") as file:
        for number in range(documents):
            words = ["".join(source.choices(SYLLABLES, k=2)) for _ in range(WORDS_PER_DOCUMENT)]
            sentences = [
                f"Entry {number}-{start} tells {' '.join(words[start : start + 8])}."
                for start in range(0, WORDS_PER_DOCUMENT, 8)
            ]
            row = {"doc_id": f"d{number}", "title": f"Item {number}", "text": " ".join(sentences)}
            file.write(json.dumps(row) + "\n")


class Bench:
    """The servers of one measurement, and the command with its environment."""

    def __init__(self, database: str, redis: Any, embedder: str, rows: Path, codec: str) -> None:
        self.database = database
        self.redis = redis
        self._rows = rows
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("KVSTITCH_")},
            "KVSTITCH_DATABASE": database,
            "KVSTITCH_REDIS_URL": redis.url,
            "KVSTITCH_EMBEDDER_URL": embedder,
            "KVSTITCH_EMBEDDER": "hashing",
            "KVSTITCH_CHUNK_TOKENS": str(CHUNK_TOKENS),
            "KVSTITCH_CODEC": codec,
        }

    def start(self, address: str, workers: int, range_documents: int) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "service.cli", "bulk", "--input", str(self._rows), "--json",
            "--ray-address", address, "--workers", str(workers),
            "--range-documents", str(range_documents),
        ]  # fmt: skip
        return subprocess.Popen(
            command,
            env=self._environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def standing(self) -> dict[str, Any]:
        """How far the run is; empty before it has begun."""
        from service.bulk.run import progress_of_runs

        found = progress_of_runs(load(database=self.database), None)
        return found[0][0].as_json() if found else {}

    def counts(self) -> dict[str, int]:
        """What Redis and the catalog hold, and what Redis has been sent."""
        import psycopg
        import redis

        with redis.Redis.from_url(self.redis.url) as client:
            commands: Any = client.info("commandstats")
            heads = sum(1 for _ in client.scan_iter("*:h", count=1000))
            values = int(client.dbsize())
        with psycopg.connect(self.database) as connection:
            row = connection.execute("SELECT count(*) FROM kvstitch_catalog.chunks").fetchone()
        assert row is not None
        return {
            "catalog_chunks": int(row[0]),
            "redis_chunks": heads,
            "redis_values": values,
            "redis_sets": int(commands["cmdstat_set"]["calls"]),
        }


def finish(running: subprocess.Popen[str], *, may_fail: bool = False) -> dict[str, Any]:
    """The command's last line, when it has ended.

    Args:
        may_fail: whether documents may have failed, which the next command tries again.
    """
    output, _ = running.communicate()
    if running.returncode != 0 and not may_fail:
        raise RuntimeError(f"the command ended with {running.returncode}: {output[-2000:]}")
    last: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return last


def until_chunks(bench: Bench, running: subprocess.Popen[str], chunks: float) -> int:
    """Wait until so many chunks are stored, by ranges' signs of life; how many they are."""
    while running.poll() is None:
        standing = bench.standing()
        if standing and standing["stored"] + standing["present"] >= chunks:
            return int(standing["chunks"])
        time.sleep(0.5)
    raise RuntimeError("the command ended before it was to be killed: ingest more chunks")


def exactly_once(bench: Bench, cluster: Any, nodes: list[Any], args: Any) -> dict[str, Any]:
    """The driver is killed, then a node, then the command is let through."""
    kills: list[dict[str, Any]] = []
    first = bench.start(cluster.address, NODES, args.range_documents)
    chunks = until_chunks(bench, first, args.chunks / 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kills.append({"what": "driver", "at_chunks": chunks})
    second = bench.start(cluster.address, NODES, args.range_documents)
    chunks = until_chunks(bench, second, args.chunks * 2 / 3)
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    kills.append({"what": "node", "at_chunks": chunks})
    ended = finish(second, may_fail=True)
    failed: list[int] = []
    while ended["failed"] and len(failed) < MOST_COMMANDS:
        failed.append(ended["failed"])
        ended = finish(bench.start(cluster.address, 1, args.range_documents), may_fail=True)
    counts = bench.counts()
    report = {name: ended[name] for name in ("done", "failed", "chunks", "stored", "present")}
    whole = counts["catalog_chunks"] == ended["chunks"]
    # One key per chunk, as every document has a title of its own; S may be one more.
    more = counts["redis_chunks"] - counts["catalog_chunks"]
    return {
        "kills": kills,
        "failed_until_asked_again": failed,
        **report,
        **counts,
        "every_chunk_once": whole and more in (0, 1),
        "no_second_put": counts["redis_sets"] == counts["redis_values"],
    }


def scaling(
    bench: Bench, cluster: Any, workers: int, args: Any, servers: list[int]
) -> dict[str, Any]:
    """One run with so many workers."""
    before = sum(map(tree_cpu_s, servers))
    ended = finish(bench.start(cluster.address, workers, args.range_documents))
    chunks = ended["own_chunks"]
    cpu = {
        "ingest": ended["ingest_cpu_s"],
        "worker": ended["worker_cpu_s"],
        "postgresql_and_redis": sum(map(tree_cpu_s, servers)) - before,
    }
    return {
        "workers": workers,
        "chunks": chunks,
        "seconds": ended["seconds"],
        "chunks_per_s": chunks / ended["seconds"],
        "cpu_s_per_chunk": {name: seconds / chunks for name, seconds in cpu.items()},
        "cpu_s_per_chunk_together": sum(cpu.values()) / chunks,
        **{name: value for name, value in bench.counts().items() if name.startswith("redis")},
    }


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of a process, of those that it has waited for, and of its children."""
    total = 0
    parents: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    for one, (parent, ticks) in parents.items():
        total += ticks if pid in (one, parent) else 0
    return total / TICKS


@contextmanager
def ray_cluster(folder: Path) -> Iterator[tuple[Any, list[Any]]]:
    """Three nodes with a processor each; the first is the head, which stays."""
    temp = folder / "ray"
    temp.mkdir()
    os.environ |= {
        "RAY_TMPDIR": str(folder),  # read once, when ray is imported
        "RAY_USAGE_STATS_ENABLED": "0",
        # Nodes of a machine that is busy with other things take longer to start than they may.
        "RAY_raylet_start_wait_time_s": str(round(START_S)),
        "RAY_agent_register_timeout_ms": str(round(1000 * START_S)),
    }
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
    }
    with _patient_start():
        head = {**options, **_agent_ports(), "temp_dir": str(temp)}
        cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes = [
                cluster.add_node(wait=False, **options, **_agent_ports()) for _ in range(NODES - 1)
            ]
            cluster.wait_for_nodes(START_S)
            yield cluster, nodes
        finally:
            cluster.shutdown()


def _agent_ports() -> dict[str, int]:
    """Ports of a node's agents. A node waits only for so long for agents that choose their own."""
    names = ("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port",
             "metrics_export_port")  # fmt: skip
    probes = [socket.socket() for _ in names]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return dict(zip(names, ports, strict=True))


@contextmanager
def _patient_start() -> Iterator[None]:
    """Ray gives a node 30 s to start, which is not enough on a machine that is busy."""
    from ray._private import services

    look: Any = services.get_node

    def wait(address: str, node_id: str) -> Any:
        give_up_at = time.monotonic() + START_S
        while True:
            try:
                return look(address, node_id)
            except RuntimeError:
                if time.monotonic() > give_up_at:
                    raise

    services.get_node = wait
    try:
        yield
    finally:
        services.get_node = look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=2000, help="about so many")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--scaling-chunks", type=int, help="default: as many")
    parser.add_argument("--range-documents", type=int, default=32)
    parser.add_argument("--chunks-per-document", type=float, default=17.3, help="to begin with")
    parser.add_argument("--codec", default="raw", help="of chunks: Redis holds all in memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    # The servers of the tests, which a checkout has.
    from tests.postgresql_server import postgresql_server
    from tests.redis_server import redis_server

    with (
        tempfile.TemporaryDirectory(prefix="kvb-", dir="/tmp") as folder,
        hashing_endpoint() as embedder,
        postgresql_server() as postgresql,
    ):
        whole, part = Path(folder, "rows.jsonl"), Path(folder, "scaling.jsonl")
        write_documents(whole, round(args.chunks / args.chunks_per_document), args.seed)
        count = args.scaling_chunks or args.chunks
        write_documents(part, round(count / args.chunks_per_document), args.seed + 1)
        result: dict[str, Any] = {
            "machine": describe(),
            "given": {name: value for name, value in vars(args).items() if name != "out"},
            "embedder": "hashed words behind HTTP (benchmarks/fleet/hashing_endpoint.py), no model",
            "model": "demo model, one thread per worker",
            "chunk_tokens": CHUNK_TOKENS,
            "nodes": NODES,
        }
        result["packages"] = {"ray": _version("ray")}
        rows: list[dict[str, Any]] = []
        with ray_cluster(Path(folder)) as (cluster, nodes):
            for workers in args.workers:
                with redis_server() as redis:
                    bench = Bench(postgresql.database(), redis, embedder, part, args.codec)
                    servers = (postgresql._process, redis._process)
                    pids = [server.pid for server in servers if server is not None]
                    rows.append(scaling(bench, cluster, workers, args, pids))
                print(json.dumps(rows[-1], indent=2), flush=True)
            with redis_server() as redis:  # last, because a node is lost in it
                bench = Bench(postgresql.database(), redis, embedder, whole, args.codec)
                result["exactly_once"] = exactly_once(bench, cluster, nodes, args)
                print(json.dumps(result["exactly_once"], indent=2), flush=True)
        for row in rows:
            one = rows[0]["cpu_s_per_chunk_together"]
            row["efficiency_in_cpu_time"] = one / row["cpu_s_per_chunk_together"]
        result["scaling"] = rows
    result["load"] = os.getloadavg()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main()
