"""What clients do while things break: two that ask, one that writes and deletes, one that looks
around. Each judges what it gets; none of them retries."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import httpx

from tests.trials.chaos.documents import Document, State
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.outcomes import check_answer, read_stream, send
from tests.trials.chaos.world import DEADLINE_S, World

JOIN_S = DEADLINE_S + 30.0
BATCH = 4
LOOKS = (
    "/health/live",
    "/status",
    "/v1/methods",
    "/v1/models",
    "/admin/jobs",
    "/admin/collections",
)


class Load:
    """Clients that work from `start` to `stop`."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._stop = threading.Event()
        jobs = (ask_once, ask_once, write_once, look_once, watch_once)
        self._threads = [
            threading.Thread(
                target=self._run, args=(job, random.Random(chance.random())), name=job.__name__
            )
            for job in jobs
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every request end.

        Raises:
            Violation: One hangs.
        """
        self._stop.set()
        give_up_at = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.1, give_up_at - time.monotonic()))
        if hanging := [thread.name for thread in self._threads if thread.is_alive()]:
            raise Violation(f"requests do not end: {hanging}")

    def _run(self, job: Callable[[World, random.Random], None], chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                job(self._world, chance)
            except Violation as violation:
                self._world.journal.violation(str(violation))
            except httpx.TransportError:
                self._stop.wait(0.3)  # there is no service at all
            except Exception as error:  # of the harness itself, or an answer that cannot be read
                self._world.journal.violation(f"{job.__name__}: {type(error).__name__}: {error}")
            life = self._world.life
            busy = life is not None and life.is_ready
            self._stop.wait(chance.uniform(0.01, 0.15) * (1 if busy else 5))


def watch_once(world: World, chance: random.Random) -> None:
    """Notice that a service that was started serves."""
    if (life := world.life) is not None and not life.is_ready:
        life.look_ready()


def ask_once(world: World, chance: random.Random) -> None:
    """One question, in JSON or as a stream, which may be left."""
    ask = chance.choice(world.asks)
    with world.client("red") as client:
        if chance.random() < 0.5:
            reply = send(world, client, "POST", ask.route, json=ask.body())
            if reply is not None and reply.status_code == 200:
                check_answer(world, ask, reply.json())
            return
        leave_after = chance.randrange(4) if chance.random() < 0.3 else None
        streamed = read_stream(world, client, ask, leave_after)
    if streamed is not None:
        whole, pieces = streamed
        check_answer(world, ask, whole)
        if pieces != ask.read(whole)[1]:
            raise Violation(f"{ask.name}: the pieces of the stream are {pieces!r}")


def write_once(world: World, chance: random.Random) -> None:
    """Hand documents in, or delete one."""
    tenant = chance.choice(("red", "red", "red", "blue"))
    if chance.random() < 0.6:
        ingest(world, chance, tenant)
    else:
        delete(world, chance, tenant)


def ingest(world: World, chance: random.Random, tenant: str) -> None:
    """One call with a few documents that are not there, or may be."""
    wanted: tuple[State, ...] = ("absent", "maybe") if chance.random() < 0.9 else ("present",)
    count = chance.randint(1, BATCH)
    with world.ledger.reserved(chance, tenant, wanted, count) as documents:
        if documents:
            with world.client(tenant) as client:
                hand_in(world, client, documents)


def hand_in(world: World, client: httpx.Client, documents: list[Document]) -> bool:
    """Send documents; from the acknowledgement on they must be there."""
    present = [d for d in documents if world.ledger.state(d) == "present"]
    fresh = [d for d in documents if d not in present]
    world.ledger.note(fresh, "maybe")
    body = {"documents": [d.body for d in documents]}
    reply = send(world, client, "POST", "/admin/precompute", json=body)
    if reply is None or reply.status_code != 202:
        return False
    world.ledger.note(fresh, "present")
    world.journal.count("documents acknowledged", len(documents))
    return True


def delete(world: World, chance: random.Random, tenant: str) -> None:
    """Delete one document; only one of which nothing is known may be unknown to the service."""
    with world.ledger.reserved(chance, tenant, ("present", "maybe"), 1) as documents:
        if not documents:
            return
        (document,) = documents
        known = world.ledger.state(document) == "present"
        world.ledger.note(documents, "maybe")
        with world.client(tenant) as client:
            reply = send(world, client, "DELETE", f"/admin/documents/{document.doc_id}")
        if reply is None:
            return
        if reply.status_code == 200:
            world.ledger.note(documents, "absent")
            world.receipts.append((tenant, reply.json()["receipt_id"]))
            world.journal.count("deletions acknowledged")
        elif reply.status_code == 404 and known:
            raise Violation(f"{document.doc_id} was acknowledged, and DELETE says 404")


def look_once(world: World, chance: random.Random) -> None:
    """Any other route, as either tenant; blue may not see anything of red's."""
    tenant = chance.choice(("red", "blue"))
    with world.client(tenant) as client:
        kind = chance.randrange(4)
        if kind == 0:
            send(world, client, "GET", chance.choice(LOOKS))
        elif kind == 1:
            reply = send(world, client, "GET", "/admin/documents", params={"limit": 1000})
            if reply is not None and reply.status_code == 200:
                own_only(world, tenant, [d["doc_id"] for d in reply.json()["documents"]])
        elif kind == 2:
            question = {"question": chance.choice(world.asks).question, "max_tokens": 1}
            retrieval = chance.choice(("dense", "sparse", "hybrid"))
            body = {**question, "retrieval": retrieval, "top_k": 4}
            reply = send(world, client, "POST", "/v1/rag/generate", json=body)
            if reply is not None and reply.status_code == 200:
                own_only(world, tenant, [c["doc_id"] for c in reply.json()["citations"]])
        else:
            body = {**chance.choice(world.asks).body(), "explain": True}
            send(world, client, "POST", "/v1/rag/generate", json=_explained(body))


def _explained(body: dict[str, object]) -> dict[str, object]:
    """A question to OpenAI's routes, asked on the service's own."""
    return {"question": "What would it take?", "top_k": 2, "explain": True} | {
        k: v for k, v in body.items() if k in ("question", "documents", "top_k")
    }


def own_only(world: World, tenant: str, doc_ids: list[str]) -> None:
    """Every document is of this tenant, and listed once.

    Raises:
        Violation: One is not.
    """
    if foreign := [d for d in doc_ids if world.ledger.find(tenant, d) is None]:
        raise Violation(f"{tenant} sees {foreign}")
    if len(doc_ids) != len(set(doc_ids)):
        raise Violation(f"{tenant} sees a document twice: {sorted(doc_ids)}")
