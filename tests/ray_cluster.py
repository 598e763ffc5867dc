"""A Ray cluster of several nodes on this machine, in a process of its own.

It has a folder and a token of its own, which Ray takes from the environment and reads once, when it
is imported. Without a token of its own, Ray would make one in the user's HOME, which every later
cluster of that user would ask for.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
START_ATTEMPTS = 4


@dataclass
class RayCluster:
    """A cluster that runs.

    Attributes:
        environment: With which commands find it.
        folder: Of its logs and sockets.
    """

    environment: dict[str, str]
    folder: Path
    _input: IO[str]
    _output: IO[str]

    def lose_node_of(self, pid: int) -> None:
        """Kill the node that a process belongs to, as a machine that loses its power."""
        self._input.write(f"{pid}\n")
        self._input.flush()
        assert _reply(self._output)["lost"], f"no node has started process {pid}"


@contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    """A head that runs no worker, and `nodes` others with three CPUs each, as Ray counts them."""
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))  # sockets' paths must be short
    (folder / "ray").mkdir()
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KVSTITCH_", "RAY_"))}
    environment = {
        **kept,
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        # Processes that wait for work, one per CPU and node, take most of a start.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "PYTHONPATH": str(ROOT),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    log = folder / "cluster.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_cluster", str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=ROOT,
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        started = _reply(process.stdout)
        assert started, log.read_text(errors="replace")[-3000:]
        environment["RAY_ADDRESS"] = started["address"]
        yield RayCluster(environment, folder, process.stdin, process.stdout)
    finally:
        process.stdin.close()  # it shuts the cluster down
        process.wait()
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def _reply(output: IO[str]) -> dict[str, Any]:
    """The next line that is ours; Ray prints others. Nothing if the process has ended."""
    for line in output:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def main(nodes: int) -> None:
    """Keep a cluster until the input ends; each line of it is a process whose node is lost."""
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster()
    try:
        for cpus in (0, *[3] * nodes):
            _patiently(partial(cluster.add_node, num_cpus=cpus, **options))
        print(json.dumps({"address": cluster.address}), flush=True)
        for line in sys.stdin:
            ancestors = set(_ancestors(int(line)))
            lost = [
                node
                for node in cluster.worker_nodes
                if node.all_processes["raylet"][0].process.pid in ancestors
            ]
            for node in lost:
                cluster.remove_node(node, allow_graceful=False)
            print(json.dumps({"lost": len(lost)}), flush=True)
    finally:
        cluster.shutdown()


def _patiently(add_node: Callable[[], object]) -> None:
    """Ray gives a node 30 s to start, which is little on a machine that is busy."""
    for left in reversed(range(START_ATTEMPTS)):
        try:
            add_node()
            return
        except Exception:
            if not left:
                raise


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]))
