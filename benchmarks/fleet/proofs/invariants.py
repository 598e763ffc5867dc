"""What must hold when nothing is killed any more and no client is left."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import Any

import httpx
import psycopg

from benchmarks.fleet.proofs import tier_counts
from benchmarks.fleet.proofs.clients import Ask
from benchmarks.fleet.proofs.fleet import Fleet
from benchmarks.fleet.proofs.ledger import Drawer, Ledger
from benchmarks.fleet.proofs.processes import FleetFailed, until

SETTLE_S = 120.0
DELETED_TOGETHER = 50  # documents of one call: S3 is asked for each chunk by itself
SEARCHED = 20  # documents that are looked for by their words
_ONCE = (
    "SELECT doc_id, count(chunk_id), count(vector) FROM kvstitch_catalog.documents "
    "LEFT JOIN kvstitch_catalog.chunks USING (document) "
    "LEFT JOIN kvstitch_catalog.vectors USING (chunk_id) GROUP BY document, doc_id"
)


def check(fleet: Fleet, ledger: Ledger, kept: set[str], asks: list[Ask]) -> dict[str, Any]:
    """Notes what is wrong in the ledger; what was looked at.

    Args:
        kept: ids of the documents that were there all the time.
        asks: must be answered as ever.
    """
    settled_s = settle(fleet, ledger)
    there = {document.doc_id for document in ledger.there} | kept
    for gateway in fleet.gateways:
        listed = Counter(documents(gateway.http))
        if twice := [doc_id for doc_id, count in listed.items() if count > 1]:
            ledger.violation(f"listed more than once at {gateway.name}: {twice}")
        if lost := there - set(listed):
            ledger.violation(f"acknowledged and lost at {gateway.name}: {sorted(lost)}")
        if back := {d.doc_id for d in ledger.gone} & set(listed):
            ledger.violation(f"deleted and there at {gateway.name}: {sorted(back)}")
        _words(gateway.http, ledger)
        for ask in asks:
            reply = gateway.http.post("/v1/rag/generate", json=ask.body)
            if reply.status_code != 200 or ask.differs(reply.json()):
                ledger.violation(f"in calm, {ask.name}: {reply.status_code} {reply.text[:300]}")
    rows = _rows(fleet)
    if wrong := [row for row in rows if row[1:] != (1, 1)]:
        ledger.violation(f"(document, chunks, vectors): {wrong}")
    if len(rows) != len(there):
        ledger.violation(f"{len(rows)} documents in PostgreSQL, {len(there)} acknowledged")
    return {
        "acknowledged": len(ledger.there) + len(ledger.gone),
        "deleted": len(ledger.gone),
        "receipts": len(ledger.receipts),
        "settled_s": round(settled_s, 1),
    }


def nothing_is_left(fleet: Fleet, ledger: Ledger) -> dict[str, int]:
    """Delete every document: no KV may be left in any tier, but that of the instruction."""
    http = fleet.gateways[0].http
    every = documents(http)
    for start in range(0, len(every), DELETED_TOGETHER):
        some = every[start : start + DELETED_TOGETHER]
        reply = http.post("/admin/deletions", json={"doc_ids": some})
        if reply.status_code != 200:
            ledger.violation(f"in calm, deletions: {reply.status_code} {reply.text[:300]}")
            return {}
        ledger.receipts.append(reply.json()["receipt_id"])
    settle(fleet, ledger)
    counts = tier_counts.count(fleet)
    left = {
        "redis": len(tier_counts.redis_chunks(fleet)),
        "s3": counts.s3_objects,
        "ssd": counts.ssd_chunks,
        "pending": int(
            sum(tier_counts.sums_by_worker(fleet, "kvstitch_tier_pending_deletes").values())
        ),
    }
    if any(left[tier] > 1 for tier in ("redis", "s3", "ssd")) or left["pending"]:
        ledger.violation(f"all documents are deleted, and KV is left: {left}")
    return left


def settle(fleet: Fleet, ledger: Ledger) -> float:
    """Wait until jobs have ended and receipts are complete; the seconds that took."""
    began = time.monotonic()
    http = fleet.gateways[0].http
    try:
        until(lambda: not _unfinished(http, ledger), "jobs do not end", SETTLE_S)
        for receipt in ledger.receipts:
            path = f"/admin/receipts/{receipt}"
            until(
                lambda: http.get(path).json()["state"] == "completed",  # noqa: B023
                f"the deletion {receipt} is owed for ever",
                SETTLE_S,
            )
    except FleetFailed as error:
        ledger.violation(str(error))
    return time.monotonic() - began


def documents(http: httpx.Client) -> list[str]:
    """Ids of all documents that are listed."""
    return [d["doc_id"] for d in _pages(http, "/admin/documents", "documents")]


def _unfinished(http: httpx.Client, ledger: Ledger) -> int:
    jobs = _pages(http, "/admin/jobs", "jobs")
    for job in jobs:
        said = f"a job ended badly: {job['job_id']} {job['state']} {job['errors']}"
        if job["state"] in ("failed", "dead", "cancelled") and said not in ledger.violations:
            ledger.violation(said)
    return sum(job["state"] in ("queued", "running") for job in jobs)


def _words(http: httpx.Client, ledger: Ledger) -> None:
    """Who is there is found by its word, and who is gone neither found nor answered from."""

    def found(document: Drawer) -> list[str]:
        search = {"query": document.word, "retrieval": "sparse", "top_k": 1}
        results = http.post("/v1/search", json=search).json()["results"]
        return [result["doc_id"] for result in results]

    for document in sorted(ledger.there, key=lambda d: d.number)[-SEARCHED:]:
        if found(document) != [document.doc_id]:
            ledger.violation(f"{document.doc_id} is not found by its word")
    for document in ledger.gone:
        asked = {"question": document.word, "documents": [document.doc_id], "max_tokens": 1}
        statuses = (
            http.get(f"/admin/documents/{document.doc_id}").status_code,
            http.post("/v1/rag/generate", json=asked).status_code,
        )
        if statuses != (404, 404) or document.doc_id in found(document):
            ledger.violation(f"{document.doc_id} is deleted, and {statuses} or found")


def _rows(fleet: Fleet) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(fleet.database)) as connection:
        return connection.execute(_ONCE).fetchall()


def _pages(http: httpx.Client, path: str, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 100, **({"cursor": cursor} if cursor else {})}
        reply = http.get(path, params=params)
        reply.raise_for_status()
        page = reply.json()
        rows += page[name]
        if (cursor := page["next_cursor"]) is None:
            return rows
