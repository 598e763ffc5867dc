"""What methods save on short prompts of a small model, where fixed costs decide.

    python -m benchmarks.costs.short_prompts [--model FOLDER] [--tokens 240 688] [--rounds 60]

Prefills prompts of random tokens in chunks of 48, stored in memory, by one method after the other,
in turns, in one process and one thread. Ratios to full prefill of the same round, of the
processor's time: other programs on the machine then decide little. Writes short_prompts.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from kvstitch_tune.case import Case
from kvstitch_tune.environment import describe
from kvstitch_tune.prompts import Prompt, SegmentStore, part_store
from kvstitch_tune.single_prompts import kv_pool
from service.settings import demo_model
from service.worker.api import A3, DecoderModel, Pie, QuestionScout, Vanilla, load_model
from service.worker.methods.api import DenseMethod

OUT = Path("benchmarks/results/speed/short_prompts.json")
CHUNK = 48
QUESTION = 16
SYSTEM = 8
METHODS: dict[str, DenseMethod] = {
    "full prefill": Vanilla(),
    "question_scout": QuestionScout(),
    "a3": A3(),
    "pie": Pie(),
}
WARM_UP = 3


def prompt(tokens: int, vocabulary: int, source: random.Random) -> Prompt:
    """A prompt of so many random tokens, in chunks of `CHUNK`; the last one may be shorter."""

    def ids(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(vocabulary) for _ in range(count))

    left = tokens - SYSTEM - QUESTION
    sizes = [CHUNK] * (left // CHUNK) + ([left % CHUNK] if left % CHUNK else [])
    return Prompt("random", ids(SYSTEM), tuple(map(ids, sizes)), ids(QUESTION))


def round_of(decoder: DecoderModel, asked: Prompt, store: SegmentStore) -> Iterator[float]:
    """Yield the processor's seconds of one prefill by each method, in their order."""
    for method in METHODS.values():
        kv = kv_pool(decoder, asked.tokens + 1).reserve(asked.tokens + 1)
        assert kv is not None
        mode = "none" if isinstance(method, Vanilla) else "system"
        case = Case.of(
            decoder, asked, store, kv, prefix_mode=mode, codec="raw",
            attention_scores=torch.empty(0),
        )  # fmt: skip
        started = time.process_time()
        case.prefill(method)
        yield time.process_time() - started
        kv.release()


@torch.inference_mode()
def measured(decoder: DecoderModel, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each method, and its ratios to full prefill: median and quartiles."""
    asked = prompt(tokens, decoder.vocabulary, random.Random(tokens))
    store = SegmentStore(decoder, part_store())
    taken = [list(round_of(decoder, asked, store)) for _ in range(WARM_UP + rounds)][WARM_UP:]
    made = {}
    for place, name in enumerate(METHODS):
        ratios = [row[place] / row[0] for row in taken]
        low, middle, high = statistics.quantiles(ratios, n=4)
        made[name] = {
            "ms": round(statistics.median(row[place] for row in taken) * 1e3, 2),
            "ratio": round(middle, 3),
            "low": round(low, 3),
            "high": round(high, 3),
        }
    return made


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder (default: the demo model)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[240, 688])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    decoder = load_model(str(args.model or demo_model()))
    found = {str(tokens): measured(decoder, tokens, args.rounds) for tokens in args.tokens}
    for tokens, methods in found.items():
        for name, figures in methods.items():
            print(f"{tokens:>5} tokens, {name:<16}", figures)
    made_with = describe() | {"rounds": args.rounds, "model": (args.model or demo_model()).name}
    args.out.write_text(json.dumps({"made_with": made_with, "prompts": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
