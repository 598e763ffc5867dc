"""Recorded answers, and batches of what is still to be measured.

Results of a model are in JSONL files, one for each process that wrote some. A run continues where
another stopped, also with more samples or configurations. Recorded answers are used even if the
code has changed since: start with fresh files then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from benchmarks.quality.bench import Bench, Result, Timing
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.sample import Sample
from tuning.records import R, RecordFile

TOGETHER = 24
"""About how many requests are in the engine at once; they are decoded in one batch."""

Batch = list[tuple[Sample, list[Configuration]]]


class Shards(Generic[R]):
    """Records of one kind for one model, in the files `<name>.<number>.jsonl`."""

    def __init__(self, folder: Path, name: str, kind: type[R]) -> None:
        self._folder, self._name, self._kind = folder, name, kind
        self._files: list[RecordFile[R]] = []
        self.load()

    def load(self) -> None:
        """Reads the records of all processes."""
        paths = sorted(self._folder.glob(f"{self._name}.*.jsonl"))
        self._files = [RecordFile(path, self._kind) for path in paths]
        for file in self._files:
            file.load()

    def discard(self) -> None:
        for file in self._files:
            file.discard()
        self._files = []

    def file(self, number: int) -> RecordFile[R]:
        """The file that the process with this number appends to."""
        return RecordFile(self._folder / f"{self._name}.{number}.jsonl", self._kind)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return any(key in file for file in self._files)

    def __getitem__(self, key: tuple[str, str]) -> R:
        """The record of a sample key and a configuration key.

        Raises:
            KeyError: there is none.
        """
        for file in self._files:
            if key in file:
                return file[key]
        raise KeyError(key)


@dataclass(frozen=True)
class Run:
    """The samples that every configuration of an experiment has answered, with the answers.

    Attributes:
        samples: the samples.
        results: answers by (sample key, configuration key).
        timings: times by the same keys, for some of the samples.
    """

    samples: Sequence[Sample]
    results: Mapping[tuple[str, str], Result]
    timings: Mapping[tuple[str, str], Timing]

    def of(self, configuration: Configuration) -> list[Result]:
        """The answers of a configuration, in the order of the samples."""
        return [self.results[s.key, configuration.key] for s in self.samples]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(s.task for s in self.samples))


def missing(
    samples: Sequence[Sample], configurations: Sequence[Configuration], results: Shards[Result]
) -> Iterator[Batch]:
    """Batches of a few samples with the configurations that are not recorded for them."""
    batch: Batch = []
    for sample in samples:
        wanted = [c for c in configurations if (sample.key, c.key) not in results]
        if batch and sum(len(w) for _, w in batch) + len(wanted) > TOGETHER:
            yield batch
            batch = []
        if wanted:
            batch.append((sample, wanted))
    if batch:
        yield batch


def parts(batch: Batch) -> Iterator[Batch]:
    """Splits a batch of one sample with many configurations; returns other batches as they are."""
    if len(batch) > 1:
        yield batch
        return
    [(sample, wanted)] = batch
    for start in range(0, len(wanted), TOGETHER):
        yield [(sample, wanted[start : start + TOGETHER])]


def time_all(
    bench: Bench,
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    timings: Shards[Timing],
) -> None:
    """Times each sample under all its configurations, one right after the other.

    A ratio thus never compares two distant moments of a noisy machine. On Ctrl-C it stops and keeps
    what is recorded.
    """
    wanted = [s for s in samples if any((s.key, c.key) not in timings for c in configurations)]
    progress = Progress("timed samples", len(wanted))
    file = timings.file(0)
    try:
        for number, sample in enumerate(wanted):
            if number == 0:
                bench.time(sample, configurations)  # the first one warms up
            file.add(bench.time(sample, configurations))
            progress.add(1)
    except KeyboardInterrupt:
        print("\ninterrupted: the report is on what was timed so far", file=sys.stderr)
    progress.close()
    timings.load()


def complete(
    samples: Sequence[Sample],
    configurations: Sequence[Configuration],
    results: Shards[Result],
    timings: Shards[Timing],
) -> Run:
    """The samples that every configuration has been measured on."""
    keys = [c.key for c in configurations]
    whole = [s for s in samples if all((s.key, k) in results for k in keys)]
    timed = [s for s in whole if all((s.key, k) in timings for k in keys)]
    return Run(
        whole,
        {(s.key, k): results[s.key, k] for s in whole for k in keys},
        {(s.key, k): timings[s.key, k] for s in timed for k in keys},
    )


class Progress:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self.done, self._started = 0, time.perf_counter()

    def add(self, count: int) -> None:
        self.done += count
        spent = time.perf_counter() - self._started
        left = spent / self.done * (self._total - self.done) / 60
        print(
            f"\r{self.done}/{self._total} {self._what}, {left:.1f} min left ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        if self._total:
            print(file=sys.stderr)
