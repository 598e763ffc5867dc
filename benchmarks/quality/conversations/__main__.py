"""How close an answer stays to full prefill's where a conversation's passages change at each turn.

    python -m benchmarks.quality.conversations --model FOLDER --conversations 12 --out FILE.jsonl

Writes a line for each way and turn, and the means. A stopped run goes on with the same command.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.quality.conversations.drawn import DrawnTurn, draw
from benchmarks.quality.conversations.measure import Conversations, Way
from benchmarks.quality.real.behind import Neighbourhood
from benchmarks.quality.real.suites import SPLITS, Suites
from benchmarks.quality.tasks import natural_questions
from retriever import LocalEmbedder
from service.gateway.api import PromptBuilder
from service.prompt import Turn, document_ids
from service.settings import Settings
from service.worker.api import Pie, QuestionScout, load_model, set_threads
from tuning.prompts import Prompt


def ways(mode: str) -> list[Way]:
    """In the question; computed beside it, as the service does; and reused."""
    scout, pie = QuestionScout(), Pie()
    return [
        Way("question_scout, in the question", scout, mode),
        Way("question_scout, compute", scout, mode, reused=whole, anew=True),
        Way("question_scout, reuse", scout, mode, reused=whole),
        Way("pie, compute", pie, mode),
        Way("pie, reuse", pie, mode, reused=whole),
    ]


def whole(shared: int, asked: int) -> int:
    """All of the history that stood in the turn before."""
    return shared


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.conversations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--split", choices=SPLITS, default="dev")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="system", help="prefix mode: system or primer-g3/32")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    set_threads(args.threads)
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder):
        drawn = list(
            draw(
                natural_questions.load(args.split), embedder.embed,
                conversations=args.conversations, turns=args.turns, seed=args.seed,
            )
        )  # fmt: skip
        writer = Writer(args.model)
        neighbourhood = None
        if args.mode.startswith("primer"):
            suites = Suites(args.model, embedder.embed)
            pool = tuple(map(tuple, suites.passages(args.split)))
            neighbourhood = Neighbourhood(suites, embedder.embed, pool, args.seed)
        decoder = load_model(str(args.model), dtype=args.dtype, device="cpu")
        measured = Conversations(decoder, ways(args.mode), longest=3000)
        done = _done(args.out)
        for number, turns in enumerate(drawn):
            if number in done:
                continue

            def prompt_of(
                at: int, answers: Sequence[list[int]], turns: Sequence[DrawnTurn] = turns
            ) -> Prompt | None:
                if at == len(turns):
                    return None
                prompt = writer.prompt(turns[: at + 1], answers)
                return prompt if neighbourhood is None else neighbourhood.add(prompt, [args.mode])

            started, lines = time.perf_counter(), []
            for records in measured.run(number, prompt_of):
                lines += [json.dumps(asdict(record)) + "\n" for record in records]
            with args.out.open("a", encoding="utf-8") as out:
                out.writelines(lines)
            print(f"{number}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print(table([json.loads(line) for line in args.out.read_text().splitlines()]))
    return 0


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means over the turns after the first."""
    later = [record for record in records if record["turn"] > 1]
    columns = ("operations", "kl", "kl_first", "agreement", "same")
    lines = [f"| way | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for way in dict.fromkeys(record["way"] for record in later):
        own = [record for record in later if record["way"] == way]
        means = [f"{fmean(record[name] for record in own):.4f}" for name in columns]
        lines.append(f"| {way} | {' | '.join(means)} |")
    return "\n".join(lines)


class Writer:
    """Writes prompts as the service does."""

    def __init__(self, folder: Path) -> None:
        self._builder = PromptBuilder(folder, Settings.model_validate({}))

    def prompt(self, turns: Sequence[DrawnTurn], answers: Sequence[list[int]]) -> Prompt:
        """The prompt of the last of these turns, after the answers to the others."""
        builder = self._builder
        said: list[Turn] = []
        for turn, answer in zip(turns, [*answers, []], strict=True):
            said += [Turn("user", turn.question)]
            said += [Turn("assistant", builder.tokenizer.decode(answer))]
        documents = [
            tuple(document_ids(builder.format, builder.tokenizer, p.title, p.text))
            for p in turns[-1].passages
        ]
        question = tuple(builder.encode_question(said[:-1]))
        return Prompt("conversation", tuple(builder.system), tuple(documents), question)


def _done(path: Path) -> set[int]:
    if not path.exists():
        return set()
    return {json.loads(line)["conversation"] for line in path.read_text().splitlines()}


if __name__ == "__main__":
    sys.exit(main())
