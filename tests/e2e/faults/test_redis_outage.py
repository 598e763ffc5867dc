"""Redis stopped, frozen and started again while requests run: none of them notices but by time."""

from __future__ import annotations

import threading
import time

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import HANG_S, Service, tiers
from tests.redis_server import RedisServer, redis_server

OPERATIONS = "kvstitch_tier_operations_total"


class Load:
    """Two clients that ask without a pause until they are stopped."""

    def __init__(self, service: Service, names: list[str]) -> None:
        self._service = service
        self._names = names
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(2)]
        self.statuses: list[int] = []
        self.failures: list[BaseException] = []
        self.longest_s = 0.0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(HANG_S + 5)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def some_more(self, count: int = 4) -> None:
        """Wait until `count` more requests have been answered."""
        wanted = len(self.statuses) + count
        self._service.until(
            lambda: len(self.statuses) >= wanted or bool(self.failures), "requests hang"
        )

    def _run(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            turn += 1
            chosen = [self._names[(turn + i) % len(self._names)] for i in range(3)]
            fields = {"documents": chosen, "top_k": 3, "max_tokens": 4}
            started = time.monotonic()
            try:
                reply = self._service.post("Which colour?", fusion={"method": "pie"}, **fields)
            except BaseException as error:
                self.failures.append(error)
                return
            self.longest_s = max(self.longest_s, time.monotonic() - started)
            self.statuses.append(reply.status_code)


@pytest.mark.slow
def test_requests_go_on_without_redis_and_use_it_again_when_it_is_back(
    serve: Serve, corpus: Documents
) -> None:
    """No memory tier, and the files are removed before every phase, so that each phase needs Redis:
    it serves; stopped and frozen, chunks are recomputed; restarted, it serves again."""
    names = [d["doc_id"] for d in corpus[:8]]
    with redis_server() as redis, serve(redis_url=redis.url, memory_tier_mib=0) as service:
        service.ingest(corpus[:8])

        service.until(lambda: service.wrote("redis", 9), "the chunks do not reach Redis")
        with Load(service, names) as load:
            load.some_more()
            forget_files(service)
            before = redis_hits(service)
            load.some_more(10)
            service.until(lambda: redis_hits(service) > before, "Redis is not read")

            redis.stop()
            forget_files(service)
            load.some_more(10)
            service.until(lambda: not healthy(service), "nobody notices that Redis is gone")
            load.some_more()

            redis.start()
            service.until(lambda: healthy(service), "Redis is back and is not used")
            redis.freeze()
            forget_files(service)
            load.some_more(10)
            redis.thaw()
            service.until(lambda: healthy(service), "Redis answers again and is not used")
        assert not load.failures
        assert set(load.statuses) == {200}
        assert load.longest_s < HANG_S / 2
        used_again(service, redis, corpus[20:])


def used_again(service: Service, redis: RedisServer, fresh: Documents) -> None:
    """A new document's chunk is written to the restarted (empty) Redis, and read from there."""
    attempts = iter(fresh)

    def served_from_redis() -> bool:
        document = next(attempts)
        files = service.chunk_files()
        service.ingest([document])
        time.sleep(0.5)  # background writes
        for file in service.chunk_files() - files:
            file.unlink()
        answer = service.ask("Which colour?", documents=[document["doc_id"]], top_k=1, max_tokens=1)
        return tiers(answer) == ["redis"]

    service.until(served_from_redis, f"the Redis on port {redis.port} is not used again")


def forget_files(service: Service) -> None:
    for file in service.chunk_files():
        file.unlink(missing_ok=True)


def redis_hits(service: Service) -> float:
    return service.metrics().value(OPERATIONS, tier="redis", op="read", outcome="hit")


def healthy(service: Service) -> bool:
    return service.metrics().value("kvstitch_tier_healthy", tier="redis") == 1
