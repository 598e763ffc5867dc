"""After the receipt nothing is left: no file of the data folder and no key or value in Redis holds
the text, the token ids or the chunk's key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_client

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service
from tests.redis_server import RedisServer, redis_server

TEXT = "The zanzibar protocol names quixotic harbours, and the password is xylophone-4711."
PARTS = (b"zanzibar", b"quixotic harbours", b"xylophone-4711")


def raw(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()


def holders(service: Service, redis: RedisServer, needles: tuple[bytes, ...]) -> list[str]:
    """Where any of `needles` is, in names or in content."""
    found = []
    for path, content in raw(service.data_dir):
        where = str(path.relative_to(service.data_dir)).encode() + b"\n" + content
        found += [f"{path.name}: {n!r}" for n in needles if n in where]
    client = redis_client.Redis.from_url(redis.url)
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        value = client.get(key) if kind == b"string" else repr(client.dump(key)).encode()
        found += [f"redis {key!r}: {n!r}" for n in needles if n in key + b"\n" + (value or b"")]
    client.close()
    return found


def settle(service: Service, chunks: int) -> set[str]:
    """Names of the chunks on disk, when that many have also reached Redis."""
    service.until(lambda: service.wrote("redis", chunks), "not everything reached Redis")
    return {path.stem for path in service.chunk_files()}


def test_after_the_receipt_no_byte_is_left(serve: Serve, twelve: Documents) -> None:
    with redis_server() as redis, serve(redis_url=redis.url) as service:
        service.ingest(twelve[:3])
        before = settle(service, 4)
        service.ingest([{"doc_id": "d", "title": "Zanzibar", "text": TEXT, "metadata": {"k": 1}}])
        after = settle(service, 5)
        (key,) = after - before
        answer = service.ask("Which password?", documents=["d"], top_k=1, max_tokens=4)
        assert answer["citations"][0]["doc_id"] == "d"
        present = (*PARTS, b"Zanzibar", key.encode())
        assert len({n for n in present if holders(service, redis, (n,))}) >= 4, "it is there before"

        receipt = service.http.post("/admin/deletions", json={"filter": {"k": 1}}).json()
        assert receipt["state"] == "completed", receipt
        assert (receipt["documents"], receipt["chunks"], receipt["owed_chunks"]) == (1, 1, 0)
        assert receipt["kv"] == {"memory": 1, "ssd": 1, "redis": 1}
        assert holders(service, redis, present) == []
        assert {path.stem for path in service.chunk_files()} == before

        service.ask("Which password?", top_k=3, max_tokens=4)
        service.settled_metrics()
        service.kill_nine()
        assert holders(service, redis, present) == [], "nor after a crash"
        service.start()
        assert service.http.get("/admin/documents/d").status_code == 404
        path = f"/admin/receipts/{receipt['receipt_id']}"
        assert service.http.get(path).json() == receipt


@pytest.mark.slow
def test_a_tier_that_is_away_stays_owed_until_it_is_back(serve: Serve, twelve: Documents) -> None:
    """Redis is frozen while a document is deleted, and the worker dies: the receipt says what is
    owed, and is completed when Redis answers again."""
    with redis_server() as redis, serve(redis_url=redis.url) as service:
        service.ingest([{"doc_id": "d", "title": "Zanzibar", "text": TEXT}, twelve[0]])
        keys = settle(service, 3)
        redis.freeze()
        try:
            receipt = service.http.delete("/admin/documents/d").json()
            assert receipt["state"] == "owed" and receipt["owed_chunks"] == 1
            assert receipt["unreached"] == ["redis"] and receipt["kv"].get("ssd") == 1
            (gone,) = keys - {path.stem for path in service.chunk_files()}
            service.kill_nine()
            service.start()
        finally:
            redis.thaw()
        path = f"/admin/receipts/{receipt['receipt_id']}"
        service.until(lambda: service.http.get(path).json()["state"] == "completed", "still owed")
        # Not counted: Redis found the first delete in its socket when it woke up.
        assert service.http.get(path).json()["unreached"] == []
        assert holders(service, redis, (*PARTS, gone.encode())) == []
