"""The compose file with its default profile: documents come in, questions are answered, a killed
container comes back by itself, and an upgrade lets what it is answering end.

    python -m tests.trials.containers.composed 0.2.0 [--prometheus]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections import Counter

import httpx

from kvstitch import Client
from kvstitch.client import errors
from tests.trials.containers.compose import NEXT, QUESTIONS, Composed, ask, up
from tests.trials.containers.engine import wait_until_ready


def wait_for_corpus(composed: Composed) -> None:
    started = time.monotonic()
    while (state := composed.state("corpus"))["Status"] != "exited":
        assert time.monotonic() - started < 600, "the corpus is not stored after 600 s"
        time.sleep(0.5)
    assert state["ExitCode"] == 0, composed("logs", "--tail=20", "corpus")
    assert int(composed("exec", "-T", "redis", "redis-cli", "dbsize")) > 0, "no KV is in Redis"


def kill(composed: Composed) -> None:
    """Kill the service's first process, as running out of memory does; the engine restarts it."""
    before = composed.state("kvstitch")
    os.kill(int(str(before["Pid"])), signal.SIGKILL)
    started = time.monotonic()
    while composed.state("kvstitch")["StartedAt"] == before["StartedAt"]:
        assert time.monotonic() - started < 60, "the container did not come back"
        time.sleep(0.1)
    wait_until_ready(composed.address("kvstitch"))
    print(f"killed: ready again after {time.monotonic() - started:.1f} s")


def upgrade(composed: Composed) -> None:
    """Replace the container while questions are asked one after the other."""
    composed.tag_next()
    seen: Counter[str] = Counter()
    done = threading.Event()

    def questions() -> None:
        with Client(composed.address("kvstitch"), max_retries=0) as client:
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
        wait_until_ready(composed.address("kvstitch"))
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
    with httpx.Client(base_url=composed.address("prometheus"), timeout=10) as prometheus:
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

    def ready(composed: Composed) -> None:
        wait_until_ready(composed.address("kvstitch"))

    with up(asked.version, services, profiles, ready) as composed:
        wait_for_corpus(composed)
        ask(composed.address("kvstitch"), 20)
        if asked.prometheus:
            scraped(composed)
        kill(composed)
        ask(composed.address("kvstitch"), 20)
        upgrade(composed)
        ask(composed.address("kvstitch"), 20)
        print(composed("logs", "--tail=5"))


if __name__ == "__main__":
    main()
