"""The training data of each step, drawn in this process or ahead of time by worker processes.

The data of a step depend only on the plan, the step's number and the `Mix` of the last refresh. It
makes no difference which process draws them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import torch

from demo.language.tasks import TASKS
from demo.language.vocabulary import build_tokenizer
from demo.training.longer import long_parts
from demo.training.plan import Plan
from demo.training.rows import Packer, Part, Row
from demo.training.samples import Batch, collate, padded_length

SHARES = {
    "single": 0.07,
    "border": 0.05,
    "pronoun": 0.06,
    "update": 0.1,
    "list": 0.13,
    "hop": 0.16,
    "chain": 0.12,
    "niah": 0.06,
    "niah_prose": 0.04,
    "niah_multivalue": 0.06,
    "niah_multiquery": 0.05,
    "vt": 0.12,
    "cwe": 0.01,
    "fwe": 0.01,
}
"""Relative frequency of each task, before it is reduced for what the model already knows."""
LEAST = 0.3
"""A task's frequency falls to this share of `SHARES` as the model learns it, and no further."""
QUESTIONS = 12
"""At most so many questions per story."""
LONG_QUESTIONS = 96
"""At most so many questions per row of several stories."""
COPY_SHARE, COPY_TOKENS = 0.1, 160
"""Rows that repeat random tokens: their share of a step's tokens, and tokens of one such row."""
AHEAD = 2
"""Steps that each worker process draws ahead."""


@dataclass(frozen=True)
class Mix:
    """What the data of a step depend on, besides plan and number.

    Attributes:
        known: Exact match by task.
        progress: Share of the run that is done.
    """

    known: dict[str, float]
    progress: float


def draw_rows(plan: Plan, packer: Packer, mix: Mix, step: int) -> list[Row]:
    """Draws the rows of a step, shortest first."""
    rng = random.Random(f"{plan.seed}/{step}")
    shares = [SHARES[task] * max(LEAST, 1 - mix.known[task]) for task in TASKS]

    def part() -> Part:
        task = rng.choices(list(TASKS), shares)[0]
        story = TASKS[task].write(rng, False, plan.entities(rng, mix.progress))
        return Part(task, story, rng.sample(story.asked, min(QUESTIONS, len(story.asked))))

    rows: list[Row] = []
    if mix.progress < plan.guided_share:
        copies = round(COPY_SHARE * plan.batch_tokens / COPY_TOKENS)
        rows += [packer.copy_row(rng, COPY_TOKENS) for _ in range(copies)]
    total = sum(len(row.ids) for row in rows)
    while total < plan.batch_tokens:
        parts = long_parts(part, packer.tokens, plan.context_tokens(rng, mix.progress))
        each = max(1, LONG_QUESTIONS // len(parts))
        rng.shuffle(parts)
        rows.append(packer.row(rng, [Part(p.task, p.story, p.asked[:each]) for p in parts]))
        total += len(rows[-1].ids)
    return sorted(rows, key=lambda row: len(row.ids))


def passes(rows: list[Row], pass_tokens: int) -> list[Batch]:
    """Groups rows, in order, into batches of at most `pass_tokens` tokens with padding.

    A row that is longer than that has a batch of its own.
    """
    groups: list[list[Row]] = [[]]
    for row in rows:
        if groups[-1] and (len(groups[-1]) + 1) * padded_length(len(row.ids)) > pass_tokens:
            groups.append([])
        groups[-1].append(row)
    return [collate(group) for group in groups]


class Feed:
    """Makes the batches of one step after another; a context manager, which ends the workers."""

    def __init__(self, plan: Plan, workers: int = 0) -> None:
        self._plan = plan
        self._workers = workers
        self._packer = Packer(build_tokenizer())
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Feed:
        if self._workers:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, context, _start, (self._plan,))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def batches(self, mix: Mix, steps: range) -> Iterator[list[Batch]]:
        """Yields the batches of each step in turn."""
        if self._pool is None:
            for step in steps:
                rows = draw_rows(self._plan, self._packer, mix, step)
                yield passes(rows, self._plan.pass_tokens)
            return
        waiting: deque[Future[bytes]] = deque()
        ahead = AHEAD * self._workers
        for step in steps:
            while (last := step + len(waiting)) < steps.stop and len(waiting) < ahead:
                waiting.append(self._pool.submit(_draw, mix, last))
            yield pickle.loads(waiting.popleft().result())


_worker: list[tuple[Plan, Packer]] = []
"""In a worker process: its one plan and packer, set when it starts."""


def _start(plan: Plan) -> None:
    torch.set_num_threads(1)
    _worker.append((plan, Packer(build_tokenizer())))


def _draw(mix: Mix, step: int) -> bytes:
    """Pickles here, because tensors that the pool itself pickles would need shared memory."""
    plan, packer = _worker[0]
    return pickle.dumps(passes(draw_rows(plan, packer, mix, step), plan.pass_tokens))
