"""Chooses the worker of a request, by one of four policies. It sends nothing.

`cost` is the one to use; the others are what other servers do, for comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.chunk_ids import ChunkIds
from service.gateway.fleet.cost import Cost, Place, Work, cost
from service.gateway.fleet.directory import Directory
from service.gateway.fleet.prefixes import PrefixMap, prefix_blocks
from service.gateway.fleet.rendezvous import home
from service.messages import Generate
from service.records import WorkerLoad

Policy = Literal["cost", "round_robin", "least_load", "longest_prefix"]
# Costs that differ by less count as equal; then the worker is taken that was chosen less often.
EQUAL_DIGITS = 4


@dataclass(frozen=True)
class Candidate:
    """A worker that could take a request.

    Attributes:
        load: what it reported last.
        backlog_s: seconds of work that it has.
        in_flight: requests that it has.
    """

    number: int
    load: WorkerLoad
    backlog_s: float
    in_flight: int


@dataclass(frozen=True)
class RoutedPrompt:
    """What of a request decides where it goes.

    Attributes:
        names: of its documents' chunks.
        system: tokens of S.
        blocks: of its beginnings.
    """

    work: Work
    names: Sequence[bytes]
    system: int = 0
    blocks: Sequence[bytes] = field(default=(), repr=False)

    @classmethod
    def of(cls, request: Generate, *, answer: float, repair: float) -> RoutedPrompt:
        """The prompt of a request.

        Args:
            answer: tokens that answers have on average.
            repair: share of stored tokens that its fusion method computes anew.
        """
        names = ChunkIds(request.system, request.prefix_mode, request.tenant, request.lora)
        documents = [document for document in request.documents if document.ids]
        return cls(
            Work(
                [len(document.ids) for document in documents],
                len(request.question),
                min(answer, request.sampling.max_tokens),
                repair,
            ),
            [names.of(document) for document in documents],
            len(request.system),
            prefix_blocks(request),
        )


@dataclass(frozen=True)
class Choice:
    """A chosen worker, and what the request is expected to take there."""

    number: int
    cost: Cost


class Router:
    """Chooses among the workers of one pool.

    Args:
        slower_tiers: whether what one worker computes is stored where others can read it.
        kept_prompts: whether workers keep answered prompts.
    """

    def __init__(
        self,
        policy: Policy,
        directory: Directory,
        prefixes: PrefixMap,
        *,
        slower_tiers: bool,
        kept_prompts: bool,
    ) -> None:
        self._policy = policy
        self._directory = directory
        self._prefixes = prefixes
        self._slower_tiers = slower_tiers
        self._kept_prompts = kept_prompts
        self._chosen: Counter[int] = Counter()

    def choose(self, prompt: RoutedPrompt, candidates: Sequence[Candidate]) -> Choice:
        """The best of the candidates, of which there is at least one."""
        longest = self._prefixes.longest(prompt.blocks)
        costs = self._costs(prompt, candidates, longest if self._kept_prompts else {})

        def load(candidate: Candidate) -> tuple[float, ...]:
            return candidate.backlog_s, candidate.in_flight, self._chosen[candidate.number]

        match self._policy:
            case "round_robin":
                best = candidates[self._chosen.total() % len(candidates)]
            case "least_load":
                best = min(candidates, key=load)
            case "longest_prefix":
                best = min(candidates, key=lambda c: (-longest.get(c.number, 0), *load(c)))
            case "cost":
                best = min(
                    candidates,
                    key=lambda c: (
                        round(costs[c.number].total_s, EQUAL_DIGITS),
                        c.in_flight,
                        self._chosen[c.number],
                    ),
                )
        return Choice(best.number, costs[best.number])

    def sent(self, prompt: RoutedPrompt, number: int) -> None:
        """A prompt is sent to a worker."""
        self._chosen[number] += 1
        self._directory.expect(number, prompt.names)
        self._prefixes.note(prompt.blocks, number)

    def place(self, name: bytes, backlogs: Mapping[int, float]) -> int:
        """The worker that computes a chunk ahead of any request: who holds it, else its home.

        Args:
            backlogs: seconds of such work that each worker has.
        """
        holders = self._directory.holders(name) & backlogs.keys()
        return min(holders) if holders else self._home(name, backlogs)

    def _costs(
        self, prompt: RoutedPrompt, candidates: Sequence[Candidate], reused: Mapping[int, int]
    ) -> dict[int, Cost]:
        backlogs = {c.number: c.backlog_s for c in candidates}
        holders = [self._directory.holders(name) & backlogs.keys() for name in prompt.names]
        homes = [
            None if held else self._home(name, backlogs)
            for name, held in zip(prompt.names, holders, strict=True)
        ]
        elsewhere: list[Place] = [self._place(name) for name in prompt.names]
        return {
            c.number: cost(
                prompt.work,
                c.load,
                [
                    "memory" if c.number in held else place
                    for held, place in zip(holders, elsewhere, strict=True)
                ],
                backlog_s=c.backlog_s,
                in_flight=c.in_flight,
                away=[at is not None and at != c.number for at in homes],
                reused=max(0, reused.get(c.number, 0) - prompt.system),
            )
            for c in candidates
        }

    def _home(self, name: bytes, backlogs: Mapping[int, float]) -> int:
        expected = self._directory.expected_at(name)
        if expected is not None and expected in backlogs:
            return expected
        return home(name, backlogs)

    def _place(self, name: bytes) -> Place:
        """Where workers find a chunk that they do not hold in memory."""
        return "slow" if self._slower_tiers and self._directory.is_stored(name) else "nowhere"
