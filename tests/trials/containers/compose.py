"""The containers of the compose file, as a project of its own on ports of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvstitch import Client
from tests.trials.containers.engine import docker

REPOSITORY = Path(__file__).parents[3]
PROJECT = "kvstitch-trial"
NEXT = "0.0.0-next"  # the tag of what is upgraded to
QUESTIONS = [
    json.loads(line) for line in (REPOSITORY / "demo/questions.jsonl").read_text().splitlines()
]
_PUBLISHED = {
    "kvstitch": "KVSTITCH_PUBLISH_PORT",
    "prometheus": "PROMETHEUS_PUBLISH_PORT",
    "proxy": "KVSTITCH_FLEET_PUBLISH_PORT",
    "gateway-1": "KVSTITCH_GATEWAY_1_PUBLISH_PORT",
    "gateway-2": "KVSTITCH_GATEWAY_2_PUBLISH_PORT",
}
"""By service the variable of its port."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Composed:
    """The containers of one `up`; COMPOSE is the program, docker-compose if it is not set.

    Attributes:
        version: tag of the images that are started next.
    """

    def __init__(self, version: str, profiles: Sequence[str]) -> None:
        self.version = version
        self._profiles = [f"--profile={one}" for one in profiles]
        self._ports = {name: free_port() for name in _PUBLISHED}
        self._environment = {
            **os.environ, **{_PUBLISHED[name]: str(port) for name, port in self._ports.items()}
        }  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        program = os.environ.get("COMPOSE", "docker-compose").split()
        command = [*program, "-p", PROJECT, *self._profiles, *arguments]
        environment = {**self._environment, "KVSTITCH_VERSION": self.version}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def address(self, service: str) -> str:
        """Return where a service is published."""
        return f"http://127.0.0.1:{self._ports[service]}"

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what the engine says of a service's container."""
        label = "label=com.docker.compose"
        name = docker(
            "ps", "-aq", "--filter", f"{label}.project={PROJECT}",
            "--filter", f"{label}.service={service}",
        )  # fmt: skip
        found: dict[str, Any] = json.loads(docker("inspect", name))[0]
        return found

    def state(self, service: str) -> dict[str, Any]:
        """Return what the engine says of how a service's container fares."""
        found: dict[str, Any] = self.inspect(service)["State"]
        return found

    def tag_next(self) -> None:
        """Give the image another tag, and other bytes, to upgrade to."""
        image = f"FROM kvstitch:{self.version}-cpu\nLABEL org.kvstitch.trial=next\n"
        docker("build", "-q", "-t", f"kvstitch:{NEXT}-cpu", "-", input=image)


@contextlib.contextmanager
def up(
    version: str, services: Sequence[str], profiles: Sequence[str],
    ready: Callable[[Composed], object],
) -> Iterator[Composed]:  # fmt: skip
    """What `up` starts, once it is ready; removed with its volumes afterwards."""
    composed = Composed(version, profiles)
    try:
        started = time.monotonic()
        composed("up", "-d", "--no-build", *services)
        ready(composed)
        print(f"{', '.join(services)}: ready after {time.monotonic() - started:.1f} s", flush=True)
        yield composed
    finally:
        composed("down", "-v", "-t", "80")


def ask(address: str, questions: int) -> None:
    """Ask the demo's first questions; most answers are right, as the demo's are."""
    with Client(address) as client:
        answers = [client.generate(one["question"]).text for one in QUESTIONS[:questions]]
    right = sum(one["answer"] in text for one, text in zip(QUESTIONS, answers, strict=False))
    print(f"  {right} of {questions} answers right", flush=True)
    assert right >= questions * 0.8, answers
