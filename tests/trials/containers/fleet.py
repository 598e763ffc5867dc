"""The compose file's fleet under load: everything of kvstitch is replaced, one container after the
other, then a gateway and a worker are killed. Only what was in flight on what was killed may fail.

    python -m tests.trials.containers.fleet 0.2.0
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from kvstitch import Client
from kvstitch.client.errors import KvstitchError
from tests.trials.containers.compose import NEXT, QUESTIONS, Composed, ask, up
from tests.trials.containers.engine import wait_until_ready

GATEWAYS, WORKERS = ("gateway-1", "gateway-2"), ("worker-1", "worker-2")
ASKERS = 4  # questions at a time
CHANGE_S = 600.0  # at most this long until what was replaced is back


@dataclass(frozen=True)
class Asked:
    """One question: when it began and ended (seconds, monotonic), and why it failed."""

    began: float
    ended: float
    failed: str = ""


class Load:
    """Questions through the proxy from `ASKERS` threads, half of them streamed, none repeated."""

    def __init__(self, address: str) -> None:
        self.asked: list[Asked] = []
        self._address = address
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(ASKERS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, answers: int) -> None:
        """Wait until so many more questions are answered."""
        begun, started = self._answered(), time.monotonic()
        while self._answered() < begun + answers:
            assert time.monotonic() - started < CHANGE_S, self.asked[-10:]
            time.sleep(0.05)

    def _answered(self) -> int:
        return sum(not each.failed for each in list(self.asked))

    def _ask(self, number: int) -> None:
        questions = itertools.cycle(QUESTIONS[number::ASKERS])
        with Client(self._address, max_retries=0) as client:
            while not self._done.is_set():
                question, began, failed = next(questions)["question"], time.monotonic(), ""
                try:
                    if number % 2:
                        with client.stream(question) as stream:
                            for _ in stream:
                                pass
                            assert stream.result.finish_reason
                    else:
                        client.generate(question)
                except KvstitchError as error:
                    failed = f"{type(error).__name__}: {error}"[:160]
                self.asked.append(Asked(began, time.monotonic(), failed))
                if failed:
                    time.sleep(0.05)


def ready_workers(address: str) -> list[str]:
    """Return the addresses of workers that a gateway may send questions to."""
    workers = httpx.get(f"{address}/status", timeout=10).json()["workers"]
    return [each["address"] for each in workers if each["reason"] is None and not each["draining"]]


def wait_for_database(composed: Composed) -> None:
    """Wait until a health check of the compose file finds it."""
    started = time.monotonic()
    while composed.state("database")["Health"]["Status"] != "healthy":
        assert time.monotonic() - started < CHANGE_S, composed("logs", "--tail=20", "database")
        time.sleep(0.5)


def wait_for_fleet(composed: Composed) -> None:
    """Wait until the proxy answers, and both gateways see both workers."""
    started = time.monotonic()
    wait_until_ready(composed.address("proxy"), CHANGE_S)
    for gateway in GATEWAYS:
        address = composed.address(gateway)
        wait_until_ready(address, CHANGE_S)
        while len(ready_workers(address)) < len(WORKERS):
            assert time.monotonic() - started < CHANGE_S, httpx.get(f"{address}/status").text
            time.sleep(0.2)


def replace(composed: Composed, service: str) -> None:
    before = composed.inspect(service)["Image"]
    composed("up", "-d", "--no-build", "--no-deps", service)
    assert composed.inspect(service)["Image"] != before, f"{service} is what it was"


def kill(composed: Composed, service: str) -> float:
    """Kill a container's first process, as running out of memory does; return when."""
    before = composed.state(service)
    moment = time.monotonic()
    os.kill(before["Pid"], signal.SIGKILL)
    while composed.state(service)["StartedAt"] == before["StartedAt"]:
        assert time.monotonic() - moment < 60, f"{service} did not come back"
        time.sleep(0.1)
    return moment


@contextlib.contextmanager
def under_load(composed: Composed, what: str) -> Iterator[list[float]]:
    """Ask all the time; what is appended are moments of kills, at which what runs may fail."""
    killed: list[float] = []
    with Load(composed.address("proxy")) as load:
        load.wait_for(10)
        started = time.monotonic()
        yield killed
        wait_for_fleet(composed)
        took = time.monotonic() - started
        load.wait_for(10)
    failed = [each for each in load.asked if each.failed]
    in_flight = [e for e in failed if any(e.began <= moment <= e.ended for moment in killed)]
    longest = max(each.ended - each.began for each in load.asked)
    print(f"{what}: whole again after {took:.1f} s; {len(load.asked)} questions, the longest took "
          f"{longest:.1f} s; {len(failed)} failed, of them in flight on what was killed: "
          f"{len(in_flight)}", flush=True)  # fmt: skip
    for why, count in Counter(each.failed for each in failed).items():
        print(f"  {count} × {why}")
    assert len(in_flight) == len(failed), what
    assert len(in_flight) <= ASKERS * len(killed), what


def run(version: str) -> None:
    # In two steps, without Compose waiting: on a busy machine it gives up on what is late.
    with up(version, ["redis", "database"], ["fleet"], wait_for_database) as composed:
        started = time.monotonic()
        composed("up", "-d", "--no-build", "--no-deps", *WORKERS, *GATEWAYS, "proxy")
        wait_for_fleet(composed)
        print(f"fleet: ready after {time.monotonic() - started:.1f} s", flush=True)
        corpus = ["kvstitch", "ingest", "/corpus", "--url", "http://proxy:8000"]
        composed("run", "--rm", "--no-deps", "-T", "corpus", *corpus)
        assert int(composed("exec", "-T", "redis", "redis-cli", "dbsize")) > 0, "no KV is in Redis"
        for gateway in GATEWAYS:
            ask(composed.address(gateway), 20)
        composed.tag_next()
        composed.version = NEXT
        try:
            for service in (WORKERS[0], GATEWAYS[0], WORKERS[1], GATEWAYS[1]):
                with under_load(composed, f"upgrade of {service}"):
                    replace(composed, service)
            for service in (GATEWAYS[0], WORKERS[0]):
                with under_load(composed, f"kill of {service}") as killed:
                    killed.append(kill(composed, service))
            ask(composed.address("proxy"), 20)
        finally:
            print(composed("logs", "--no-color", "--tail=12", *GATEWAYS, *WORKERS, "proxy"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    run(parser.parse_args().version)
