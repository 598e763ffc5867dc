"""A Ray cluster of several nodes on this machine, with a folder, a port and a token of its own.

Ray takes them from the environment, so they are set for as long as the cluster lives. Without a
token of its own, Ray would make one in the user's HOME, which later clusters there would ask for.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@contextmanager
def ray_cluster(*, nodes: int, environment: dict[str, str]) -> Iterator[Any]:
    """A head that runs no worker, and `nodes` others with three CPUs each, as Ray counts them.

    Args:
        nodes: Besides the head.
        environment: Of Ray's processes and of this one, while the cluster lives.

    Yields:
        ray.cluster_utils.Cluster; its address is in RAY_ADDRESS.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))  # sockets' paths must be short
    (folder / "ray").mkdir()
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("KVSTITCH_", "RAY_"))]:
            patch.delenv(name)
        for name, value in {
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            # A lost node is noticed within seconds.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_failure_threshold": "3",
            "PYTHONPATH": str(ROOT),
            **environment,
        }.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        options = {"object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
        try:
            for _ in range(nodes):
                cluster.add_node(num_cpus=3, **options)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
