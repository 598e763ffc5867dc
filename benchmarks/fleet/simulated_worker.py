"""A worker that only keeps time: queue, prefill, decoding and memory tier.

It does one prefill at a time, reads chunks of waiting requests meanwhile, and decodes all running
sequences together. While it decodes, prefill gets half of its time
(`kvstitch.service.worker.engine.scheduler`). Rates hold between events; `speed` is the share of a
core that it gets.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvstitch.service.gateway.fleet.routing.cost import UNKNOWN_TIER, Place, document_s
from kvstitch.service.gateway.fleet.routing.router import Policy
from kvstitch.service.messages.replies import WorkerLoad

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
        repair: share of a prompt's tokens that the fusion method computes anew, of those that are
            stored. A prompt's first document stands where it stood when it was stored, and needs
            none.
        memory: tokens that a worker's memory tier holds.
        slower_tiers: whether all workers read a common slower tier.
        policy: of the router.
        running: most sequences of a worker.
        cores: that all workers share: of more busy workers each is slower; 0: each has its own.
        sizes: tokens of each document by its number, where they differ.
        gateway_s: seconds that a request takes before a worker has it.
        untrue: share of a worker's reports on chunks that name another chunk.
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
    cores: int = 0
    sizes: Sequence[int] = ()
    gateway_s: float = 0.0
    untrue: float = 0.0

    def tokens(self, document: int) -> int:
        """Tokens of a document."""
        return self.sizes[document] if self.sizes else self.chunk


@dataclass
class Outcome:
    """What became of the requests.

    Attributes:
        ttft_s: of each request.
        tpot_s: of each.
        places: how many documents were found where.
        reused_tokens: of the documents that were in the worker's memory tier.
        document_tokens: of all.
        slow_bytes: read from the slower tier.
        routed: how many documents the chosen worker was believed to hold (`here`), only others
            (`elsewhere`), or none (`nowhere`).
        busy_s: seconds in which workers did anything, summed.
        end: simulated seconds.
    """

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    places: dict[Place, int] = field(default_factory=dict)
    reused_tokens: int = 0
    document_tokens: int = 0
    slow_bytes: float = 0.0
    routed: dict[str, int] = field(default_factory=dict)
    busy_s: float = 0.0
    end: float = 0.0

    @property
    def local_hit_rate(self) -> float:
        """Share of the documents that were in the chosen worker's memory tier."""
        return self.places.get("memory", 0) / max(1, sum(self.places.values()))


@dataclass
class _Sequence:
    request: Request
    expected_s: float
    first_token_at: float = 0.0
    computed: list[int] = field(default_factory=list)


class SimulatedWorker:
    """One worker. Time is the caller's: it never goes on by itself.

    Args:
        stored: whether the slower tier has a document.
    """

    def __init__(self, number: int, fleet: Fleet, stored: Callable[[int], bool]) -> None:
        self.number = number
        self.speed = 1.0
        self._fleet = fleet
        self._stored = stored
        self._memory: OrderedDict[int, None] = OrderedDict()
        self._held_tokens = 0
        self._now = 0.0
        self._queue: deque[_Sequence] = deque()
        self._prefill: _Sequence | None = None
        self._left_s = 0.0
        self._decoded = 0.0  # tokens that every sequence has decoded since the beginning
        self._decoding: list[tuple[float, int, _Sequence]] = []

    @property
    def in_flight(self) -> int:
        return len(self._queue) + (self._prefill is not None) + len(self._decoding)

    @property
    def backlog_s(self) -> float:
        """Seconds until a prompt that comes now could start, as workers report them."""
        seconds = (self._left_s if self._prefill else 0.0) + sum(s.expected_s for s in self._queue)
        return seconds / PREFILL_SHARE if self._decoding else seconds

    def take(self, request: Request) -> None:
        """A request comes."""
        fleet = self._fleet
        expected_s = fleet.load.overhead_s + fleet.question * fleet.load.token_s
        expected_s += sum(self._document_s(document)[1] for document in request.documents)
        self._queue.append(_Sequence(request, expected_s))

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
        """What ends now ends.

        Returns:
            Chunks that its memory tier holds anew: those that were read when a prefill ends,
            those that were computed when its answer does. None if nothing ended.
        """
        gained: list[int] | None = None
        if self._prefill is not None and self._left_s <= 1e-9:
            done = self._prefill
            done.first_token_at = self._now
            outcome.ttft_s.append(self._now - done.request.at)
            read = [d for d in done.request.documents if d not in done.computed]
            gained = self.keep(read)
            self._prefill = None
            end = self._decoded + max(0, done.request.answer - 1)
            heapq.heappush(self._decoding, (end, id(done), done))
        while self._decoding and self._decoding[0][0] <= self._decoded + 1e-9:
            _, _, done = heapq.heappop(self._decoding)
            gained = [*(gained or ()), *self.keep(done.computed)]  # as the engine writes back
            tokens = max(1, done.request.answer - 1)
            outcome.tpot_s.append((self._now - done.first_token_at) / tokens)
        return gained

    def begin(self, outcome: Outcome) -> None:
        """Begins the next prefill, if there is one and room for it."""
        if self._prefill or not self._queue or len(self._decoding) >= self._fleet.running:
            return
        self._prefill = self._queue.popleft()
        request, fleet = self._prefill.request, self._fleet
        waited_s = self._now - request.at
        computed: float = fleet.question  # tokens
        stale = 0  # stored tokens that may be computed anew
        self._left_s = fleet.load.overhead_s
        for position, document in enumerate(request.documents):
            tokens = fleet.tokens(document)
            place, in_place_s = self._document_s(document)
            if place == "slow" and in_place_s >= tokens * fleet.load.token_s:
                place = "nowhere"  # its planner computes what takes longer to read
            outcome.places[place] = outcome.places.get(place, 0) + 1
            outcome.document_tokens += tokens
            if place == "nowhere":
                self._prefill.computed.append(document)
                computed += tokens
                continue
            stale += tokens if position else 0
            if place == "memory":
                outcome.reused_tokens += tokens
            if place == "slow":  # it was read while the request waited
                outcome.slow_bytes += tokens * fleet.load.token_bytes
                read_s = in_place_s - fleet.repair * tokens * fleet.load.token_s
                self._left_s += max(0.0, read_s - waited_s)
        whole = fleet.question + sum(map(fleet.tokens, request.documents))
        computed += min(fleet.repair * whole, stale)
        self._left_s += computed * fleet.load.token_s

    def keep(self, documents: Iterable[int]) -> list[int]:
        """Puts chunks into the memory tier, those used last last; which it did not have."""
        gained = []
        for document in documents:
            if document not in self._memory:
                gained.append(document)
                self._held_tokens += self._fleet.tokens(document)
            self._memory[document] = None
            self._memory.move_to_end(document)
        return gained

    def dropped(self) -> list[int]:
        """Chunks beyond the memory tier's size, which it gives up."""
        gone = []
        while self._held_tokens > self._fleet.memory:
            gone.append(self._memory.popitem(last=False)[0])
            self._held_tokens -= self._fleet.tokens(gone[-1])
        return gone

    def _document_s(self, document: int) -> tuple[Place, float]:
        """Where it finds a document, and seconds until that is in place."""
        place: Place = "nowhere"
        if document in self._memory:
            place = "memory"
        elif self._stored(document):
            place = "slow"
        tokens = self._fleet.tokens(document)
        load = self._fleet.load
        nbytes = tokens * load.token_bytes
        tiers = load.tiers.values() or [UNKNOWN_TIER]
        read_s = min(latency + nbytes * byte_s for latency, byte_s in tiers)
        read_s = {"memory": 0.0, "slow": read_s, "nowhere": float("inf")}[place]
        return place, float(document_s(tokens * load.token_s, read_s, self._fleet.repair))

    def _rates(self) -> tuple[float, float]:
        """Seconds of prefill that a second does, and the seconds of a decoded token."""
        sequences = len(self._decoding)
        load = self._fleet.load
        step_s = (load.step_s + load.step_sequence_s * sequences) / self.speed
        if self._prefill is None or not sequences:
            return self.speed, step_s
        return PREFILL_SHARE * self.speed, step_s / (1 - PREFILL_SHARE)
