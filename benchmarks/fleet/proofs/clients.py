"""Clients of a fleet that is being killed: some that ask, one that hands in, one that deletes.

They pick a gateway at random, as behind a load balancer that knows nothing. Who asks does not try
again; who writes does, with the same idempotency key, until it is acknowledged.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.fleet.proofs.fleet import Fleet
from benchmarks.fleet.proofs.ledger import Ledger
from benchmarks.fleet.proofs.processes import TIMEOUT_S, Gateway
from kvstitch.client import server_sent_events

ASKERS = 3
METHODS = ("question_scout", "pie", "vanilla")
WRITE_S = 180.0  # a write is acknowledged sooner, over all attempts
# What may be answered instead while a part is away: come again. 409: the same key is under way.
REFUSALS = (409, 429, 503, 504)
DEATH_S = 2.0  # in which a connection may break before the kill is on record


@dataclass(frozen=True)
class Ask:
    """A request that has one right answer, whatever the cache holds."""

    body: dict[str, Any]
    expected: str
    documents: list[str]  # in their order

    @property
    def name(self) -> str:
        return f"{self.body['fusion']['method']}: {self.body['question']}"

    def differs(self, answer: dict[str, Any]) -> str:
        """What is wrong with an answer; empty: nothing."""
        order = [citation["doc_id"] for citation in answer["citations"]]
        if (answer["text"], order) == (self.expected, self.documents):
            return ""
        tiers = [(d["tier"], d["computed"]) for d in answer["cache"]["documents"]]
        return (
            f"{self.name}: {answer['text']!r} from {order}, not {self.expected!r} from "
            f"{self.documents}; {tiers}"
        )


class Clients:
    """They work from `start` to `stop`."""

    def __init__(self, fleet: Fleet, ledger: Ledger, asks: Sequence[Ask], seed: int) -> None:
        self._fleet, self._ledger, self._asks = fleet, ledger, asks
        self._stop = threading.Event()
        jobs = (*(self._ask,) * ASKERS, self._hand_in, self._delete)
        self._threads = [
            threading.Thread(target=self._run, args=(job, random.Random(f"{seed}/{n}")))
            for n, job in enumerate(jobs)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every request end; one that hangs is a violation."""
        self._stop.set()
        give_up_at = time.monotonic() + WRITE_S + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.1, give_up_at - time.monotonic()))
        if hanging := sum(thread.is_alive() for thread in self._threads):
            self._ledger.violation(f"{hanging} clients hang")

    def _run(self, job: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                job(chance)
            except Exception as error:  # an answer that cannot be read, or a fault of ours
                self._ledger.violation(f"{job.__name__}: {type(error).__name__}: {error}")
            self._stop.wait(chance.uniform(0.01, 0.1))

    # -- asking -----------------------------------------------------------------------------------

    def _ask(self, chance: random.Random) -> None:
        ask, gateway = chance.choice(self._asks), chance.choice(self._fleet.gateways)
        began = time.monotonic()
        try:
            outcome = self._streamed(ask, gateway, began)
        except httpx.TransportError as error:
            outcome = self._broken(error, gateway, began, ask.name)
        self._ledger.ended("answer", outcome, gateway.name, began)
        if "refused" in outcome:
            self._stop.wait(0.2)

    def _streamed(self, ask: Ask, gateway: Gateway, began: float) -> str:
        body = {**ask.body, "stream": True}
        with (
            httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S) as http,
            http.stream("POST", "/v1/rag/generate", json=body) as reply,
        ):
            if reply.status_code != 200:
                return self._refused(reply.status_code, reply.read().decode(), ask.name)
            for event, data in server_sent_events(reply.iter_lines()):
                if event in ("done", "error"):
                    return self._last(ask, event, data)
        return self._broken(EOFError("the stream has no last event"), gateway, began, ask.name)

    def _last(self, ask: Ask, event: str, data: dict[str, Any]) -> str:
        if event == "error":
            return f"error event {data.get('error', data)['code']}"
        if wrong := ask.differs(data):
            self._ledger.violation(wrong)
            return "another text"
        return "good"

    # -- writing ----------------------------------------------------------------------------------

    def _hand_in(self, chance: random.Random) -> None:
        documents = self._ledger.fresh(chance.randint(1, 3))
        key = {"Idempotency-Key": documents[0].doc_id}
        body = {"documents": [document.body for document in documents]}

        def attempt(http: httpx.Client) -> httpx.Response:
            return http.post("/admin/precompute", json=body, headers=key)

        if self._until_acknowledged("ingest", attempt, (202,), chance) is not None:
            self._ledger.acknowledged(documents)
        self._stop.wait(chance.uniform(0.2, 0.6))

    def _delete(self, chance: random.Random) -> None:
        known = sorted(self._ledger.there, key=lambda document: document.number)
        if len(known) < 5:
            return
        document = chance.choice(known)
        self._ledger.to_delete(document)

        def attempt(http: httpx.Client) -> httpx.Response:
            return http.delete(f"/admin/documents/{document.doc_id}")

        if (reply := self._until_acknowledged("deletion", attempt, (200, 404), chance)) is not None:
            found = reply.status_code == 200
            self._ledger.deleted(document, reply.json()["receipt_id"] if found else None)
        self._stop.wait(chance.uniform(1.0, 3.0))

    def _until_acknowledged(
        self,
        what: str,
        attempt: Callable[[httpx.Client], httpx.Response],
        accepted: tuple[int, ...],
        chance: random.Random,
    ) -> httpx.Response | None:
        """Try at one gateway after another; None, with a violation, if that takes too long.

        The first attempt must not get a 404: what is asked for was acknowledged.
        """
        give_up_at = time.monotonic() + WRITE_S
        attempts = 0
        while time.monotonic() < give_up_at:
            gateway = chance.choice(self._fleet.gateways)
            began = time.monotonic()
            attempts += 1
            try:
                with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S) as http:
                    reply = attempt(http)
            except httpx.TransportError as error:
                outcome = self._broken(error, gateway, began, what)
            else:
                if reply.status_code in accepted:
                    self._ledger.ended(what, "good", gateway.name, began)
                    if reply.status_code == 404 and attempts == 1:
                        self._ledger.violation(f"acknowledged and unknown: {reply.url}")
                    return reply
                outcome = self._refused(reply.status_code, reply.text, what)
            self._ledger.ended(what, outcome, gateway.name, began)
            time.sleep(0.3)
        self._ledger.violation(f"{what}: not acknowledged within {WRITE_S:.0f} s")
        return None

    # -- judging ----------------------------------------------------------------------------------

    def _refused(self, status: int, text: str, what: str) -> str:
        code = ""
        try:
            error = json.loads(text)
            code = error.get("error", error)["code"]
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        if status not in REFUSALS or not code:
            self._ledger.violation(f"{what}: {status} {text[:300]}")
        return f"refused {status} {code}"

    def _broken(self, error: Exception, gateway: Gateway, began: float, what: str) -> str:
        """A connection may break, or not be made, only because its gateway was killed."""
        give_up_at = time.monotonic() + DEATH_S
        while not gateway.was_away_after(began):
            if time.monotonic() > give_up_at:
                self._ledger.violation(
                    f"{what}: {type(error).__name__} {error}, and {gateway.name} lives"
                )
                break
            time.sleep(0.05)
        refused = isinstance(error, httpx.ConnectError)
        return "nobody listens" if refused else "broken with its gateway"


def asks(
    http: httpx.Client,
    documents: Sequence[dict[str, Any]],
    questions: Sequence[str],
    count: int,
    max_tokens: int,
    chance: random.Random,
) -> list[Ask]:
    """Questions about stored documents, with the answers that an undisturbed fleet gives."""
    made = []
    for number in range(count):
        chosen = chance.sample(list(documents), 3)
        body = {
            "question": chance.choice(questions),
            "documents": [document["doc_id"] for document in chosen],
            "top_k": len(chosen),
            # The other ways to search weigh words by how many documents have them, so that the
            # order, and with it the answer, depends on what else was handed in.
            "retrieval": "dense",
            "fusion": {"method": METHODS[number % len(METHODS)]},
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cold": "as_stored",
            "prefix_cache": False,
        }
        reply = http.post("/v1/rag/generate", json=body)
        reply.raise_for_status()
        answer = reply.json()
        order = [citation["doc_id"] for citation in answer["citations"]]
        made.append(Ask(body, answer["text"], order))
    return made
