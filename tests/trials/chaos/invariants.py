"""What must hold when everything has been put right again and the service is at rest."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import redis as redis_client

from tests.trials.chaos.documents import OPERATOR, TENANTS
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.load import own_only
from tests.trials.chaos.outcomes import check_answer
from tests.trials.chaos.world import World

SETTLE_S = 120.0
ASKED = 6  # questions per calm
DESCRIPTORS = 40  # more than after warm-up: connections that were made again
MEMORY_SHARE, MEMORY_MIB = 1.4, 96


def check_all(world: World, chance: random.Random) -> None:
    """Every invariant, on a service that is ready and has no clients.

    Raises:
        Violation: One does not hold.
    """
    settle(world)
    world.journal.step("at rest")
    for tenant in TENANTS:
        catalog(world, tenant)
    once_each_on_disk(world)
    tenants_apart(world, chance)
    deleted_is_nowhere(world)
    for ask in chance.sample(world.asks, min(ASKED, len(world.asks))):
        cached_again(world, ask)
    world.journal.count("calms checked")


def until(holds: Callable[[], Any], claim: str, timeout_s: float = SETTLE_S) -> Any:
    """Poll until it is true; what it returned.

    Raises:
        Violation: It never is.
    """
    give_up_at = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < give_up_at:
        try:
            if result := holds():
                return result
        except (httpx.TransportError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.1)
    raise Violation(f"{claim}, after {timeout_s:.0f} s ({last})")


def settle(world: World) -> None:
    """No job, no purge and no request is under way; every receipt is complete."""
    for tenant in TENANTS:
        with world.client(tenant) as http:
            until(lambda: _jobs_ended(http), f"jobs of {tenant} do not end")
            for owner, receipt in world.receipts:
                if owner == tenant:
                    path = f"/admin/receipts/{receipt}"
                    until(
                        lambda: http.get(path).json()["state"] == "completed",  # noqa: B023
                        f"the deletion {receipt} is owed for ever",
                    )
    world.receipts.clear()
    with world.client(OPERATOR) as http:
        until(lambda: _at_rest(http.get("/status").json()), "the service does not come to rest")


def _jobs_ended(http: httpx.Client) -> bool:
    states: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 100, **({"cursor": cursor} if cursor else {})}
        page = http.get("/admin/jobs", params=params).json()
        states |= {job["job_id"]: job for job in page["jobs"]}
        if (cursor := page["next_cursor"]) is None:
            break
    for job in states.values():
        # Several kills in a row while its KV is computed: a document may be at fault, and is left.
        explained = job["state"] == "dead" and "the worker died" in str(job["errors"])
        if job["state"] in ("failed", "dead") and not explained:
            raise Violation(f"a job ended badly: {job}")
    return all(job["state"] not in ("queued", "running") for job in states.values())


def _at_rest(status: dict[str, Any]) -> bool:
    worker = status["worker"]
    tiers = status["tiers"].values()
    idle = status["in_flight"] == 0 and worker["running"] == 0 and worker["waiting"] == 0
    return bool(
        idle
        and worker["pool_free"] == 1.0
        and tiers
        and all(t["healthy"] == 1.0 and t["pending_deletes"] == 0 for t in tiers)
    )


def catalog(world: World, tenant: str) -> None:
    """Every acknowledged document is listed once; nothing else is."""
    listed: list[str] = []
    cursor: str | None = None
    with world.client(tenant) as http:
        while True:
            params: dict[str, Any] = {"limit": 20, **({"cursor": cursor} if cursor else {})}
            page = http.get("/admin/documents", params=params).json()
            listed += [d["doc_id"] for d in page["documents"]]
            if (cursor := page["next_cursor"]) is None:
                break
    own_only(world, tenant, listed)
    present = {d.doc_id for d in world.ledger.of(tenant, "present")}
    absent = {d.doc_id for d in world.ledger.of(tenant, "absent")}
    if lost := present - set(listed):
        raise Violation(f"acknowledged and lost, of {tenant}: {sorted(lost)}")
    if back := absent & set(listed):
        raise Violation(f"deleted or never sent, and there, of {tenant}: {sorted(back)}")
    world.ledger.adopt(tenant, set(listed))


def once_each_on_disk(world: World) -> None:
    """In the catalog's file every document has one chunk, and this one vector."""
    path = world.data_dir / "catalog.db"
    query = (
        "SELECT doc_id, count(chunk_id), count(vector) FROM documents "
        "LEFT JOIN chunks USING (document) LEFT JOIN vectors USING (chunk_id) GROUP BY document"
    )
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        rows = connection.execute(query).fetchall()
    finally:
        connection.close()
    if wrong := [row for row in rows if row[1:] != (1, 1)]:
        raise Violation(f"(document, chunks, vectors) in the catalog: {wrong}")
    expected = sum(len(world.ledger.of(tenant, "present")) for tenant in TENANTS)
    if len(rows) != expected:
        raise Violation(f"{len(rows)} documents in the catalog's file, {expected} listed")


def tenants_apart(world: World, chance: random.Random) -> None:
    """Blue cannot read, find, ask about or delete anything of red's."""
    red = world.ledger.of("red", "present")
    if not red:
        return
    document = chance.choice(red)
    with world.client("blue") as http:
        asked = {"question": document.title, "documents": [document.doc_id], "max_tokens": 1}
        replies = [
            http.get(f"/admin/documents/{document.doc_id}"),
            http.delete(f"/admin/documents/{document.doc_id}"),
            http.post("/v1/rag/generate", json=asked),
        ]
        if any(reply.status_code != 404 for reply in replies):
            raise Violation(f"blue on red's document: {[r.text for r in replies]}")
        for mode in ("dense", "sparse", "hybrid"):
            question = {"question": document.text[:40], "retrieval": mode, "top_k": 4}
            found = http.post("/v1/rag/generate", json={**question, "max_tokens": 1}).json()
            own_only(world, "blue", [c["doc_id"] for c in found["citations"]])


def deleted_is_nowhere(world: World) -> None:
    """Neither KV under its key, on SSD or in Redis, nor a word of the text in any file."""
    absent = [d for tenant in TENANTS for d in world.ledger.of(tenant, "absent")]
    keys = {world.twin.key(document): document for document in absent}
    on_disk = {path.name.partition(".")[0]: path for path in world.kv_dir.rglob("*.*")}
    client = redis_client.Redis.from_url(world.redis.url)
    try:
        names = b"\n".join(client.scan_iter(count=1000)).decode(errors="replace")
    finally:
        client.close()
    for key, document in keys.items():
        if key in on_disk:
            raise Violation(f"KV of {document.doc_id} ({document.tenant}): {on_disk[key]}")
        if key in names:
            raise Violation(f"KV of {document.doc_id} ({document.tenant}) is in Redis")
    for path in world.data_dir.glob("*sqlite3*"), world.data_dir.glob("catalog.db*"):
        for file in path:
            _has_no_words_of(file, absent)


def _has_no_words_of(file: Path, absent: list[Any]) -> None:
    content = file.read_bytes()
    for document in absent:
        if document.needle in content:
            raise Violation(f"text of {document.doc_id} ({document.tenant}) is in {file.name}")


def cached_again(world: World, ask: Any) -> None:
    """With everything stored, the answer is the twin's; asking is what has it stored."""
    if any(world.ledger.state(d) != "present" for d in _documents(world, ask)):
        return
    assert world.life is not None
    planner = world.life.planner
    wanted = "1" * len(ask.doc_ids) if ask.reads_kv else "0" * len(ask.doc_ids)
    with world.client("red") as http:

        def cached() -> bool:
            reply = http.post(ask.route, json=ask.body(fresh=True))
            if reply.status_code != 200:
                raise Violation(f"in calm: {reply.status_code} {reply.text}")
            state = check_answer(world, ask, reply.json())
            return state == wanted or planner  # which may find computing faster than loading

        until(cached, f"{ask.name} is never answered from stored KV", 40.0)


def _documents(world: World, ask: Any) -> list[Any]:
    return [world.ledger.find("red", doc_id) for doc_id in ask.doc_ids]


def resources(world: World) -> dict[str, dict[str, float]]:
    """Descriptors, and resident memory in MiB, of both processes."""
    assert world.life is not None
    out: dict[str, dict[str, float]] = {}
    for role, pid in (("gateway", world.life.process.pid), ("worker", world.life.worker())):
        status = Path(f"/proc/{pid}/status").read_text()
        (resident,) = [line.split()[1] for line in status.splitlines() if line[:5] == "VmRSS"]
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        out[role] = {"descriptors": descriptors, "resident_mib": int(resident) / 1024}
    return out


def returned(now: dict[str, dict[str, float]], warm: dict[str, dict[str, float]]) -> None:
    """Memory and descriptors are back where they were after warm-up.

    Raises:
        Violation: They are not.
    """
    for role, seen in now.items():
        most = {
            "descriptors": warm[role]["descriptors"] + DESCRIPTORS,
            "resident_mib": warm[role]["resident_mib"] * MEMORY_SHARE + MEMORY_MIB,
        }
        for what, value in seen.items():
            if value > most[what]:
                raise Violation(f"{what} of the {role}: {value:.0f}, {warm[role][what]:.0f} before")
