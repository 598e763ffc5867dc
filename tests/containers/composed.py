"""The compose file with its default profile: documents come in, questions are answered, a killed
container comes back by itself, and an upgrade lets what it is answering end.

    python -m tests.containers.composed 0.2.0 [--prometheus]

COMPOSE is the program, docker-compose if it is not set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx

from kvstitch import Client
from kvstitch.client import errors
from tests.containers.engine import docker, wait_until_ready

REPOSITORY = Path(__file__).parents[2]
PROJECT = "kvstitch-trial"
NEXT = "0.0.0-next"  # the tag of what is upgraded to
QUESTIONS = [
    json.loads(line) for line in (REPOSITORY / "demo/questions.jsonl").read_text().splitlines()
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Composed:
    """The containers of one `up`, published on a port of their own."""

    def __init__(self, version: str, profiles: list[str]) -> None:
        self.version = version
        self.address = f"http://127.0.0.1:{(port := free_port())}"
        self.prometheus = f"http://127.0.0.1:{(other := free_port())}"
        self._profiles = [f"--profile={one}" for one in profiles]
        self._environment = {
            **os.environ,
            "KVSTITCH_PUBLISH_PORT": str(port),
            "PROMETHEUS_PUBLISH_PORT": str(other),
        }

    def __call__(self, *arguments: str) -> str:
        program = os.environ.get("COMPOSE", "docker-compose").split()
        command = [*program, "-p", PROJECT, *self._profiles, *arguments]
        environment = {**self._environment, "KVSTITCH_VERSION": self.version}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def state(self, service: str) -> dict[str, object]:
        """Return what the engine says of a service's container."""
        label = "label=com.docker.compose"
        name = docker(
            "ps", "-aq", "--filter", f"{label}.project={PROJECT}",
            "--filter", f"{label}.service={service}",
        )  # fmt: skip
        found: dict[str, object] = json.loads(docker("inspect", name))[0]["State"]
        return found


@contextlib.contextmanager
def up(version: str, services: list[str], profiles: list[str]) -> Iterator[Composed]:
    """What `up` starts; removed with its volumes afterwards."""
    composed = Composed(version, profiles)
    try:
        started = time.monotonic()
        composed("up", "-d", "--no-build", *services)
        wait_until_ready(composed.address)
        print(f"up and ready after {time.monotonic() - started:.1f} s")
        yield composed
    finally:
        composed("down", "-v", "-t", "80")


def wait_for_corpus(composed: Composed) -> None:
    started = time.monotonic()
    while (state := composed.state("corpus"))["Status"] != "exited":
        assert time.monotonic() - started < 600, "the corpus is not stored after 600 s"
        time.sleep(0.5)
    assert state["ExitCode"] == 0, composed("logs", "--tail=20", "corpus")
    assert int(composed("exec", "-T", "redis", "redis-cli", "dbsize")) > 0, "no KV is in Redis"


def ask(address: str, questions: int) -> None:
    """Ask the demo's first questions; most answers are right, as the demo's are."""
    with Client(address) as client:
        answers = [client.generate(one["question"]).text for one in QUESTIONS[:questions]]
    right = sum(one["answer"] in text for one, text in zip(QUESTIONS, answers, strict=False))
    print(f"  {right} of {questions} answers right")
    assert right >= questions * 0.8, answers


def kill(composed: Composed) -> None:
    """Kill the service's first process, as running out of memory does; the engine restarts it."""
    before = composed.state("kvstitch")
    os.kill(int(str(before["Pid"])), signal.SIGKILL)
    started = time.monotonic()
    while composed.state("kvstitch")["StartedAt"] == before["StartedAt"]:
        assert time.monotonic() - started < 60, "the container did not come back"
        time.sleep(0.1)
    wait_until_ready(composed.address)
    print(f"killed: ready again after {time.monotonic() - started:.1f} s")


def upgrade(composed: Composed) -> None:
    """Replace the container while questions are asked one after the other."""
    image = f"FROM kvstitch:{composed.version}-cpu\nLABEL org.kvstitch.trial=next\n"
    docker("build", "-q", "-t", f"kvstitch:{NEXT}-cpu", "-", input=image)
    seen: Counter[str] = Counter()
    done = threading.Event()

    def questions() -> None:
        with Client(composed.address, max_retries=0) as client:
            for one in QUESTIONS * 1000:
                if done.is_set():
                    return
                try:
                    client.generate(one["question"])
                    seen["answered"] += 1
                except errors.KvstitchError as error:
                    seen[f"{type(error).__name__}: {error}"[:120]] += 1
                    time.sleep(0.2)

    asking = threading.Thread(target=questions)
    asking.start()
    try:
        while seen["answered"] < 5 and asking.is_alive():
            time.sleep(0.1)
        started = time.monotonic()
        composed.version = NEXT
        composed("up", "-d", "--no-build", "--no-deps", "kvstitch")
        wait_until_ready(composed.address)
        print(f"upgraded: ready after {time.monotonic() - started:.1f} s")
        before = seen["answered"]
        while seen["answered"] < before + 5 and asking.is_alive():
            time.sleep(0.1)
    finally:
        done.set()
        asking.join()
    print(f"  questions meanwhile: {dict(seen)}")


def scraped(composed: Composed) -> None:
    """Prometheus has our rules, and reads the service."""
    with httpx.Client(base_url=composed.prometheus, timeout=10) as prometheus:
        started = time.monotonic()
        while True:
            found = prometheus.get("/api/v1/query", params={"query": 'up{job="kvstitch"} == 1'})
            if found.json()["data"]["result"]:
                break
            assert time.monotonic() - started < 120, found.text
            time.sleep(1)
        groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    rules = sum(len(group["rules"]) for group in groups)
    assert rules, groups
    print(f"Prometheus reads the service and has {rules} rules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--prometheus", action="store_true", help="start it, too, and look at it")
    asked = parser.parse_args()
    services = ["kvstitch", "redis", "corpus", *(["prometheus"] if asked.prometheus else [])]
    profiles = ["monitoring"] if asked.prometheus else []
    with up(asked.version, services, profiles) as composed:
        wait_for_corpus(composed)
        ask(composed.address, 20)
        if asked.prometheus:
            scraped(composed)
        kill(composed)
        ask(composed.address, 20)
        upgrade(composed)
        ask(composed.address, 20)
        print(composed("logs", "--tail=5"))


if __name__ == "__main__":
    main()
