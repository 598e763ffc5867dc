"""Measures what is not recorded yet, prompt by prompt, with a line of progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.fidelity.configuration import Configuration
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.prompts import Prompt
from benchmarks.fidelity.records import Record, Records


def measure_all(
    measurer: Measurer,
    prompts: Sequence[Prompt],
    configurations: Sequence[Configuration],
    records: Records,
) -> int:
    """Records made now; the others were there. Interrupted (Ctrl-C) it stops after what is
    recorded; `complete` then says which prompts to report on."""
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
    prompts: Sequence[Prompt], configurations: Sequence[Configuration], records: Records
) -> list[Prompt]:
    """Prompts that every configuration was measured on."""
    return [p for p in prompts if all((p.key, c.key) in records for c in configurations)]


def found(
    prompts: Sequence[Prompt], configuration: Configuration, records: Records
) -> list[Record]:
    return [records[prompt.key, configuration.key] for prompt in prompts]
