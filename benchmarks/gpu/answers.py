"""Answers of a real model on the GPU beside those on the CPU of the same machine.

    python -m benchmarks.gpu.answers [--model FOLDER] [--device cuda] [--questions 8] [--out FOLDER]

Greedy answers to questions about the demo's corpus, six documents each, by full prefill and by
question_scout over stored chunks, in bfloat16. The model is the demo's, which is in the tree,
unless a folder is given (SmolLM2, where it has been fetched).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.speed.engines import FULL, METHODS, SCOUT, Prompt, place, precompute
from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.replies import Done, Failed, TokenItem
from kvstitch.service.messages.requests import ChunkTokens
from kvstitch.service.worker.api import DecoderModel, Engine, load_model
from kvstitch_tune.records import describe

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
NAMES, DOCUMENTS, ANSWER = (FULL, SCOUT), 6, 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.answers", description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "service" / "demo_model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "speed")
    given = parser.parse_args()
    found = {
        device: answers(given.model, device, given.questions) for device in (given.device, "cpu")
    }
    there, here = found[given.device], found["cpu"]
    lines = {}
    for name in NAMES:
        same = [a == b for a, b in zip(there[name], here[name], strict=True)]
        first = [a[:1] == b[:1] for a, b in zip(there[name], here[name], strict=True)]
        lines[name] = {"same answers": sum(same), "same first tokens": sum(first), "of": len(same)}
        print(f"answers, {name}: {lines[name]}", flush=True)
    record = {
        "model": given.model.name, "device": given.device, "environment": describe(),
        "same": lines, "tokens": found,
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu_answers.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def answers(folder: Path, device: str, questions: int) -> dict[str, list[list[int]]]:
    """Return the tokens of every answer, by method."""
    decoder = load_model(str(folder), dtype="bfloat16", device=device)
    prompts = list(_prompts(folder, decoder, questions))
    number = count()
    room = max(len(prompt.ids) for prompt in prompts) + ANSWER
    out: dict[str, list[list[int]]] = {name: [] for name in NAMES}
    with place(decoder, MemoryTier(4 << 30), room) as engine, torch.inference_mode():
        for prompt in prompts:
            precompute(engine, prompt)
            for name in NAMES:
                request = prompt.request(str(next(number)), METHODS[name], ANSWER)
                engine.submit(request)
                out[name].append(list(_tokens(engine)))
    return out


def _tokens(engine: Engine) -> Iterator[int]:
    while True:
        for event in engine.step():
            if isinstance(event, TokenItem):
                yield event.token
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done):
                return


def _prompts(folder: Path, decoder: DecoderModel, questions: int) -> Iterator[Prompt]:
    """Yield questions behind the document that answers them, and others."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    lines = (DEMO / "questions.jsonl").read_text("utf-8").splitlines()[::2][:questions]
    names = sorted(path.stem for path in (DEMO / "corpus").glob("*.md"))
    for asked in map(json.loads, lines):
        at = names.index(asked["doc_id"])
        chosen = [names[(at + step) % len(names)] for step in (-3, -2, -1, 0, 1, 2)][:DOCUMENTS]
        prompt = Prompt(decoder, DOCUMENTS, DOCUMENTS, 0)
        prompt.system, prompt.question = ids("Answer the question."), ids(asked["question"])
        prompt.documents = [
            ChunkTokens(number, ids((DEMO / "corpus" / f"{name}.md").read_text("utf-8")))
            for number, name in enumerate(chosen)
        ]
        yield prompt


if __name__ == "__main__":
    main()
