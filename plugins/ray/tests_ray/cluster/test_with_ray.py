"""Workers as detached actors of a real Ray cluster, used by a real gateway; one machine is lost.

Three nodes on this machine, one cluster for all tests, which go on from one another. Workers and
gateway are the real ones, with the demo model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.settings import demo_model
from tests.e2e.service import Service
from tests.ray_cluster import ROOT, RayCluster, ray_cluster

# Not imported here: Ray has a process of its own.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed"),
]

SECRET = "fleet-secret-that-nobody-may-read-in-a-log"
LONG_S = 300.0
SETTINGS = ("--threads", "1", "--memory-tier-mib", "64", "--ssd-tier-gib", "0.1")
DOCUMENT = {"doc_id": "keltov", "text": "Upper Keltov is famous for its bridge of red stone."}


@dataclass
class Fleet:
    cluster: RayCluster
    folder: Path

    def run(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`kvstitch cluster`, with the secret in its environment and nowhere else."""
        return subprocess.run(
            [sys.executable, "-m", "kvstitch.service.cli", "cluster", action, *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            env={**self.cluster.environment, "KVSTITCH_FLEET_SECRET": SECRET},
        )

    def states(self, action: str = "status", *arguments: str) -> dict[str, dict[str, Any]]:
        """The workers by name, as `action` prints them."""
        done = self.run(action, *arguments)
        assert done.returncode == 0 or action == "status", done.stderr
        return {state["name"]: state for state in json.loads(done.stdout)}

    def workers(self) -> tuple[str, ...]:
        data_dir = self.folder / "workers"
        return ("--model", str(demo_model()), "--data-dir", str(data_dir), *SETTINGS)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with ray_cluster(nodes=2) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            if name.startswith("RAY_"):
                patch.setenv(name, value)  # for the gateway
        yield Fleet(cluster, folder)


@pytest.fixture(scope="module")
def gateway(fleet: Fleet) -> Iterator[Service]:
    service = Service(
        demo_model(), fleet.folder / "gateway", worker_addresses="ray://auto", fleet_secret=SECRET
    )
    with service:
        yield service


def until(holds: Callable[[], bool], claim: str) -> None:
    give_up_at = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < give_up_at, claim
        time.sleep(0.5)


def listed(gateway: Service) -> set[str]:
    """Addresses of the workers that are ready, as the gateway sees them."""
    workers = gateway.http.get("/status").json()["workers"]
    return {worker["address"] for worker in workers if worker["reason"] is None}


def addresses(states: dict[str, dict[str, Any]]) -> set[str]:
    return {state["address"] for state in states.values()}


def test_a_gateway_answers_with_workers_that_ray_has_placed(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    made = fleet.states("up", "--workers", "2", *fleet.workers())
    assert {state["phase"] for state in made.values()} == {"ready"}
    again = fleet.states("up", "--workers", "2", *fleet.workers())
    assert {s["pid"] for s in again.values()} == {s["pid"] for s in made.values()}
    gateway: Service = request.getfixturevalue("gateway")
    until(lambda: listed(gateway) == addresses(made), "the gateway does not see both")
    gateway.ingest([DOCUMENT])
    assert gateway.ask("What is Upper Keltov famous for?", max_tokens=8)["text"]


def test_the_secret_is_in_no_log_of_ray_and_in_no_process_list(fleet: Fleet) -> None:
    logs = [path for path in fleet.cluster.folder.rglob("*") if path.is_file()]
    assert any("kvstitch.worker" in path.read_text(errors="replace") for path in logs)
    assert [path for path in logs if SECRET.encode() in path.read_bytes()] == []
    lines = list(_command_lines())
    assert any(b"kvstitch.service.worker" in line for line in lines)
    assert not any(SECRET.encode() in line for line in lines)


def test_a_worker_whose_node_is_lost_comes_back_on_another(fleet: Fleet, gateway: Service) -> None:
    before = fleet.states()
    fleet.cluster.lose_node_of(before["kvstitch-worker-1"]["pid"])

    def back() -> bool:
        now = fleet.states()
        return all(s["phase"] == "ready" for s in now.values()) and now != before

    until(back, "the actor is not brought back")
    after = fleet.states()
    assert set(after) == set(before)
    assert after["kvstitch-worker-1"]["address"] != before["kvstitch-worker-1"]["address"]
    until(lambda: listed(gateway) == addresses(after), "the gateway does not see the new address")
    assert gateway.ask("What is Upper Keltov famous for?", max_tokens=8)["text"]


def test_what_has_no_room_is_said_by_resource(fleet: Fleet) -> None:
    done = fleet.run(
        *("up", "--workers", "3", "--gpus-per-worker", "8", "--timeout-s", "1", *fleet.workers())
    )
    assert done.returncode == 1
    said = json.loads(done.stderr.splitlines()[-1])["error"]
    assert said["code"] == "workers_not_ready"
    assert (
        "kvstitch-worker-3: waiting, it needs 1 CPU, 8 GPU, and no machine is so large"
        in (said["message"])
    )
    assert fleet.run("drain", "kvstitch-worker-3").returncode == 0


def test_a_new_version_is_put_beside_the_old_one_which_is_then_drained(
    fleet: Fleet, gateway: Service
) -> None:
    """The upgrade that docs/fleet.md tells people on plain Ray to make, under requests."""
    later = fleet.folder / "later" / "kvstitch" / "service"
    later.mkdir(parents=True)
    rest = "__path__.append({!r})\n"
    (later.parent / "__init__.py").write_text(rest.format(str(ROOT / "kvstitch")))
    package = "__version__ = '9.9.9'\n" + rest.format(str(ROOT / "service"))
    (later / "__init__.py").write_text(package)
    runtime_env = {"env_vars": {"PYTHONPATH": f"{later.parents[1]}:{ROOT}"}}
    before = fleet.states()
    beside = ["--workers", "4", "--cpus-per-worker", "0.5"]  # one node is left
    beside += ["--runtime-env", json.dumps(runtime_env)]
    with asked_all_the_time(gateway) as answers:
        both = fleet.states("up", *beside, *fleet.workers())
        until(lambda: listed(gateway) == addresses(both), "the gateway does not see the new ones")
        assert fleet.run("drain", *before).returncode == 0
    assert answers and all(answers)
    after = fleet.states()
    assert len(after) == 2 and {state["version"] for state in after.values()} == {"9.9.9"}
    assert addresses(after).isdisjoint(addresses(before))
    until(lambda: listed(gateway) == addresses(after), "the gateway does not see the old ones go")
    assert gateway.ask("What is Upper Keltov famous for?", max_tokens=8)["text"]


def test_down_leaves_no_actor_and_no_process(fleet: Fleet) -> None:
    pids = [state["pid"] for state in fleet.states().values()]
    assert fleet.run("down").returncode == 0
    assert fleet.states() == {}
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "a process is left")


@contextmanager
def asked_all_the_time(gateway: Service) -> Iterator[list[bool]]:
    """Ask one question after the other; the list says of each whether it was answered."""
    answers: list[bool] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                done = gateway.ask("What is Upper Keltov famous for?", max_tokens=8)
                answers.append(bool(done["text"]))
            except Exception:
                answers.append(False)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()
