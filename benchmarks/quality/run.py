"""Measures what is not recorded yet, a few samples at a time, with a line of progress.

Results lie in a JSONL file per model; a run goes on where another stopped, with more samples or
more configurations. Records do not notice that the code has changed: measure again with a fresh
file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.fidelity.records import RecordFile
from benchmarks.quality.bench import Bench, Result, Timing
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.sample import Sample

TOGETHER = 24
"""Requests in the engine at once, about: they decode in one batch."""


@dataclass(frozen=True)
class Run:
    """Samples that every configuration of an experiment answered, and what it said.

    `results` and `timings` by (sample key, configuration key). `timings` holds some of the samples
    only, all configurations of each one after the other.
    """

    samples: Sequence[Sample]
    results: Mapping[tuple[str, str], Result]
    timings: Mapping[tuple[str, str], Timing]

    def of(self, configuration: Configuration, task: str | None = None) -> list[Result]:
        """In the order of the samples, of one task or of all."""
        return [
            self.results[s.key, configuration.key]
            for s in self.samples
            if task is None or s.task == task
        ]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(s.task for s in self.samples))


def measure(
    bench: Bench,
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    results: RecordFile[Result],
) -> None:
    """Fill `results`. Interrupted (Ctrl-C) it stops after what is recorded."""
    todo = [
        (sample, missing)
        for sample in samples
        if (missing := [c for c in configurations if (sample.key, c.key) not in results])
    ]
    progress = _Progress("answers", sum(len(missing) for _, missing in todo))
    try:
        while todo:
            batch = [todo.pop(0)]
            while todo and sum(len(m) for _, m in batch) + len(todo[0][1]) <= TOGETHER:
                batch.append(todo.pop(0))
            made = bench.measure([s for s, _ in batch], [m for _, m in batch])
            results.add(made)
            progress.add(len(made))
    except KeyboardInterrupt:
        print("\ninterrupted: the report is on what was measured so far", file=sys.stderr)
    progress.close()


def time_all(
    bench: Bench,
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    timings: RecordFile[Timing],
) -> None:
    """Time each sample under all configurations, or not at all: ratios never compare two moments
    of a noisy machine."""
    wanted = [s for s in samples if any((s.key, c.key) not in timings for c in configurations)]
    progress = _Progress("timed samples", len(wanted))
    try:
        for number, sample in enumerate(wanted):
            if number == 0:
                bench.time(sample, configurations)  # warms up
            timings.add(bench.time(sample, configurations))
            progress.add(1)
    except KeyboardInterrupt:
        print("\ninterrupted: the report is on what was timed so far", file=sys.stderr)
    progress.close()


def complete(
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    results: RecordFile[Result],
    timings: RecordFile[Timing],
) -> Run:
    """The samples that every configuration was measured on."""
    keys = [c.key for c in configurations]
    whole = [s for s in samples if all((s.key, k) in results for k in keys)]
    timed = [s for s in whole if all((s.key, k) in timings for k in keys)]
    return Run(
        whole,
        {(s.key, k): results[s.key, k] for s in whole for k in keys},
        {(s.key, k): timings[s.key, k] for s in timed for k in keys},
    )


class _Progress:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._done, self._started = 0, time.perf_counter()

    def add(self, count: int) -> None:
        self._done += count
        spent = time.perf_counter() - self._started
        left = spent / self._done * (self._total - self._done) / 60
        print(
            f"\r{self._done}/{self._total} {self._what}, {left:.1f} min left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        if self._total:
            print(file=sys.stderr)
