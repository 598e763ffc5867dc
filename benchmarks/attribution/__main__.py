"""How often the passage that a sentence is attributed to is the one that answers.

    python -m benchmarks.attribution --model FOLDER --split test --out FILE.json

The served model answers questions over passages of which one is known to answer. Counted are the
sentences that hold an accepted answer: there the passage that they are from is known. A method
attributes such a sentence to the passage that it scores highest, the first of equals.

For words, whose score says whether a sentence is supported at all, two shares follow: of these
sentences, and of the same sentences where the passages that answer are taken away. Parameters are
chosen on the development split. Answers are greedy; `--answers` keeps them for another run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from benchmarks.attribution.asking import (
    SEED,
    Case,
    Split,
    Suite,
    append,
    demo_cases,
    holds,
    nq_cases,
    read,
    served,
)
from benchmarks.attribution.methods import Method, methods
from benchmarks.common.provenance import provenance
from retriever import LocalEmbedder
from service.gateway.api import attribute, sentences
from tuning.environment import describe
from tuning.statistics import Bootstrap

SUITES: tuple[Suite, ...] = get_args(Suite)


@dataclass(frozen=True)
class Sample:
    """One sentence under one method; milliseconds are those of the method."""

    suite: Suite
    method: str
    question: str
    gold: bool
    passages: int
    ms: float


def answering_sentence(case: Case) -> range | None:
    """The first sentence of the answer that holds an accepted answer."""
    for span in sentences(case.text):
        if holds(case.text[span.start : span.stop], case.answers):
            return span
    return None


def answers(args: argparse.Namespace) -> list[Case]:
    if args.answers is not None and args.answers.exists():
        return read(args.answers)
    cases = []
    with served(args.model) as http:
        for case in chain(
            demo_cases(http, args.split, args.samples), nq_cases(http, args.split, args.samples)
        ):
            cases.append(case)
            if args.answers is not None:
                append(args.answers, case)
    return cases


def samples(cases: Sequence[Case], ways: dict[str, Method]) -> list[Sample]:
    out = []
    for case in cases:
        span = answering_sentence(case)
        if span is None or all(passage.gold for passage in case.passages):
            continue
        for name, method in ways.items():
            started = time.perf_counter()
            scores = method(case, span)
            ms = 1e3 * (time.perf_counter() - started)
            best = max(range(len(scores)), key=lambda number: scores[number])
            gold = case.passages[best].gold
            out.append(Sample(case.suite, name, case.question, gold, len(scores), ms))
    return out


def supported(cases: Sequence[Case], begun: str, *, without_gold: bool) -> list[float]:
    """1 for each answering sentence that is attributed to some passage, 0 for the others."""
    out = []
    for case in cases:
        span = answering_sentence(case)
        kept = [p for p in case.passages if not (without_gold and p.gold)]
        if span is None or not kept or all(passage.gold for passage in case.passages):
            continue
        pairs = [(passage.title, passage.text) for passage in kept]
        found = attribute(case.text, pairs, case.question, begun=begun)
        out.append(float(any(s.span == span and s.citations for s in found.sentences)))
    return out


def figures(found: Sequence[Sample]) -> list[dict[str, Any]]:
    rows = []
    for suite in SUITES:
        for method in dict.fromkeys(sample.method for sample in found):
            of_both = [s for s in found if s.suite == suite and s.method == method]
            if of_both:
                rows.append(
                    {
                        "suite": suite,
                        "method": method,
                        "sentences": len(of_both),
                        "gold": asdict(
                            Bootstrap(len(of_both)).mean([float(s.gold) for s in of_both])
                        ),
                        "ms": statistics.median(s.ms for s in of_both),
                        "by_chance": statistics.mean(1 / s.passages for s in of_both),
                    }
                )
    return rows


def report(record: dict[str, Any]) -> str:
    lines = [
        f"# {record['what']}",
        "",
        f"{record['split']} split, {record['answers']} answers of {record['model']}, of which "
        f"{record['right']} hold an accepted answer. Share of these sentences that are attributed "
        "to the passage that answers [95 % bootstrap interval], and the method's median time.",
        "",
        "| questions | method | sentences | right passage | ms |",
        "|---|---|---|---|---|",
    ]
    for row in record["figures"]:
        gold = row["gold"]
        cell = f"{gold['mean']:.3f} [{gold['low']:.3f}, {gold['high']:.3f}]"
        lines.append(
            f"| {row['suite']} | {row['method']} | {row['sentences']} | {cell} | {row['ms']:.1f} |"
        )
    support = record["supported"]
    lines += [
        "",
        "By words, a sentence is attributed if a passage holds enough of it: "
        + "; ".join(
            f"{suite}: {support[suite]['with']:.3f} of these sentences, "
            f"{support[suite]['without']:.3f} where the passages that answer are taken away"
            for suite in support
        )
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attribution",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--split", choices=get_args(Split), default="dev")
    parser.add_argument("--samples", type=int, default=100, help="questions of each kind")
    parser.add_argument("--answers", type=Path, help="JSONL: read if it is there, else written")
    parser.add_argument("--out", type=Path, help="write the record as JSON, and beside it as .md")
    args = parser.parse_args()
    cases = answers(args)
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder):
        found = samples(cases, methods(args.model, embedder.embed))
    begun = "According to the documents,"
    of = {suite: [case for case in cases if case.suite == suite] for suite in SUITES}
    record = {
        "what": "Attribution of sentences to passages",
        "environment": describe(),
        "model": args.model.name,
        "split": args.split,
        "seed": SEED,
        "answers": len(cases),
        "right": sum(answering_sentence(case) is not None for case in cases),
        "figures": figures(found),
        "supported": {
            suite: {
                "with": statistics.mean(supported(of[suite], begun, without_gold=False)),
                "without": statistics.mean(supported(of[suite], begun, without_gold=True)),
            }
            for suite in SUITES
            if of[suite]
        },
        "texts": [
            {"suite": case.suite, "question": case.question, "text": case.text} for case in cases
        ],
        "samples": [asdict(sample) for sample in found],
    }
    print(report(record))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        args.out.with_suffix(".md").write_text(report(record) + provenance(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
