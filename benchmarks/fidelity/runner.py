"""Measures what is not recorded yet, prompt by prompt, and shows progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

from tuning.prompts import Prompt
from tuning.records import R, RecordFile


class Keyed(Protocol):
    """Something to measure, with a key of everything that its result depends on."""

    @property
    def key(self) -> str: ...


C = TypeVar("C", bound=Keyed)
C_contra = TypeVar("C_contra", bound=Keyed, contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Measures(Protocol[C_contra, R_co]):
    def measure(self, prompt: Prompt, configurations: Sequence[C_contra]) -> Sequence[R_co]: ...


def measure_all(
    measurer: Measures[C, R],
    prompts: Sequence[Prompt],
    configurations: Sequence[C],
    records: RecordFile[R],
) -> int:
    """Measures what is missing and records it; on Ctrl-C it stops and keeps what is recorded.

    Returns:
        Number of new records.
    """
    made, started, done = 0, time.perf_counter(), 0
    todo = [
        (prompt, missing)
        for prompt in prompts
        if (missing := [c for c in configurations if (prompt.key, c.key) not in records])
    ]
    try:
        for prompt, missing in todo:
            records.add(measurer.measure(prompt, missing))
            made, done = made + len(missing), done + 1
            each = (time.perf_counter() - started) / done
            left = each * (len(todo) - done) / 60
            print(
                f"\r{done}/{len(todo)} prompts, {made} records, {each:.1f} s a prompt, "
                f"{left:.1f} min left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    except KeyboardInterrupt:
        print("\ninterrupted: the report is on the prompts measured so far", file=sys.stderr)
    if todo:
        print(file=sys.stderr)
    return made


def complete(
    prompts: Sequence[Prompt], configurations: Sequence[Keyed], records: RecordFile[R]
) -> list[Prompt]:
    """The prompts that every configuration has been measured on."""
    return [p for p in prompts if all((p.key, c.key) in records for c in configurations)]


def found(prompts: Sequence[Prompt], configuration: Keyed, records: RecordFile[R]) -> list[R]:
    return [records[prompt.key, configuration.key] for prompt in prompts]
