"""Trains the demo model on, from the weights of an exported folder: `python -m demo.train`.

Full attention only: nothing here teaches the model to do without what a chunk cannot see. Every
step draws its data from (seed, step, running accuracies), so a resumed run is the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.decoder import EMBEDDING_STD, Decoder
from demo.evaluate_tasks import evaluate, marks
from demo.export import export
from demo.guide import guide_loss
from demo.load import load_plain
from demo.optimizer import MasterOptimizer
from demo.samples import Batch, Packer, Row, View, collate
from demo.tasks import TASKS
from demo.vocabulary import build_tokenizer

SHARES = {
    "single": 0.15,
    "border": 0.1,
    "pronoun": 0.12,
    "update": 0.18,
    "list": 0.15,
    "hop": 0.05,
    "chain": 0.13,
    "niah": 0.12,
}
"""Base share of rows; a task earns less the better it is known."""
LEAST = 0.25
QUESTIONS = 12
PASSES = 3
"""A step's rows, sorted by length, are computed in so many passes: less padding."""
COOLING = 0.25
"""Last part of the run, in which the rate falls."""
GUIDE_WEIGHT = 0.3
GUIDED = 0.9
"""In this part of the run there are the guide's losses, and rows that repeat random tokens."""
COPY_ROWS, COPY_TOKENS = 2, 160
EVALUATED_STORIES = 15
UNUSED_COSINE = 0.5


@dataclass(frozen=True)
class Plan:
    """Length, rate and size of a run."""

    steps: int
    batch_tokens: int
    peak: float
    floor: float
    seed: int
    evaluate_every: int = 250
    warm_up: int = 50

    def scale(self, step: int) -> float:
        """Learning-rate factor: linear warm-up, then `peak`, then linear to `floor`."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        left = max(0.0, 1 - step / self.steps)
        return self.floor + (self.peak - self.floor) * min(1.0, left / COOLING)

    def entities(self, rng: random.Random, step: int) -> int:
        """Rivals in a story: three at first, then up to five."""
        early = step / self.steps
        if early < 0.1:
            return 3
        if early < 0.25:
            return rng.choice((3, 4))
        return rng.choice((3, 4, 5, 5))


class Trainer:
    """Model, optimiser and mix; `run` goes on from wherever `load` left it."""

    def __init__(self, plan: Plan, model: Decoder) -> None:
        self.plan = plan
        self.model = model
        self.optimizer = MasterOptimizer(model)
        self.tokenizer = build_tokenizer()
        self.packer = Packer(self.tokenizer)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.guided = 0.0
        """Running mean of the guide's loss."""
        self.known = dict.fromkeys(TASKS, 0.0)
        """Running mean of exact match by task, on names of the training side."""

    def rows(self) -> list[Row]:
        """The rows of the current step, shortest first."""
        rng = random.Random(f"{self.plan.seed}/{self.step}")
        shares = [SHARES[task] * max(LEAST, 1 - self.known[task]) for task in TASKS]
        rows: list[Row] = []
        if self.step < GUIDED * self.plan.steps:
            rows += [self.packer.copy_row(rng, COPY_TOKENS) for _ in range(COPY_ROWS)]
        while sum(len(row.ids) for row in rows) < self.plan.batch_tokens:
            task = rng.choices(list(TASKS), shares)[0]
            story = TASKS[task].write(rng, False, self.plan.entities(rng, self.step))
            asked = rng.sample(story.asked, min(QUESTIONS, len(story.asked)))
            rows.append(self.packer.row(rng, task, story, asked))
        return sorted(rows, key=lambda row: len(row.ids))

    def train_step(self) -> float:
        """Forward, backward, update; returns the loss."""
        began = time.perf_counter()
        rows = self.rows()
        self.tokens += sum(len(row.ids) for row in rows)
        whole = sum(sum(row.weights[1:]) for row in rows)
        size = math.ceil(len(rows) / PASSES)
        total = 0.0
        for start in range(0, len(rows), size):
            batch = collate(rows[start : start + size])
            streams: list[Tensor] = []
            hidden = self.model(batch.ids, batch.positions, batch.mask, streams)
            answered, found = losses(self.model, batch, hidden)
            loss = answered / whole
            total += float(loss.detach())
            if self.step < GUIDED * self.plan.steps:
                guided = guide_loss(self.model, batch, streams) / PASSES
                self.guided += 0.05 * (float(guided.detach()) * PASSES - self.guided)
                loss = loss + GUIDE_WEIGHT * guided
            loss.backward()  # type: ignore[no-untyped-call]
            for task, right in found:
                self.known[task] += 0.01 * (right - self.known[task])
        self.optimizer.step(self.plan.scale(self.step))
        self.step += 1
        self.seconds += time.perf_counter() - began
        return total

    def run(self, until: int, log: Path | None, checkpoint: Path | None, out: Path | None) -> None:
        """Trains to step `until`, logging every 20 steps and evaluating at intervals."""
        while self.step < until:
            loss = self.train_step()
            evaluating = self.step % self.plan.evaluate_every == 0 or self.step == until
            if checkpoint is not None and (evaluating or self.step % 100 == 0):
                self.save(checkpoint)
            if log is not None and (evaluating or self.step % 20 == 0):
                with log.open("a") as file:
                    file.write(json.dumps(self._report(loss, evaluating)) + "\n")
        if out is not None:
            export(self.model, self.optimizer.master, self.tokenizer, out)

    def _report(self, loss: float, evaluating: bool) -> dict[str, Any]:
        report: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(loss, 4),
            "guide": round(self.guided, 3),
            "rate": round(self.plan.scale(self.step), 4),
            "known": _rounded(self.known),
        }
        if evaluating:
            views = (View.FULL, View.BARE)
            found = evaluate(self.model, self.packer, EVALUATED_STORIES, 4, views)
            report["held_out"] = {task: _rounded(each) for task, each in found.items()}
        return report

    def save(self, path: Path) -> None:
        state = {
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "known": self.known,
            "seconds": self.seconds,
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens = state["step"], state["tokens"]
        self.known, self.seconds = state["known"], state["seconds"]


def losses(model: Decoder, batch: Batch, hidden: Tensor) -> tuple[Tensor, list[tuple[str, bool]]]:
    """Weighted sum of cross-entropies, and task and correctness of every scored answer.

    `hidden` `[rows, tokens, hidden]` are the model's final hidden states on the batch.
    """
    weights = batch.weights[:, 1:]
    chosen = weights > 0
    logits = model.logits(hidden[:, :-1][chosen]).float()
    targets = batch.ids[:, 1:][chosen]
    each = F.cross_entropy(logits, targets, reduction="none")
    total = (each * weights[chosen]).sum()
    best = torch.zeros_like(batch.ids[:, 1:])
    best[chosen] = logits.detach().argmax(-1)
    return total, marks(batch, best)


@torch.no_grad()
def renew_rows(model: Decoder, start: int, seed: int) -> int:
    """Gives rows that no text has used a fresh embedding; returns how many.

    As wrong answers to everything, unused rows were all pushed one way. Rows from `start` on are
    known to be unused; those before it that point their way are taken to be.
    """
    rows = model.embed_tokens.weight
    unused = F.cosine_similarity(rows, rows[start:].mean(0)[None]) > UNUSED_COSINE
    unused[start:] = True
    fresh = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)) * EMBEDDING_STD
    rows[unused] = fresh[unused]
    return int(unused.sum())


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("demo/model"), help="exported folder")
    parser.add_argument("--renew-from", type=int, help="first row without a trained word")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-tokens", type=int, default=3072)
    parser.add_argument("--peak", type=float, default=0.4)
    parser.add_argument("--floor", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--checkpoint", type=Path, default=Path("demo/.training/run.pt"))
    parser.add_argument("--log", type=Path, default=Path("demo/train_log.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("demo/model"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    plan = Plan(
        args.steps, args.batch_tokens, args.peak, args.floor, args.seed, args.evaluate_every
    )
    model = load_plain(args.start)
    if args.renew_from is not None:
        renew_rows(model, args.renew_from, args.seed)
    trainer = Trainer(plan, model)
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if args.checkpoint.exists():
        trainer.load(args.checkpoint)
    trainer.run(args.steps, args.log, args.checkpoint, args.out)


if __name__ == "__main__":
    main()
