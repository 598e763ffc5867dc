"""Chooses the worker of a request, by one of four policies. It sends nothing.

`cost` is the one to use; the others are what other servers do, for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from service.gateway.fleet.routing.cost import Cost, Place, Work, cost
from service.gateway.fleet.routing.directory import Directory
from service.gateway.fleet.routing.prefixes import PrefixMap, prefix_blocks
from service.gateway.fleet.routing.prices import prices
from service.gateway.fleet.routing.rendezvous import home, homes
from service.gateway.fleet.routing.worker_table import Counts, Floats, WorkerTable
from service.messages.requests import ChunkNames, Generate

Policy = Literal["cost", "round_robin", "least_load", "longest_prefix"]
# Costs that differ by less count as equal; then the worker is taken that was chosen less often.
EQUAL_DIGITS = 4


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
        names = ChunkNames(request.system, request.prefix_mode, request.tenant, request.lora)
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
        table: what is known of them.
        slower_tiers: whether what one worker computes is stored where others can read it.
        kept_prompts: whether workers keep answered prompts.
    """

    def __init__(
        self,
        policy: Policy,
        table: WorkerTable,
        directory: Directory,
        prefixes: PrefixMap,
        *,
        slower_tiers: bool,
        kept_prompts: bool,
    ) -> None:
        self._policy = policy
        self._table = table
        self._directory = directory
        self._prefixes = prefixes
        self._slower_tiers = slower_tiers
        self._kept_prompts = kept_prompts
        self._chosen = 0

    def choose(self, prompt: RoutedPrompt, candidates: Sequence[int]) -> Choice:
        """The best of the candidates, which are numbers of workers; there is at least one."""
        numbers = np.array(candidates, np.int64)
        longest = self._prefixes.longest(prompt.blocks)
        match self._policy:
            case "round_robin":
                keys = [np.arange(len(numbers)) != self._chosen % len(numbers)]
            case "least_load":
                keys = [self._table.backlog_s[numbers]]
            case "longest_prefix":
                prefix = [longest.get(number, 0) for number in candidates]
                keys = [-np.array(prefix, np.float64), self._table.backlog_s[numbers]]
            case "cost":
                keys = [np.round(self.prices(prompt, candidates)[numbers], EQUAL_DIGITS)]
        keys += [self._table.in_flight[numbers], self._table.chosen[numbers]]
        best = int(numbers[np.lexsort(keys[::-1])[0]])
        return Choice(best, self._cost(prompt, best, longest.get(best, 0)))

    def prices(self, prompt: RoutedPrompt, candidates: Sequence[int]) -> Floats:
        """Seconds that a prompt takes at each worker `[workers]`, if it goes to a candidate."""
        held = np.zeros((len(prompt.names), len(self._table)), np.bool_)
        for document, name in enumerate(prompt.names):
            held[document, list(self._directory.holders(name))] = True
        reused = np.zeros(len(self._table))
        if self._kept_prompts:
            for number, tokens in self._prefixes.longest(prompt.blocks).items():
                reused[number] = max(0, tokens - prompt.system)
        return prices(
            prompt.work,
            self._table,
            held=held,
            places=[self._place(name) for name in prompt.names],
            away=self._away(prompt.names, held, np.array(candidates, np.int64)),
            reused=reused,
        )

    def sent(self, prompt: RoutedPrompt, number: int) -> None:
        """A prompt is sent to a worker."""
        self._chosen += 1
        self._table.sent(number)
        self._directory.expect(number, prompt.names)
        self._prefixes.note(prompt.blocks, number)

    def place(self, name: bytes, backlogs: Mapping[int, float]) -> int:
        """The worker that computes a chunk ahead of any request: who holds it, else its home.

        Args:
            backlogs: seconds of such work that each worker has.
        """
        holders = self._directory.holders(name) & backlogs.keys()
        return min(holders) if holders else self._home(name, backlogs)

    def _cost(self, prompt: RoutedPrompt, number: int, longest: int) -> Cost:
        """What a prompt takes at one worker, wherever else its documents have a home."""
        places: list[Place] = [
            "memory" if self._directory.holds(number, name) else self._place(name)
            for name in prompt.names
        ]
        return cost(
            prompt.work,
            self._table.loads[number],
            places,
            backlog_s=float(self._table.backlog_s[number]),
            in_flight=int(self._table.in_flight[number]),
            reused=max(0, longest - prompt.system) if self._kept_prompts else 0,
        )

    def _away(
        self, names: Sequence[bytes], held: npt.NDArray[np.bool_], numbers: Counts
    ) -> npt.NDArray[np.bool_]:
        """Of documents that no candidate holds: the workers that are not their home."""
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
        """Where workers find a chunk that they do not hold in memory."""
        return "slow" if self._slower_tiers and self._directory.is_stored(name) else "nowhere"
