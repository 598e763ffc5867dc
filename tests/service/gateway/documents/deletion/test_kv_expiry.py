"""Stored KV of collections is deleted after a time, and computed again at need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever import Scope
from kvstitch.service.errors import InvalidSetting, TierUnreached
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV
from kvstitch.service.gateway.documents.deletion.kv_expiry import DAY_S, KvExpiry
from kvstitch.service.messages.replies import Purged
from kvstitch.service.messages.requests import Purge
from kvstitch.service.settings import load
from tests.service.gateway.rig import Rig

HR, NEWS = Scope("acme", "hr"), Scope("acme", "news")


class Stored:
    """Stands for the catalog and the worker: documents with their ages, and what is purged."""

    def __init__(self, ages: dict[tuple[Scope, str], float]) -> None:
        self.ages_of = ages
        self.purged: list[tuple[str, list[int]]] = []
        self.unreached: list[str] = []
        self.retriever = self.catalog = self.prompts = self
        self.system, self.prefix_mode = [1], "none"

    async def run(self, work: Any) -> Any:
        return work()

    def ages(self) -> list[tuple[Scope, str, float]]:
        return [(scope, name, at) for (scope, name), at in self.ages_of.items()]

    async def to_purge(self, scope: Scope, doc_ids: list[str], **_: Any) -> list[ChunkKV]:
        return [
            ChunkKV(scope.tenant, scope.collection, name, n, [ord(c) for c in name])
            for n, name in enumerate(doc_ids)
        ]

    async def purge(self, message: Purge) -> Purged:
        names = ["".join(map(chr, chunk.ids)) for chunk in message.documents]
        self.purged += [(message.tenant, name) for name in names]  # type: ignore[misc]
        return Purged(message.id, {}, self.unreached)

    def taken(self) -> list[str]:
        names = [str(name) for _, name in self.purged]
        self.purged.clear()
        return names


class Clock:
    now = 1_000 * DAY_S

    def __call__(self) -> float:
        return self.now


def expiry(stored: Stored, clock: Clock, file: Path, ttl: dict[str, float]) -> KvExpiry:
    parts: Any = stored
    return KvExpiry(ttl, parts, parts, file, now=clock)


async def test_each_collection_has_its_time(tmp_path: Path) -> None:
    clock = Clock()
    day = lambda age: clock.now - age * DAY_S  # noqa: E731
    stored = Stored({(HR, "old"): day(8), (HR, "new"): day(6), (NEWS, "older"): day(40),
                     (NEWS, "fresh"): day(20)})  # fmt: skip
    made = expiry(stored, clock, tmp_path / "e.json", {"hr": 7, "*": 30})
    assert not await made.step()
    assert stored.taken() == ["old", "older"]
    await made.step()
    assert not stored.taken()  # once
    clock.now += 2 * DAY_S
    again = expiry(stored, clock, tmp_path / "e.json", {"hr": 7, "*": 30})  # after a restart
    await again.step()
    assert stored.taken() == ["new"]
    clock.now += 5 * DAY_S  # KV of "old" that was computed again is at most 7 days old
    await again.step()
    assert stored.taken() == ["old"]


async def test_collections_that_are_not_named_are_left_alone(tmp_path: Path) -> None:
    stored = Stored({(HR, "a"): 0.0, (NEWS, "b"): 0.0})
    await expiry(stored, Clock(), tmp_path / "e.json", {"hr": 1}).step()
    assert stored.taken() == ["a"]
    await expiry(stored, Clock(), tmp_path / "f.json", {}).step()
    assert not stored.taken()


async def test_a_tier_that_is_away_is_tried_again(tmp_path: Path) -> None:
    stored = Stored({(HR, "a"): 0.0})
    stored.unreached = ["redis"]
    made = expiry(stored, Clock(), tmp_path / "e.json", {"*": 1})
    with pytest.raises(TierUnreached, match="redis"):
        await made.step()
    stored.unreached, _ = [], stored.taken()
    await made.step()
    assert stored.taken() == ["a"]


def test_the_documents_of_a_service(rig: Rig, data: Path) -> None:
    """The real catalog and queue: a document that was stored long ago loses its KV, and only it."""
    corpus = rig.gateway.corpus
    reply = rig.http.post("/admin/precompute", json={"documents": [
        {"doc_id": "old", "text": "The kettle is warm."}, {"doc_id": "pinned", "text": "The pot."},
    ]})  # fmt: skip
    assert rig.finished(reply.json()["job_id"])["state"] == "succeeded"
    assert rig.http.put("/admin/pins/pinned").status_code in (200, 204)
    catalog = rig.gateway.retriever.catalog
    assert [(scope.collection, name) for scope, name, _ in catalog.ages()] == [("default", "old")]
    clock = Clock()
    clock.now = catalog.ages()[0][2] + 2 * DAY_S
    purged: list[Purge] = []

    class Noting:
        async def purge(self, message: Purge) -> Purged:
            purged.append(message)
            return Purged(message.id, {}, [])

    worker: Any = Noting()
    made = KvExpiry(
        {"default": 1}, corpus.documents._purges._chunks, worker, data / "x.json", now=clock
    )
    rig.call(made.step)
    (message,) = purged
    assert len(message.documents) == 1 and message.tenant == ""
    assert rig.http.get("/admin/documents/old").json()["text"] == "The kettle is warm."


@pytest.mark.parametrize("text", ["hr", "=3", "hr=0", "hr=soon", "hr=1,=2", "hr=inf"])
def test_settings_that_are_wrong(text: str) -> None:
    with pytest.raises(InvalidSetting, match="COLLECTION=DAYS"):
        load(kv_ttl=text)


def test_settings() -> None:
    assert load(kv_ttl="hr=7, *=0.5").kv_ttls == {"hr": 7.0, "*": 0.5}
    assert load().kv_ttls == {}
