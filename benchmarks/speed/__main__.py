"""Every line of the speed table, in one run.

    python -m benchmarks.speed [--only NAME …] [--threads 1 2] [--resume] [--quick]

Figures and samples of a line are written when it is done, the table at the end. With
--resume, lines that this commit has measured at this size are skipped. With --quick everything runs
at a tiny shape, which only shows that it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "results" / "speed"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a line could not be measured. A missed target is no failure."""
    from benchmarks.speed.lines import ORDER

    given = _parser(ORDER).parse_args(argv)
    if given.quick and given.out == RESULTS:
        given.out = RESULTS / "quick"
    from benchmarks.speed import records, report
    from benchmarks.speed.setup import REAL, TINY, Setup

    lines = [name for name in ORDER if not given.only or name in given.only]
    failed = []
    for threads in given.threads:
        setup = Setup(TINY if given.quick else REAL, threads, given.repetitions, given.seed)
        for line in lines:
            kept = records.read(given.out, line, threads) if given.resume else None
            if kept is not None and records.same_run(kept, records.head_of(line, setup)):
                print(f"{line}, {threads} thread(s): measured already\n{report.text(kept)}")
                continue
            setup.begin()
            started = time.perf_counter()
            try:
                outcome = import_module(f"benchmarks.speed.lines.{line}").run(setup)
            except Exception:
                failed.append(f"{line}, {threads} thread(s)")
                print(f"{failed[-1]} failed:\n{traceback.format_exc()}", file=sys.stderr)
                continue
            record = records.of(line, setup, outcome, time.perf_counter() - started)
            records.save(given.out, record)
            print(f"{line}, {threads} thread(s), {record['took_s']} s\n{report.text(record)}")
            sys.stdout.flush()
    every = range(1, (os.cpu_count() or 1) + 1)
    found = records.read_all(given.out, ORDER, every)
    report.write(given.out / "speed.md", found)
    print(f"written to {given.out}")
    if failed:
        print("could not be measured: " + "; ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _parser(lines: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=lines, metavar="NAME", help=", ".join(lines))
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tiny shape")
    parser.add_argument("--resume", action="store_true", help="skip what is measured already")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
