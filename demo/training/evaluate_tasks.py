"""Exact match per task, with full prefill and with stitched chunks.

`python -m demo.training.evaluate_tasks`. Names are held out from training. All views see the same
samples; only the mask differs.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from torch import Tensor

from demo.language.tasks import TASKS
from demo.language.vocabulary import build_tokenizer
from demo.training.decoder import Decoder
from demo.training.load import load_plain
from demo.training.rows import FIRST_QUESTION, Packer, Part, Row
from demo.training.samples import Batch, View, collate

EVALUATION_SEED = 4242
ROWS = 10


def task_rows(packer: Packer, task: str, stories: int, questions: int, seed: int) -> list[Row]:
    """Rows of held-out stories, each with up to `questions` of its scored questions."""
    rng = random.Random(f"{seed}/{task}")
    rows = []
    for _ in range(stories):
        story = TASKS[task].write(rng, True, TASKS[task].entities)
        scored = [asked for asked in story.asked if asked.scored]
        asked = rng.sample(scored, min(questions, len(scored)))
        rows.append(packer.row(rng, [Part(task, story, asked)]))
    return rows


@torch.no_grad()
def accuracy(model: Decoder, rows: list[Row], view: View) -> float:
    """Share of questions of which the model's first choice is right for every token and for EOS.

    The right tokens are given as input. For an exact match that is the same as greedy decoding.
    """
    device = model.embed_tokens.weight.device
    ordered = sorted(rows, key=lambda row: len(row.ids))
    right = total = 0
    for start in range(0, len(ordered), ROWS):
        batch = collate(ordered[start : start + ROWS], view).to(device)
        best = model.logits(model(batch.ids, batch.positions, batch.mask)[:, :-1]).argmax(-1)
        found = marks(batch, best)
        right, total = right + sum(mark for _, mark in found), total + len(found)
    return right / total


def marks(batch: Batch, best: Tensor) -> list[tuple[str, bool]]:
    """Marks the answers of a batch.

    Args:
        best: The model's first choice for every token but the first, `[rows, tokens - 1]`.

    Returns:
        For every scored question its task, and whether the whole answer is right.
    """
    wrong = ((best != batch.ids[:, 1:]) & (batch.weights[:, 1:] > 0)).cpu()
    segments, first = batch.segments[:, 1:].cpu(), batch.first[:, 1:].cpu()
    failed = set(_questions(segments, wrong))
    return [
        (batch.tasks[row][segment - FIRST_QUESTION], (row, segment) not in failed)
        for row, segment in _questions(segments, first)
    ]


def _questions(segments: Tensor, chosen: Tensor) -> list[tuple[int, int]]:
    """Row and segment of every chosen token."""
    return list(zip(chosen.nonzero()[:, 0].tolist(), segments[chosen].tolist(), strict=True))


def evaluate(
    model: Decoder,
    stories: int,
    questions: int = 1,
    views: tuple[View, ...] = tuple(View),
    seed: int = EVALUATION_SEED,
) -> dict[str, dict[str, float]]:
    """Exact match by task and view."""
    packer = Packer(build_tokenizer())
    report = {}
    for task in TASKS:
        rows = task_rows(packer, task, stories, questions, seed)
        report[task] = {view.value: accuracy(model, rows, view) for view in views}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parents[2] / "service" / "demo_model"
    )
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED)
    args = parser.parse_args()
    report = evaluate(load_plain(args.model), args.samples, seed=args.seed)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
