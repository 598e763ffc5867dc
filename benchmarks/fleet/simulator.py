"""A fleet without machines: the gateway's own router before workers that only keep time.

    arrivals ── Router.choose ──► worker: queue ── load ── prefill ── decode
                    ▲                        │
                    └── Directory ◄──────────┘ what its memory tier gained and lost

Time is simulated; the decisions are not: router, directory, costs and rendezvous hashing are the
ones that serve. A worker does one prefill at a time, reads chunks of waiting requests meanwhile,
and decodes all running sequences together. While it decodes, prefill gets half of its time
(`service.worker.engine.step_budget`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from service.gateway.fleet.cost import Place, Work, document_s
from service.gateway.fleet.directory import Directory
from service.gateway.fleet.prefixes import PrefixMap
from service.gateway.fleet.router import Candidate, Policy, RoutedPrompt, Router
from service.messages import Holdings
from service.records import WorkerLoad

PREFILL_SHARE = 0.5


@dataclass(frozen=True)
class Request:
    """One arrival.

    Attributes:
        at: seconds.
        documents: numbers of its chunks, in the order of the prompt.
        answer: tokens.
    """

    at: float
    documents: Sequence[int]
    answer: int


@dataclass(frozen=True)
class Fleet:
    """What is simulated.

    Attributes:
        workers: how many.
        load: what a worker costs, with `backlog_s` and `running` at 0.
        chunk: tokens of a document.
        question: tokens of a question.
        repair: share of stored tokens that the fusion method computes anew.
        memory: chunks that a worker's memory tier holds.
        slower_tiers: whether all workers read a common slower tier.
        policy: of the router.
        running: most sequences of a worker.
    """

    workers: int
    load: WorkerLoad
    chunk: int
    question: int
    repair: float
    memory: int
    slower_tiers: bool
    policy: Policy
    running: int = 64


@dataclass
class Outcome:
    """What became of the requests.

    Attributes:
        ttft_s: of each request.
        tpot_s: of each.
        places: how many documents were found where.
        busy_s: seconds in which workers did anything, summed.
        end: simulated seconds.
    """

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    places: dict[Place, int] = field(default_factory=dict)
    busy_s: float = 0.0
    end: float = 0.0

    @property
    def local_hit_rate(self) -> float:
        """Share of the documents that were in the chosen worker's memory tier."""
        return self.places.get("memory", 0) / max(1, sum(self.places.values()))


@dataclass
class _Sequence:
    request: Request
    first_token_at: float = 0.0


class _Worker:
    """One worker's queue, prefill, decoding and memory tier, at rates that hold between events."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.number = number
        self.memory: OrderedDict[int, None] = OrderedDict()
        self.told = 0
        self._fleet = fleet
        self._now = 0.0
        self._queue: deque[_Sequence] = deque()
        self._prefill: _Sequence | None = None
        self._left_s = 0.0
        self._decoded = 0.0  # tokens that every sequence has decoded since the beginning
        self._decoding: list[tuple[float, int, _Sequence]] = []

    @property
    def in_flight(self) -> int:
        return len(self._queue) + (self._prefill is not None) + len(self._decoding)

    def backlog_s(self, expected_s: float) -> float:
        """Seconds of prefill that it has, a waiting one counted as `expected_s`."""
        return (self._left_s if self._prefill else 0.0) + len(self._queue) * expected_s

    def take(self, request: Request) -> None:
        self._queue.append(_Sequence(request))

    @property
    def next_at(self) -> float:
        """When something changes by itself."""
        prefill_share, token_s = self._rates()
        found = [float("inf")]
        if self._prefill is not None:
            found.append(self._now + self._left_s / prefill_share)
        if self._decoding:
            found.append(self._now + (self._decoding[0][0] - self._decoded) * token_s)
        return min(found)

    def run_to(self, now: float, outcome: Outcome) -> None:
        """Lets time pass, in which nothing changes before `now`."""
        elapsed = now - self._now
        prefill_share, token_s = self._rates()
        if self._prefill is not None:
            self._left_s -= elapsed * prefill_share
        if self._decoding:
            self._decoded += elapsed / token_s
        if self.in_flight:
            outcome.busy_s += elapsed
        self._now = now

    def change(self, outcome: Outcome) -> list[int] | None:
        """What ends now ends, and what can begin begins.

        Returns:
            Chunks that its memory tier holds anew; None if no prefill ended.
        """
        gained: list[int] | None = None
        if self._prefill is not None and self._left_s <= 1e-9:
            done = self._prefill
            done.first_token_at = self._now
            outcome.ttft_s.append(self._now - done.request.at)
            gained = self._keep(done.request.documents)
            self._prefill = None
            end = self._decoded + max(0, done.request.answer - 1)
            heapq.heappush(self._decoding, (end, id(done), done))
        while self._decoding and self._decoding[0][0] <= self._decoded + 1e-9:
            _, _, done = heapq.heappop(self._decoding)
            tokens = max(1, done.request.answer - 1)
            outcome.tpot_s.append((self._now - done.first_token_at) / tokens)
        return gained

    def begin(self, stored: Directory, outcome: Outcome) -> None:
        """Begins the next prefill, if there is one and room for it."""
        if self._prefill or not self._queue or len(self._decoding) >= self._fleet.running:
            return
        self._prefill = self._queue.popleft()
        request, fleet = self._prefill.request, self._fleet
        waited = self._now - request.at
        self._left_s = fleet.load.overhead_s + fleet.question * fleet.load.token_s
        for document in request.documents:
            place: Place = "nowhere"
            if document in self.memory:
                place = "memory"
            elif fleet.slower_tiers and stored.is_stored(name(document)):
                place = "slow"
            outcome.places[place] = outcome.places.get(place, 0) + 1
            in_place_s = document_s(fleet.chunk, place, fleet.load, fleet.repair)
            if place == "slow":  # it was read while the request waited
                repair_s = fleet.repair * fleet.chunk * fleet.load.token_s
                in_place_s = max(repair_s, in_place_s - waited)
            self._left_s += in_place_s

    def fill(self, documents: Iterable[int]) -> list[int]:
        """Puts chunks into the memory tier, the most popular last."""
        return self._keep(documents)

    def dropped(self) -> list[int]:
        """Chunks beyond the tier's size, which it gives up."""
        gone = []
        while len(self.memory) > self._fleet.memory:
            gone.append(self.memory.popitem(last=False)[0])
        return gone

    def _keep(self, documents: Iterable[int]) -> list[int]:
        gained = []
        for document in documents:
            if document not in self.memory:
                gained.append(document)
            self.memory[document] = None
            self.memory.move_to_end(document)
        return gained

    def _rates(self) -> tuple[float, float]:
        """The share of time that prefill gets, and the seconds of a decoded token."""
        sequences = len(self._decoding)
        load = self._fleet.load
        step_s = load.step_s + load.step_sequence_s * sequences
        if self._prefill is None or not sequences:
            return 1.0, step_s
        return PREFILL_SHARE, step_s / (1 - PREFILL_SHARE)


class Simulation:
    """One run of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._now = 0.0
        self._directory = Directory(clock=lambda: self._now)
        self._router = Router(
            fleet.policy,
            self._directory,
            PrefixMap(),
            slower_tiers=fleet.slower_tiers,
            kept_prompts=False,
        )
        self._workers = [_Worker(number, fleet) for number in range(fleet.workers)]
        self.outcome = Outcome()

    def fill(self, documents: Iterable[int]) -> None:
        """Precomputes chunks where the router places them, the least popular first."""
        backlogs = dict.fromkeys(range(self._fleet.workers), 0.0)
        for document in documents:
            worker = self._workers[self._router.place(name(document), backlogs)]
            self._tell(worker, worker.fill([document]))

    def fill_as_if_long_served(self, *, spread: bool, stored: int) -> None:
        """Fills the tiers with the most popular chunks, which have the lowest numbers.

        Args:
            spread: each chunk in the memory tier of one worker; else all have the same ones.
            stored: chunks in the slower tier.
        """
        self._directory.note_stored(map(name, range(stored)))
        size, workers = self._fleet.memory, self._workers
        for worker in workers:
            step = len(workers) if spread else 1
            first = worker.number if spread else 0
            popular = range(first, first + size * step, step)
            self._tell(worker, worker.fill(reversed(popular)))

    def run(self, requests: Iterable[Request]) -> Outcome:
        """Sends all requests and waits for the last answer."""
        events: list[tuple[float, int]] = []
        for request in requests:
            self._run_events(events, request.at)
            self._now = request.at
            worker = self._workers[self._send(request)]
            worker.run_to(self._now, self.outcome)
            worker.take(request)
            self._settle(worker, events)
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
            self._settle(worker, events)

    def _settle(self, worker: _Worker, events: list[tuple[float, int]]) -> None:
        gained = worker.change(self.outcome)
        if gained is not None:
            self._tell(worker, gained)
        worker.begin(self._directory, self.outcome)
        if worker.next_at < float("inf"):
            heapq.heappush(events, (worker.next_at, worker.number))

    def _send(self, request: Request) -> int:
        fleet = self._fleet
        work = Work(
            [fleet.chunk] * len(request.documents), fleet.question, request.answer, fleet.repair
        )
        prompt = RoutedPrompt(work, [name(document) for document in request.documents])
        expected_s = fleet.load.overhead_s + fleet.load.token_s * (
            fleet.question + fleet.repair * fleet.chunk * len(request.documents)
        )
        candidates = []
        for worker in self._workers:
            backlog_s = worker.backlog_s(expected_s)
            load = replace(fleet.load, backlog_s=backlog_s)
            candidates.append(Candidate(worker.number, load, backlog_s, worker.in_flight))
        number = self._router.choose(prompt, candidates).number
        self._router.sent(prompt, number)
        return number

    def _tell(self, worker: _Worker, gained: Sequence[int]) -> None:
        self._directory.apply(
            worker.number,
            Holdings(
                number=worker.told,
                added=[name(document) for document in gained],
                removed=[name(document) for document in worker.dropped()],
                snapshot=worker.told == 0,
                received=0,
                load=self._fleet.load,
            ),
        )
        worker.told += 1


def name(document: int) -> bytes:
    """A chunk's name in the directory."""
    return document.to_bytes(16, "big")
