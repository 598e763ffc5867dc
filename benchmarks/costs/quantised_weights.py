"""Weights in int8 and int4 beside bfloat16: answers, time to first token, time per output token.

    python -m benchmarks.costs.quantised_weights --model FOLDER

Prompts are questions of Natural Questions, test split, over four passages each, by full prefill.
The three ways take turns, prompt by prompt. Compared are the first token, and the KL divergence of
its distribution from bfloat16's, and greedy answers token by token. Times: of the prefill, and of
decode steps after it, of one sequence and of eight; ratios to bfloat16's of the same prompt. Beside
the clock, the processor time of the one thread that computes: other programs change it less.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.prompts import Encoder
from benchmarks.peers.workloads import sources
from benchmarks.quality.tasks import natural_questions
from service.prompt import Turn
from service.worker.api import (
    DecoderModel,
    KVPool,
    SequenceKV,
    decode_step,
    kernel_weights,
    load_model,
)
from tuning.environment import describe
from tuning.single_prompts import kv_pool, prefill_ids

OUT = Path("benchmarks/results/quantised_weights.json")
DOCUMENTS = 4
WAYS = ("off", "int8", "int4")
STEPS = 12
"""Decode steps that are timed after a prefill, and one before that is not."""
BATCH = 8
SHOWN = {"prefill": "TTFT", "step": "TPOT", "batch step": f"TPOT of {BATCH} sequences"}


class Running:
    """One sequence while it is decoded."""

    def __init__(self, kv: SequenceKV, tokens: int, first: int) -> None:
        self.kv: SequenceKV | None = kv
        self.position, self.tokens, self.lora = tokens, [first], ""

    def take(self, logits: Tensor) -> None:
        self.tokens.append(int(logits.argmax()))
        self.position += 1


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.costs.quantised_weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--timed-batches", type=int, default=20, help="prompts that do batches too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    environment = describe()
    torch.set_num_threads(args.threads)
    models = {way: load_model(str(args.model), dtype="bfloat16", device="cpu", quantize=way)
              for way in WAYS}  # fmt: skip
    records = list(measured(args, models))
    summary = {way: summarised(records, way) for way in WAYS[1:]}
    result = {
        "environment": environment,
        "model": args.model.name,
        "seed": args.seed,
        "threads": args.threads,
        "prompt tokens, median": statistics.median(r["prompt_tokens"] for r in records),
        "weight bytes": {way: weight_bytes(models[way]) for way in WAYS},
        "milliseconds of processor time, median": {way: milliseconds(records, way) for way in WAYS},
        "compared with bfloat16": summary,
        "prompts": records,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    shown = {k: v for k, v in result.items() if k not in ("prompts", "environment")}
    print(json.dumps(shown, indent=1))
    return 0


@torch.inference_mode()
def measured(args: argparse.Namespace, models: dict[str, DecoderModel]) -> Any:
    """A record for each prompt."""
    encoder, rng = Encoder(args.model), random.Random(args.seed)
    found = sources(natural_questions.load("test"))
    pools = {way: kv_pool(decoder, 16384) for way, decoder in models.items()}
    for number in range(args.prompts):
        chosen = rng.sample(found, DOCUMENTS)
        turns = [Turn("user", chosen[0].question)]
        ids = list(encoder.ids(turns, [each.document for each in chosen]))
        record: dict[str, Any] = {"prompt_tokens": len(ids)}
        of_bfloat16: Tensor | None = None
        ways = list(WAYS) if number % 2 else [WAYS[0], *reversed(WAYS[1:])]
        for way in ways:
            batch = BATCH if number < args.timed_batches else 0
            record[way], logits = of_one(models[way], pools[way], ids, batch)
            of_bfloat16 = logits if of_bfloat16 is None else of_bfloat16
            record[way]["kl"] = float(
                F.kl_div(logits.log_softmax(-1), of_bfloat16.log_softmax(-1),
                         log_target=True, reduction="sum")
            )  # fmt: skip
        yield record


def of_one(
    decoder: DecoderModel, pool: KVPool, ids: list[int], batch: int
) -> tuple[dict[str, Any], Tensor]:
    """Times and tokens of one prompt, and the first token's logits."""
    kv = pool.reserve(len(ids) + STEPS + 2)
    assert kv is not None
    began, used = time.perf_counter(), time.process_time()
    logits = prefill_ids(decoder, ids, kv=kv).logits
    prefill = [time.perf_counter() - began, time.process_time() - used]
    kv.set_length(len(ids))
    first = int(logits.argmax())
    others = [together(pool, kv, len(ids), first) for _ in range(batch)]
    one = Running(kv, len(ids), first)
    record = {"prefill": prefill, "step": timed(decoder, [one]), "tokens": one.tokens}
    if batch:
        record["batch step"] = timed(decoder, others)
    for sequence in (one, *others):
        assert sequence.kv is not None
        sequence.kv.release()
    return record, logits.double()


def together(pool: KVPool, kv: SequenceKV, tokens: int, first: int) -> Running:
    """Another sequence with the same prompt."""
    copy = pool.reserve(tokens + STEPS + 2)
    assert copy is not None
    kv.copy_to(copy, tokens)
    copy.set_length(tokens)
    return Running(copy, tokens, first)


def timed(decoder: DecoderModel, running: list[Running]) -> list[float]:
    """The median step by the clock and in processor time, seconds; greedy."""
    clock, processor = [], []
    for _ in range(STEPS + 1):
        began, used = time.perf_counter(), time.process_time()
        logits = decode_step(decoder, running)
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
        for sequence, row in zip(running, logits, strict=True):
            sequence.take(row)
    return [statistics.median(clock[1:]), statistics.median(processor[1:])]


def weight_bytes(decoder: DecoderModel) -> int:
    """Of what decode steps multiply by."""
    weights = kernel_weights(decoder)
    assert weights is not None
    tensors = [x for w in weights.weights for x in (w.values, w.scales) if x is not None]
    return sum(x.numel() * x.element_size() for x in tensors)


def milliseconds(records: list[dict[str, Any]], way: str) -> dict[str, float]:
    """Medians of processor time."""
    found = {name: [r[way][name][1] for r in records if name in r[way]] for name in SHOWN}
    return {name: 1000 * statistics.median(times) for name, times in found.items() if times}


def summarised(records: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """Agreement with bfloat16, and ratios of times to its."""
    pairs = [(r["off"], r[way]) for r in records]
    out: dict[str, Any] = {
        "same first token": statistics.mean(a["tokens"][0] == b["tokens"][0] for a, b in pairs),
        "mean KL of the first token, nats": statistics.mean(b["kl"] for _, b in pairs),
        f"same {STEPS + 2} tokens": statistics.mean(a["tokens"] == b["tokens"] for a, b in pairs),
    }
    for name, shown in SHOWN.items():
        for at, of in enumerate(("clock", "processor time")):
            ratios = [b[name][at] / a[name][at] for a, b in pairs if name in a]
            if len(ratios) > 1:
                low, middle, high = statistics.quantiles(ratios, n=4)
                out[f"{shown}, {of}"] = {"median": middle, "quartiles": [low, high]}
    return out


if __name__ == "__main__":
    sys.exit(main())
