"""The papers' tables and figures, on the demo model or any other.

    python -m benchmarks.quality.report --processes 2
    python -m benchmarks.quality.report --experiments fusion --samples 20 --seeds 1
    python -m benchmarks.quality.report --quick                # compares with the committed table
    python -m benchmarks.quality.report --quick --replace      # makes that table
    python -m benchmarks.quality.report --model FOLDER --suite ruler --length 4096

Writes <experiment>.json, <experiment>.md and pictures, and an index. Answers are recorded as they
are made; a stopped run continues with the same command. Recorded answers are used even if the code
has changed since: use --fresh then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.quality.report import arguments, check, fusion, index
from benchmarks.quality.report.making import Maker
from benchmarks.quality.report.plan import EXPERIMENTS, QUICK, SMOKED
from benchmarks.quality.report.subject import Subject
from benchmarks.quality.suites import SHORT_CONTEXT, SUITES
from service.errors import KvstitchError

OUT = Path("benchmarks/results/quality")
QUICK_FOLDER, AGAIN = "quick", "again"
OTHERS = ("sparse", "quick/quick")
"""Results of other commands that the index links to."""
QUICK_SAMPLES, QUICK_TASKS, QUICK_PROCESSES = 20, list[str](), 2
SMOKE_SAMPLES, SMOKE_TASKS = 2, ["single", "pronoun"]


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--experiments", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS)
    )
    parser.add_argument("--suite", default="multidoc", choices=list(SUITES))
    parser.add_argument("--timed", type=int, default=40, help="samples to time (fusion)")
    parser.add_argument("--cell", type=int, default=4, help="samples of a needle cell and seed")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--fresh", action="store_true", help="discard this model's records")
    parser.add_argument("--quick", action="store_true", help="a small table in some minutes")
    parser.add_argument("--smoke", action="store_true", help="a few samples, in seconds")
    parser.add_argument("--check", type=Path, help="a quick.json to compare with")
    parser.add_argument(
        "--replace", action="store_true", help="make the quick table to compare with"
    )
    arguments.add_model(parser)
    arguments.add_samples(parser, samples=100)
    args = parser.parse_args(given)
    if (args.check or args.replace) and not args.quick:
        parser.error("--check and --replace go with --quick")
    if args.quick or args.smoke:
        args.seeds, args.suite = [1], "multidoc"
        args.samples, args.tasks = SMOKE_SAMPLES, SMOKE_TASKS
    if args.quick:
        args.samples, args.tasks = QUICK_SAMPLES, QUICK_TASKS
        args.processes = max(QUICK_PROCESSES, args.processes)
    return args


def main(given: Sequence[str] | None = None) -> int:
    args = parse(given)
    try:
        subject = Subject(arguments.place(args))
        if args.quick or args.smoke:
            return _small(args, subject)
        return _whole(args, subject)
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _whole(args: argparse.Namespace, subject: Subject) -> int:
    chosen = {name: EXPERIMENTS[name] for name in args.experiments}
    plain = {name: e for name, e in chosen.items() if not e.needle}
    needles = {name: e for name, e in chosen.items() if e.needle}
    makers = []
    if plain:
        choice = arguments.choice(args, args.suite, subject)
        makers.append(Maker(subject, choice, args.out, plain))
    if needles:
        short = subject.decoder.max_context <= SHORT_CONTEXT
        choice = arguments.choice(args, "short_needle" if short else "needle", subject)
        choice = replace(choice, tasks=(), samples=args.cell)
        makers.append(Maker(subject, choice, args.out, needles))
    for maker in makers:
        maker.prepare()
    headline, paths = None, list[Path]()
    for number, maker in enumerate(makers):
        scores = maker.make(
            processes=args.processes, timed=args.timed, fresh=args.fresh and number == 0
        )
        paths += maker.written
        if "fusion" in scores:
            headline = fusion.headline(scores["fusion"])
    if not paths:
        print("no sample was measured under every configuration", file=sys.stderr)
        return 1
    paths.append(index.write(args.out, [*EXPERIMENTS, *OTHERS], headline))
    print("\n".join(map(str, paths)))
    return 0


def _small(args: argparse.Namespace, subject: Subject) -> int:
    """Makes the quick table and compares it with the committed one, if there is one."""
    folder = args.out / QUICK_FOLDER
    committed = args.check or folder / "quick.json"
    comparing = not args.smoke and not args.replace and (args.check or committed.exists())
    if args.smoke:
        folder, name, experiment = args.out, "smoke", SMOKED
    else:
        folder, name, experiment = folder / AGAIN if comparing else folder, "quick", QUICK
    maker = Maker(subject, arguments.choice(args, args.suite, subject), folder, {name: experiment})
    maker.prepare()
    if not maker.make(processes=args.processes, timed=0, fresh=args.fresh):
        print("no sample was measured under every configuration", file=sys.stderr)
        return 1
    print("\n".join(map(str, maker.written)))
    if not comparing:
        return 0
    checked = check.check(committed, folder / "quick.json")
    print(check.shown(checked))
    return 0 if all(c.within for c in checked) else 1


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    sys.exit(main())
