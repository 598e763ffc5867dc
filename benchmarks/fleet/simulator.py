"""A fleet without machines: the gateway's own router before workers that only keep time.

    arrivals ── Router.choose ──► worker: queue ── load ── prefill ── decode
                    ▲                        │
                    └── Directory ◄──────────┘ what its memory tier gained and lost

Time is simulated; the decisions are not: router, directory, costs and rendezvous hashing are the
ones that serve. Reports reach the router at once.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.fleet.simulated_worker import Fleet, Outcome, Request, SimulatedWorker
from kvstitch.service.gateway.fleet.routing.cost import Backlog, Work, WorkerTable
from kvstitch.service.gateway.fleet.routing.directory import Directory, PrefixMap
from kvstitch.service.gateway.fleet.routing.router import Router
from kvstitch.service.messages.replies import Holdings

__all__ = ["Fleet", "Outcome", "Request", "Simulation", "name"]


class Simulation:
    """One run of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._now = 0.0
        self._lies = random.Random(0)
        self._stored_up_to = 0  # the documents below are in the slower tier, and
        self._stored: set[int] = set()  # these
        self._directory = Directory(clock=lambda: self._now)
        self._table = WorkerTable(clock=lambda: self._now)
        self._prefixes = PrefixMap()
        self._router = Router(
            fleet.policy,
            self._table,
            self._directory,
            self._prefixes,
            slower_tiers=fleet.slower_tiers,
            prefix_cache=False,
        )
        self._numbers = range(fleet.workers)
        self._workers = [
            SimulatedWorker(number, fleet, self._is_stored) for number in self._numbers
        ]
        self._told = [0] * fleet.workers
        self._backlogs = [Backlog(lambda: self._now) for _ in self._numbers]
        for number in self._numbers:
            self._table.add(number)
            self._table.set_load(number, fleet.load)
        self._speed = 1.0
        self._busy: set[int] = set()
        self.outcome = Outcome()

    def fill(self, documents: Iterable[int]) -> None:
        """Precomputes chunks where the router places them, in this order."""
        backlogs = dict.fromkeys(self._numbers, 0.0)
        for document in documents:
            number = self._router.place(name(document), backlogs)
            backlogs[number] += self._fleet.tokens(document) * self._fleet.load.token_s
            self._tell(number, self._workers[number].keep([document]))

    def fill_as_if_long_served(self, *, spread: bool, stored: int, topic: int = 1) -> None:
        """Fills the tiers with the most popular chunks, which have the lowest numbers.

        Args:
            spread: each topic in the memory tier of one worker; else all have the same ones.
            stored: chunks in the slower tier.
            topic: chunks of a topic, which have numbers in a row.
        """
        self._stored_up_to = stored
        self._directory.note_stored(map(name, reversed(range(min(stored, 1_000_000)))))
        size = self._fleet.memory // self._fleet.chunk // topic
        step = self._fleet.workers if spread else 1
        for number, worker in enumerate(self._workers):
            first = number if spread else 0
            popular = range(first, first + size * step, step)
            self._tell(
                number,
                worker.keep(one * topic + n for one in reversed(popular) for n in range(topic)),
            )

    def run(self, requests: Iterable[Request]) -> Outcome:
        """Sends all requests and waits for the last answer."""
        events: list[tuple[float, int]] = []
        for request in requests:
            sent_at = request.at + self._fleet.gateway_s
            self._run_events(events, sent_at)
            self._now = sent_at
            number = self._send(request)
            self._workers[number].run_to(self._now, self.outcome)
            self._workers[number].take(request)
            self._settle(number, events)
        self._run_events(events, float("inf"))
        self.outcome.end = self._now
        return self.outcome

    def _run_events(self, events: list[tuple[float, int]], until: float) -> None:
        while events and events[0][0] <= until:
            at, number = heapq.heappop(events)
            worker = self._workers[number]
            if at < worker.next_at - 1e-9:  # it was put off by what came meanwhile
                continue
            self._now = at
            worker.run_to(at, self.outcome)
            self._settle(number, events)

    def _settle(self, number: int, events: list[tuple[float, int]]) -> None:
        """What ends at a worker now ends, what can begin begins, and it reports."""
        worker = self._workers[number]
        gained = worker.change(self.outcome)
        if gained is not None:
            self._tell(number, gained)
        worker.begin(self.outcome)
        self._table.in_flight[number] = worker.in_flight
        self._backlogs[number].reported(worker.backlog_s, 0)
        self._table.set_backlog(number, self._backlogs[number])
        (self._busy.add if worker.in_flight else self._busy.discard)(number)
        if not self._share_cores(events) and worker.next_at < float("inf"):
            heapq.heappush(events, (worker.next_at, number))

    def _share_cores(self, events: list[tuple[float, int]]) -> bool:
        """Divides the cores among the workers that do something; whether that changed anything."""
        cores = self._fleet.cores
        speed = min(1.0, cores / max(1, len(self._busy))) if cores else 1.0
        if speed == self._speed:
            return False
        self._speed = speed
        for worker in self._workers:
            worker.run_to(self._now, self.outcome)
            worker.speed = speed
            if worker.next_at < float("inf"):
                heapq.heappush(events, (worker.next_at, worker.number))
        return True

    def _send(self, request: Request) -> int:
        fleet = self._fleet
        sizes = [fleet.tokens(document) for document in request.documents]
        names = [name(document) for document in request.documents]
        work = Work(names, sizes, fleet.question, request.answer, fleet.repair)
        if fleet.policy == "longest_prefix":
            work = replace(work, beginnings=_beginnings(request.documents))
        number = self._router.choose(work, self._numbers).number
        for one in names:
            holders = self._directory.holders(one)
            where = "here" if number in holders else "elsewhere" if holders else "nowhere"
            self.outcome.routed[where] = self.outcome.routed.get(where, 0) + 1
        self._router.sent(work, number)
        return number

    def _is_stored(self, document: int) -> bool:
        """Whether the slower tier has a document: it has whatever was ever computed."""
        known = document < self._stored_up_to or document in self._stored
        return self._fleet.slower_tiers and known

    def _tell(self, number: int, gained: Sequence[int]) -> None:
        self._stored.update(d for d in gained if d >= self._stored_up_to)
        dropped = self._workers[number].dropped()
        self._directory.apply(
            number,
            Holdings(
                number=self._told[number],
                added=[self._as_told(document) for document in gained],
                removed=[name(document) for document in dropped],
                snapshot=self._told[number] == 0,
                received=0,
                load=self._fleet.load,
            ),
        )
        self._told[number] += 1

    def _as_told(self, document: int) -> bytes:
        untrue = self._fleet.untrue and self._lies.random() < self._fleet.untrue
        return name(self._lies.randrange(2 * document + 2) if untrue else document)


def name(document: int) -> bytes:
    """A chunk's name in the directory."""
    return document.to_bytes(16, "big")


def _beginnings(documents: Sequence[int]) -> list[bytes]:
    """Names of the prompt's beginnings, one per document, as routers by prefix see them."""
    return [b"".join(map(name, documents[:end])) for end in range(1, len(documents) + 1)]
