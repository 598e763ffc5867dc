"""Clashing idempotency keys at two gateways over one PostgreSQL: every key makes one job.

    python -m benchmarks.fleet.idempotent_posts [--keys 2500] [--threads 12]

Run it in a checkout: the PostgreSQL server is the tests'. Each key is posted four times, twice to
each gateway, side by side. One post of every tenth key carries another text than the other three.
Which text comes first is taken; the others are refused. Then jobs and documents are counted, at
both gateways and in the database itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtest import local_service
from service.settings import demo_model
from tests.postgresql_server import postgresql_server
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet/idempotent_posts.json")
POSTS_PER_KEY = 4
OTHER_BODY_EVERY = 10  # keys
COLLECTION = "idempotent"
PAGE = 1000
PAUSE_S = 0.1
ATTEMPTS = 5  # of a post whose connection breaks: that is what idempotency keys are for
JOBS_END_S = 3600.0
START_S = 900.0  # two services, each with a worker, on what may be a busy machine
OPEN_STATES = ("queued", "running")


@dataclass
class Outcome:
    """What was answered and stored.

    Attributes:
        statuses: answers by HTTP status, without those that were told to come again.
        came_again: answers "409: a request with this key is under way".
        broken: connections that broke before the answer; the post was sent again.
        keys: that were posted.
        seconds: until every post was answered.
        jobs: ids of all jobs.
        documents: of the collection.
        violations: what must not be, in words; none: all is as it must be.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    came_again: int = 0
    broken: int = 0
    keys: int = 0
    seconds: float = 0.0
    jobs: int = 0
    documents: int = 0
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    key: int
    text: str
    status: int
    job_id: str
    came_again: int
    broken: int


def prove(urls: Sequence[str], keys: int, *, threads: int, posting_s: float = 3600.0) -> Outcome:
    """Post, wait for all jobs, and look for what must not be.

    Args:
        urls: of the gateways.
        keys: how many idempotency keys; each is posted POSTS_PER_KEY times.
        threads: posts under way at a time.
        posting_s: no further key is begun after so many seconds.
    """
    outcome = Outcome()
    limits = httpx.Limits(max_connections=threads)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=url, timeout=120.0, limits=limits))
            for url in urls
        ]
        begun = time.monotonic()
        posts = _Posts(keys, begun + posting_s)
        with ThreadPoolExecutor(threads) as pool:
            made = [pool.submit(_make, clients, posts) for _ in range(threads)]
            replies = [reply for work in made for reply in work.result()]
        outcome.keys = posts.end // POSTS_PER_KEY
        outcome.seconds = time.monotonic() - begun
        outcome.statuses = Counter(reply.status for reply in replies)
        outcome.came_again = sum(reply.came_again for reply in replies)
        outcome.broken = sum(reply.broken for reply in replies)
        taken = _check_replies(replies, outcome)
        lists = [_jobs(client, outcome) for client in clients]
        outcome.jobs = len(lists[0])
        expected = {job_id for job_id, _ in taken.values()}
        for url, found in zip(urls, lists, strict=True):
            if set(found) != expected:
                outcome.violations.append(
                    f"{url} lists {len(found)} jobs, the replies name {len(expected)}"
                )
        texts = {f"key-{key}": text for key, (_, text) in taken.items()}
        for url, client in zip(urls, clients, strict=True):
            stored = Counter(_documents(client))
            outcome.documents = sum(stored.values())
            if stored != Counter(texts.keys()):
                outcome.violations.append(
                    f"{url} lists {sum(stored.values())} documents, {len(stored)} different ones, "
                    f"where there were {len(texts)} keys"
                )
        for name, text in texts.items():
            reply = (
                clients[0].get(f"/admin/documents/{name}", params={"collection": COLLECTION}).json()
            )
            if reply.get("text") != text:
                outcome.violations.append(f"{name} is not the text of the accepted post")
    return outcome


class _Posts:
    """The numbers of posts, in order, for several threads; whole keys until time is up."""

    def __init__(self, keys: int, stop_at: float) -> None:
        self.end = keys * POSTS_PER_KEY
        self._next = 0
        self._stop_at = stop_at
        self._lock = threading.Lock()

    def take(self) -> int | None:
        with self._lock:
            if self._next % POSTS_PER_KEY == 0 and time.monotonic() > self._stop_at:
                self.end = min(self.end, self._next)
            if self._next == self.end:
                return None
            self._next += 1
            return self._next - 1


def _make(clients: Sequence[httpx.Client], posts: _Posts) -> list[Reply]:
    replies = []
    while (number := posts.take()) is not None:
        replies.append(_post(clients, number))
    return replies


def _post(clients: Sequence[httpx.Client], number: int) -> Reply:
    key, post = divmod(number, POSTS_PER_KEY)
    text = f"Document of key {key}."
    if key % OTHER_BODY_EVERY == 0 and post == key // OTHER_BODY_EVERY % POSTS_PER_KEY:
        text = f"Another document of key {key}."
    document = {"doc_id": f"key-{key}", "text": text, "collection": COLLECTION}
    client = clients[number % len(clients)]
    came_again = broken = 0
    while True:
        try:
            reply = client.post(
                "/admin/precompute",
                json={"documents": [document]},
                headers={"Idempotency-Key": f"key-{key}"},
            )
        except httpx.TransportError:
            broken += 1
            if broken == ATTEMPTS:
                raise
            continue
        if reply.status_code != 409:
            break
        came_again += 1
        time.sleep(PAUSE_S)
    if number % 1000 == 0:
        print(f"post {number}", file=sys.stderr, flush=True)
    job_id = str(reply.json()["job_id"]) if reply.status_code == 202 else ""
    return Reply(key, text, reply.status_code, job_id, came_again, broken)


def _check_replies(replies: Sequence[Reply], outcome: Outcome) -> dict[int, tuple[str, str]]:
    """The job and the text that each key was taken with; violations go to the outcome."""
    by_key: dict[int, list[Reply]] = defaultdict(list)
    for reply in replies:
        by_key[reply.key].append(reply)
    taken: dict[int, tuple[str, str]] = {}
    for key, own in by_key.items():
        accepted = {(r.job_id, r.text) for r in own if r.status == 202}
        if len(accepted) != 1:
            outcome.violations.append(f"key {key} was taken as {len(accepted)} jobs or texts")
            continue
        taken[key] = accepted.pop()
        wrong = [r.status for r in own if r.status != (202 if r.text == taken[key][1] else 422)]
        if wrong:
            outcome.violations.append(f"key {key}: wrong answers {wrong}")
    if len({job_id for job_id, _ in taken.values()}) != len(taken):
        outcome.violations.append("two keys were given the same job")
    return taken


def _jobs(client: httpx.Client, outcome: Outcome) -> list[str]:
    """The ids of all jobs that a gateway lists, once they have ended."""
    give_up_at = time.monotonic() + JOBS_END_S
    while any(_page(client, "jobs", state=state, limit=1)["jobs"] for state in OPEN_STATES):
        if time.monotonic() > give_up_at:
            outcome.violations.append(f"jobs have not ended after {JOBS_END_S:g} s")
            break
        time.sleep(0.2)
    jobs = list(_all(client, "jobs"))
    states = Counter(job["state"] for job in jobs)
    changes: Counter[str] = Counter()
    for job in jobs:
        changes.update(job["changes"])
    if set(states) != {"succeeded"} or set(changes) != {"created"}:
        outcome.violations.append(f"jobs ended as {dict(states)}, documents as {dict(changes)}")
    return [job["job_id"] for job in jobs]


def _documents(client: httpx.Client) -> Iterator[str]:
    for document in _all(client, "documents", collection=COLLECTION):
        yield document["doc_id"]


def _all(client: httpx.Client, what: str, **values: Any) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        given = values if cursor is None else {**values, "cursor": cursor}
        page = _page(client, what, limit=PAGE, **given)
        yield from page[what]
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _page(client: httpx.Client, what: str, **values: Any) -> dict[str, Any]:
    reply = client.get(f"/admin/{what}", params=values)
    reply.raise_for_status()
    page: dict[str, Any] = reply.json()
    return page


def _in_database(url: str) -> dict[str, int]:
    """Rows that speak for themselves."""
    import psycopg

    queries = {
        "jobs": "SELECT count(*) FROM kvstitch_service.jobs",
        "jobs_not_accepted": "SELECT count(*) FROM kvstitch_service.jobs WHERE state = 'spooling'",
        "idempotency_keys": "SELECT count(DISTINCT idempotency_key) FROM kvstitch_service.jobs",
        "documents": "SELECT count(*) FROM kvstitch_catalog.documents",
        "chunks": "SELECT count(*) FROM kvstitch_catalog.chunks",
    }
    with psycopg.connect(url) as connection:
        rows = {name: connection.execute(q.encode()).fetchone() for name, q in queries.items()}
    return {name: int(row[0]) for name, row in rows.items() if row is not None}


def main() -> int:
    """Starts server and gateways, posts, checks, writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2500)
    parser.add_argument("--threads", type=int, default=12, help="posts under way at a time")
    parser.add_argument("--minutes", type=float, default=60, help="then no further key is begun")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-")))
        database = stack.enter_context(postgresql_server()).database()
        os.environ |= {
            "KVSTITCH_DATABASE": database, "KVSTITCH_THREADS": "1",
            "KVSTITCH_MEMORY_TIER_MIB": "256",
            # With KV on disk a gateway may be silent for longer than 15 s, on a busy machine.
            "KVSTITCH_SSD_TIER_GIB": "0.5",
        }  # fmt: skip
        urls = [
            stack.enter_context(local_service.service(folder / name, demo_model(), start_s=START_S))
            for name in ("one", "other")
        ]
        outcome = prove(urls, args.keys, threads=args.threads, posting_s=60 * args.minutes)
        rows = _in_database(database)
        for name in ("jobs", "idempotency_keys", "documents"):
            if rows[name] != outcome.keys:
                outcome.violations.append(f"{rows[name]} {name} in the database")
        if rows["jobs_not_accepted"]:
            outcome.violations.append(f"{rows['jobs_not_accepted']} jobs were left unaccepted")
    posts = outcome.keys * POSTS_PER_KEY
    result = {
        "environment": describe(),
        "gateways": len(urls),
        "keys": outcome.keys,
        "posts": posts,
        "keys_with_another_body": -(-outcome.keys // OTHER_BODY_EVERY),
        "threads": args.threads,
        "statuses": {str(status): n for status, n in sorted(outcome.statuses.items())},
        "told_to_come_again_409": outcome.came_again,
        "connections_broken": outcome.broken,
        "jobs": outcome.jobs,
        "documents": outcome.documents,
        "in_database": rows,
        "posts_s": round(outcome.seconds, 1),
        "posts_per_s": round(posts / outcome.seconds, 1),
        "whole_run_s": round(time.monotonic() - begun, 1),
        "violations": outcome.violations[:100],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
