"""TTFT over full prefill's by the length of the prompt, with a real model.

    python -m benchmarks.speed.lengths --model FOLDER --tokens 277 1364 [--threads 2]

Documents of about 170 tokens lie in the memory tier; the ids are random, which changes no time.
Prints a row a length: medians of the paired ratios, and of full prefill's seconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import count

import torch

from benchmarks.common.markdown import table
from benchmarks.speed.engines import FULL, METHODS, PIE, SCOUT, Prompt, answer, place, precompute
from benchmarks.speed.paired import run_paired
from kvstitch.kvstore import MemoryTier
from kvstitch.service.worker.api import DecoderModel, load_model
from kvstitch_tune.records import describe

DOCUMENT_TOKENS = 170
WAYS = (FULL, SCOUT, PIE)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.lengths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quantize", choices=("off", "int8", "int4"), default="off")
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    decoder = load_model(args.model, device="cpu", quantize=args.quantize)
    head = ["tokens", "full prefill, s", f"{SCOUT} over it", "processor time", "pie", "processor"]
    rows = [_row(decoder, tokens, args.repetitions) for tokens in args.tokens]
    print(f"{args.model}, {decoder.dtype}, {args.threads} threads, {describe()['cpu']}")
    print(table(head, rows))


def _row(decoder: DecoderModel, tokens: int, repetitions: int) -> list[str]:
    prompt = Prompt(decoder, tokens, max(2, round(tokens / DOCUMENT_TOKENS)), seed=0)
    number = count()
    with place(decoder, MemoryTier(4 << 30), len(prompt.ids)) as engine:
        precompute(engine, prompt)

        def ask(name: str) -> None:
            answer(engine, prompt.request(str(next(number)), METHODS[name]))

        paired = run_paired({name: partial(ask, name) for name in WAYS}, repetitions)
    cells = [str(len(prompt.ids)), f"{paired.taken[FULL].median:.2f}"]
    for way in (SCOUT, PIE):
        for clock in ("wall", "cpu"):
            cells.append(f"{statistics.median(paired.ratios(way, FULL, clock=clock)):.3f}")
    return cells


if __name__ == "__main__":
    main()
