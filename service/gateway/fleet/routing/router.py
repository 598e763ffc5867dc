"""Chooses the worker of a request, by one of four policies. It sends nothing.

`cost` is the one to use; the others are what other servers do, for comparison. A document that no
worker holds has a home, by rendezvous hashing with bounded load: of all workers the one with the
heaviest hash, without those that are busier than most. If a worker goes, only its names move.

Sources:
    Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.
    Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2016.
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (the mixing).
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kvstitch.service.gateway.fleet.routing.cost import (
    Costs,
    Counts,
    Place,
    Work,
    WorkerTable,
    costs,
)
from kvstitch.service.gateway.fleet.routing.directory import Directory, PrefixMap, prompt_beginnings
from kvstitch.service.messages.requests import ChunkNames, Generate

BOUND = 1.25  # a home's backlog is at most this many times the mean
SLACK_S = 0.05  # and this much besides, so that idle workers differ in nothing

Weights = npt.NDArray[np.uint64]


def ranked(name: bytes, workers: Iterable[int]) -> list[int]:
    """Return the workers, that with the largest weight for `name` first."""
    numbers = np.fromiter(workers, np.int64)
    order = np.argsort(_weights([name], numbers)[0])[::-1]
    return [int(number) for number in numbers[order]]


def home(name: bytes, backlogs: Mapping[int, float]) -> int:
    numbers = np.fromiter(backlogs, np.int64, count=len(backlogs))
    seconds = np.fromiter(backlogs.values(), np.float64, count=len(backlogs))
    return int(numbers[homes([name], numbers, seconds)[0]])


def homes(
    names: Sequence[bytes], numbers: npt.NDArray[np.int64], backlogs: npt.NDArray[np.float64]
) -> npt.NDArray[np.intp]:
    """Return the home of every name, as its place in `numbers`."""
    weights = _weights(names, numbers)
    weights[:, backlogs > BOUND * backlogs.mean() + SLACK_S] = 0
    places: npt.NDArray[np.intp] = weights.argmax(axis=1)
    return places


def _weights(names: Sequence[bytes], numbers: npt.NDArray[np.int64]) -> Weights:
    """Of every worker for every name `[names, workers]`: a hash of both, for all at once."""
    hashes = [int.from_bytes(blake2b(name, digest_size=8).digest(), "big") for name in names]
    of_workers = _mix(numbers.astype(np.uint64) + np.uint64(1))
    return _mix(np.array(hashes, np.uint64)[:, None] ^ of_workers)


def _mix(values: Weights) -> Weights:
    """SplitMix64's output function: every bit of a number depends on all of the old ones."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


Policy = Literal["cost", "round_robin", "least_load", "longest_prefix"]
# Costs that differ by less count as equal; then the worker is taken that was chosen less often.
EQUAL_DIGITS = 4


def work_of(request: Generate, *, answer: float, repair: float) -> Work:
    """Return what of a request decides where it goes. `answer`: tokens that answers have on
    average; `repair`: share of stored tokens that its fusion method computes anew."""
    documents = [document for document in request.documents if document.ids]
    names = ChunkNames(request.system, request.prefix_mode, request.tenant, request.lora)
    return Work(
        names=[names.of(document) for document in documents],
        documents=[len(document.ids) for document in documents],
        question=len(request.question),
        answer=min(answer, request.sampling.max_tokens),
        repair=repair,
        system=len(request.system),
        beginnings=prompt_beginnings(request),
    )


class Choice(NamedTuple):
    """A chosen worker, and the seconds that it is expected to be busy with the prompt."""

    number: int
    prefill_s: float


class Router:
    """Chooses among the workers of one pool. `slower_tiers`: whether what one worker computes is
    stored where others can read it; `prefix_cache`: whether workers keep the KV of answered
    prompts."""

    def __init__(
        self,
        policy: Policy,
        table: WorkerTable,
        directory: Directory,
        prefixes: PrefixMap,
        *,
        slower_tiers: bool,
        prefix_cache: bool,
    ) -> None:
        self._policy = policy
        self._table = table
        self._directory = directory
        self._prefixes = prefixes
        self._slower_tiers = slower_tiers
        self._prefix_cache = prefix_cache
        self._chosen = 0

    def choose(self, work: Work, candidates: Sequence[int]) -> Choice:
        """Choose the best of the candidates: numbers of workers, at least one."""
        numbers = np.array(candidates, np.int64)
        found = self.costs(work, candidates)
        match self._policy:
            case "round_robin":
                keys = [np.arange(len(numbers)) != self._chosen % len(numbers)]
            case "least_load":
                keys = [found.backlog_s[numbers]]
            case "longest_prefix":
                longest = self._prefixes.longest(work.beginnings)
                prefix = [longest.get(number, 0) for number in candidates]
                keys = [-np.array(prefix, np.float64), found.backlog_s[numbers]]
            case "cost":
                keys = [np.round(found.total_s[numbers], EQUAL_DIGITS)]
        keys += [self._table.in_flight[numbers], self._table.chosen[numbers]]
        best = int(numbers[np.lexsort(keys[::-1])[0]])
        return Choice(best, float(found.prefill_s[best]))

    def costs(self, work: Work, candidates: Sequence[int]) -> Costs:
        """Return what a prompt takes at each worker, if it goes to a candidate."""
        held = np.zeros((len(work.names), len(self._table)), np.bool_)
        for document, name in enumerate(work.names):
            held[document, list(self._directory.holders(name))] = True
        reused = np.zeros(len(self._table))
        if self._prefix_cache:
            for number, tokens in self._prefixes.longest(work.beginnings).items():
                reused[number] = max(0, tokens - work.system)
        return costs(
            work,
            self._table,
            held=held,
            places=[self._place(name) for name in work.names],
            away=self._not_home(work.names, held, np.array(candidates, np.int64)),
            reused=reused,
        )

    def sent(self, work: Work, number: int) -> None:
        """Note that a prompt is sent to a worker."""
        self._chosen += 1
        self._table.sent(number)
        self._directory.expect(number, work.names)
        self._prefixes.note(work.beginnings, number)

    def place(self, name: bytes, backlogs: Mapping[int, float]) -> int:
        """Return the worker to compute a chunk ahead of requests: who holds it, else its home."""
        holders = self._directory.holders(name) & backlogs.keys()
        return min(holders) if holders else self._home(name, backlogs)

    def _not_home(
        self, names: Sequence[bytes], held: npt.NDArray[np.bool_], numbers: Counts
    ) -> npt.NDArray[np.bool_]:
        """Return which workers are not the home of documents that no candidate holds."""
        away = np.zeros_like(held)
        cold = np.flatnonzero(~held[:, numbers].any(axis=1))
        if len(cold):
            unheld = [names[document] for document in cold.tolist()]
            hashed = numbers[homes(unheld, numbers, self._table.backlog_s[numbers])]
            away[cold] = True
            away[cold, hashed] = False
        for document in cold.tolist():
            expected = self._directory.expected_at(names[document])
            if expected is not None and expected in numbers:
                away[document] = True
                away[document, expected] = False
        return away

    def _home(self, name: bytes, backlogs: Mapping[int, float]) -> int:
        expected = self._directory.expected_at(name)
        if expected is not None and expected in backlogs:
            return expected
        return home(name, backlogs)

    def _place(self, name: bytes) -> Place:
        """Return where workers find a chunk that they do not hold in memory."""
        return "slow" if self._slower_tiers and self._directory.is_stored(name) else "nowhere"
