"""Seconds of decoding with drafts relative to without, on real text with a real model.

    python -m benchmarks.costs.drafts --model FOLDER

Questions of Natural Questions over eight passages each, every other one asked for an explanation
instead of a short answer; greedy answers. Both ways take turns, prompt by prompt, and must give the
same answers.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.engine import open_engine
from benchmarks.peers.prompts import Encoder
from benchmarks.peers.workloads import sources
from benchmarks.quality.tasks import natural_questions
from kvstore import MemoryTier, TieredStore
from service.messages.replies import Done, Failed, TokenItem
from service.messages.reports import Report
from service.messages.requests import Generate, Method, Sampling
from service.prompt import Turn
from service.worker.api import Engine, load_model
from tuning.environment import describe

OUT = Path("benchmarks/results/speed/drafts.json")
DOCUMENTS = 8
WAYS = {"without": 0, "with": 7}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.drafts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    records = run(args)
    ratios = [r["with"]["decode_s"] / r["without"]["decode_s"] for r in records]
    steps = sum(r["with"]["steps"] for r in records) / sum(r["without"]["steps"] for r in records)
    low, middle, high = statistics.quantiles(ratios, n=4)
    result = {
        "environment": describe(),
        "model": args.model.name,
        "seed": args.seed,
        "threads": args.threads,
        "decode seconds with drafts over without": {"median": middle, "quartiles": [low, high]},
        "decode steps with drafts over without": steps,
        "same answers": sum(r["with"]["tokens"] == r["without"]["tokens"] for r in records),
        "prompts": records,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in result.items() if name not in ("prompts", "environment")})
    return 0 if result["same answers"] == len(records) else 1


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """For each prompt and way: the answer, its steps and its seconds of decoding."""
    encoder, rng = Encoder(args.model), random.Random(args.seed)
    found = sources(natural_questions.load("test"))
    decoder = load_model(str(args.model), dtype="bfloat16", device="cpu")
    records = []
    with ExitStack() as stack:
        engines = {}
        for way, draft_tokens in WAYS.items():
            store = stack.enter_context(TieredStore([MemoryTier(1 << 26)]))
            engines[way] = stack.enter_context(
                open_engine(decoder, store, pool_tokens=8192, draft_tokens=draft_tokens)
            )
        for number in range(args.prompts):
            chosen = rng.sample(found, DOCUMENTS)
            question = chosen[0].question
            if number % 2:
                question = f"Explain in a few sentences: {question}"
            ids = encoder.ids([Turn("user", question)], [each.document for each in chosen])
            record: dict[str, Any] = {}
            for way in WAYS if number % 4 < 2 else reversed(WAYS):
                request = Generate(
                    str(number), [], [], list(ids), Method("vanilla"),
                    sampling=Sampling(max_tokens=args.max_tokens),
                )  # fmt: skip
                tokens, report = answered(engines[way], request)
                record[way] = {
                    "tokens": tokens,
                    "steps": report.decode_steps,
                    "decode_s": report.stages["decode"],
                }
            if record["without"]["steps"]:
                records.append(record)
    return records


def answered(engine: Engine, request: Generate) -> tuple[list[int], Report]:
    """Tokens and report of one request alone.

    Raises:
        RuntimeError: it failed.
    """
    engine.submit(request)
    tokens: list[int] = []
    while True:
        for event in engine.step():
            match event:
                case TokenItem(_, token, _):
                    tokens.append(token)
                case Done(_, _, report):
                    return tokens, report
                case Failed():
                    raise RuntimeError(event.message)


if __name__ == "__main__":
    sys.exit(main())
