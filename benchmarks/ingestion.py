"""Ingestion over HTTP relative to a plain prefill of as many tokens.

    python -m benchmarks.ingestion --model FOLDER

Passages of Natural Questions are handed in through POST /admin/precompute to the real service,
which splits, embeds, indexes, precomputes and stores them; the time runs until the job has
succeeded. It is compared with a full prefill of as many tokens in long prompts, by the same kernels
in one process without a store. Round by round other passages are taken, and both take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.tasks import natural_questions
from demo.client import Client
from demo.corpus_files import CorpusDocument
from demo.process import free_port, service
from service.gateway.api import PromptBuilder
from service.prompt import document_ids
from service.settings import Settings
from service.tuning.measuring.environment import describe
from service.worker.api import DecoderAdapter, load_model, model_fingerprint, prefill_ids

OUT = Path("benchmarks/results/speed")
PLAIN_TOKENS = 2048
"""Of a plain prefill: long enough for the best speed, and attention costs little yet."""


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingestion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--documents", type=int, default=240, help="of a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    os.environ["KVSTITCH_THREADS"] = str(args.threads)
    adapter = load_model(str(args.model), dtype="bfloat16", device="cpu")
    rounds = passages(args.documents, args.rounds)
    prompts = PromptBuilder(args.model, Settings.model_validate({}))
    encoded = [
        [i for d in part for i in document_ids(prompts.format, prompts.tokenizer, d.title, d.text)]
        for part in rounds
    ]
    taken: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data_dir, port = Path(folder) / "data", free_port()
        data_dir.mkdir()
        running = service(data_dir, port, Path(folder) / "service.log", args.model)
        with running, Client(f"http://127.0.0.1:{port}") as client, torch.inference_mode():
            for part, ids in zip(rounds, encoded, strict=True):
                plain = timed(lambda ids=ids: plain_prefill(adapter, ids))
                done = timed(lambda part=part: ingest(client, part))
                rest = timed(client.wait_complete)
                taken.append({"plain": plain, "ingest": done, "rest": rest, "tokens": len(ids)})
                print(taken[-1], file=sys.stderr)
    ratios = [each["plain"] / each["ingest"] for each in taken]
    result: dict[str, Any] = {
        "model": {"folder": args.model.name, "fingerprint": model_fingerprint(str(args.model))},
        "environment": describe(),
        "threads": args.threads,
        "documents": args.documents,
        "rounds": taken,
        "speed_over_plain_prefill": [round(ratio, 3) for ratio in ratios],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"ingestion_{args.threads}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"tokens/s over plain prefill: {statistics.median(ratios):.2f}, rounds {ratios}")
    print(path)
    return 0


def passages(count: int, rounds: int) -> list[list[CorpusDocument]]:
    """Distinct passages, `count` for every round."""
    texts = dict.fromkeys(asked.passage for asked in natural_questions.load("test"))
    found = [CorpusDocument(str(n), p.title, p.text) for n, p in enumerate(texts)]
    if len(found) < count * rounds:
        raise SystemExit(f"there are {len(found)} passages: use fewer rounds or documents")
    return [found[n * count : (n + 1) * count] for n in range(rounds)]


def plain_prefill(adapter: DecoderAdapter, ids: list[int]) -> None:
    for start in range(0, len(ids), PLAIN_TOKENS):
        prefill_ids(adapter, ids[start : start + PLAIN_TOKENS])


def ingest(client: Client, documents: list[CorpusDocument]) -> None:
    for _ in client.progress(client.precompute(documents)):
        pass


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
