"""Compares any methods on a suite: every fusion × eviction × codec × prefix mode.

    python -m benchmarks.quality multidoc --fusion vanilla a3:ratio=0.15 question_scout:ratio=0.1
    python -m benchmarks.quality ruler --model FOLDER --fusion vanilla a3 --codec raw int8
    python -m benchmarks.quality multidoc --fusion vanilla --eviction none snapkv:budget=128

Prints a table in which every configuration is compared with the first one, and writes it with every
sample's score to the folder --out. Answers are recorded as they are made; a stopped run continues
with the same command. --fresh measures everything again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.quality.configuration import PREFIX_MODES, Configuration, parse_method
from benchmarks.quality.report import arguments
from benchmarks.quality.report.making import Maker
from benchmarks.quality.report.plan import Experiment
from benchmarks.quality.report.scored import Scores
from benchmarks.quality.report.subject import Subject
from benchmarks.quality.report.tables import (
    Compared,
    about,
    compare_all,
    difference_table,
    score_table,
)
from benchmarks.quality.suites import SUITES
from service.errors import KvstitchError

OUT = Path("benchmarks/results/quality/runs")
NO_EVICTION = "none"
LEGEND = """\
Beside the first: difference on the same samples [95 % interval]; p of the paired permutation test,
Holm-corrected over the table.
"""


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("--fusion", nargs="+", default=["vanilla"], metavar="METHOD:NAME=VALUE,…")
    parser.add_argument("--eviction", nargs="+", default=[NO_EVICTION])
    parser.add_argument("--codec", nargs="+", default=["raw"])
    parser.add_argument("--prefix-mode", nargs="+", choices=PREFIX_MODES, help="(default: model's)")
    parser.add_argument("--timed", type=int, default=0, help="samples to time")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--fresh", action="store_true", help="discard this model's records")
    arguments.add_model(parser)
    arguments.add_samples(parser, samples=20)
    return parser.parse_args(given)


def configurations(args: argparse.Namespace, prefix_mode: str) -> list[Configuration]:
    """All combinations of the arguments, named by what differs between them.

    Raises:
        InvalidRequest: an argument is not a method, a codec or a prefix mode.
    """
    modes = args.prefix_mode or [prefix_mode]
    made = []
    for fusion, eviction, codec, mode in product(args.fusion, args.eviction, args.codec, modes):
        parts = [fusion]
        parts += [eviction] if len(args.eviction) > 1 else []
        parts += [codec] if len(args.codec) > 1 else []
        parts += [f"prefix {mode}"] if len(modes) > 1 else []
        made.append(
            Configuration(
                " + ".join(parts),
                parse_method(fusion),
                None if eviction == NO_EVICTION else parse_method(eviction),
                codec=codec,
                prefix_mode=mode,
            )
        )
    return made


def beside_first(scores: Scores) -> list[Compared]:
    first, *others = scores.rows
    return compare_all(scores, [(s, first) for s in others])


def sections(scores: Scores) -> list[str]:
    parts = [about(scores), score_table(scores)]
    if compared := beside_first(scores):
        parts += [LEGEND, difference_table(compared)]
    return parts


def main(given: Sequence[str] | None = None) -> int:
    args = parse(given)
    try:
        subject = Subject(arguments.place(args))
        made = configurations(args, subject.encoder.prefix_mode)
        experiment = Experiment(
            "Methods compared", lambda _: made, sections, beside_first, timed=args.timed > 0
        )
        choice = arguments.choice(args, args.suite, subject)
        maker = Maker(subject, choice, args.out, {args.suite: experiment})
        maker.prepare()
        found = maker.make(processes=args.processes, timed=args.timed, fresh=args.fresh)
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if not found:
        print("no sample was measured under every configuration", file=sys.stderr)
        return 1
    print("\n".join([*sections(found[args.suite]), *map(str, maker.written)]))
    return 0


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    sys.exit(main())
