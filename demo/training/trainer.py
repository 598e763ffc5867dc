"""The training loop of both sizes.

Training uses full attention only: nothing teaches the model to answer from chunks that could not
see each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.language.tasks import TASKS
from demo.training.checkpoint import read_checkpoint, write_checkpoint
from demo.training.decoder import EMBEDDING_STD, Decoder
from demo.training.evaluate_tasks import evaluate, marks
from demo.training.export import export
from demo.training.feed import Feed, Mix
from demo.training.guide import guide_loss
from demo.training.optimizer import MasterOptimizer
from demo.training.plan import Plan
from demo.training.samples import Batch, View

GUIDE_WEIGHT = 1.0
EVALUATED_STORIES = 15
UNUSED_COSINE = 0.5
SAVE_STEPS = 100


class Trainer:
    """Model, optimiser and progress of a run; `run` continues where `load` left it.

    Attributes:
        autocast: Whether matrix products are computed in bf16.
        mean_guide_loss: Running mean of the guide's loss.
        known: Running mean of exact match by task, on names of the training side.
    """

    def __init__(self, plan: Plan, model: Decoder, autocast: bool = False) -> None:
        self.plan = plan
        self.model = model
        self.device = model.embed_tokens.weight.device
        self.autocast = autocast
        self.optimizer = MasterOptimizer(model, plan.adam_rate)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.mean_guide_loss = 0.0
        self.known = dict.fromkeys(TASKS, 0.0)
        self.mix = Mix(dict(self.known), 0.0)

    @property
    def progress(self) -> float:
        return self.plan.progress(self.step, self.seconds)

    def train_step(self, batches: list[Batch]) -> float:
        """Runs forward and backward passes and one update, and returns the loss."""
        whole = sum(float(batch.weights[:, 1:].sum()) for batch in batches)
        self.tokens += sum(int((batch.segments >= 0).sum()) for batch in batches)
        total = 0.0
        for batch in (batch.to(self.device) for batch in batches):
            streams: list[Tensor] = []
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                hidden = self.model(batch.ids, batch.positions, batch.mask, streams)
                answered, found = losses(self.model, batch, hidden)
                loss = answered / whole
                total += float(loss.detach())
                if self.mix.progress < self.plan.guided_share:
                    guided = guide_loss(self.model, batch, streams)
                    self.mean_guide_loss += 0.02 * (float(guided.detach()) - self.mean_guide_loss)
                    loss = loss + GUIDE_WEIGHT / len(batches) * guided
            loss.backward()  # type: ignore[no-untyped-call]
            for task, right in found:
                self.known[task] += 0.01 * (right - self.known[task])
        self.optimizer.step(self.plan.scale(self.step, self.progress))
        self.step += 1
        return total

    def run(
        self,
        feed: Feed,
        log: Path | None = None,
        checkpoint: Path | None = None,
        until: int | None = None,
        seconds: float = float("inf"),
    ) -> bool:
        """Trains, logs every 20 steps, evaluates at intervals, and saves at the end.

        Args:
            until: Stop at this step.
            seconds: Stop after so many seconds.

        Returns:
            Whether the plan's end was reached.
        """
        stop = time.monotonic() + seconds
        while not self._over(until, stop):
            if self.step % self.plan.refresh == 0:
                self.mix = Mix(dict(self.known), self.progress)
            end = (self.step // self.plan.refresh + 1) * self.plan.refresh
            began = time.monotonic()
            for batches in feed.batches(self.mix, range(self.step, end)):
                loss = self.train_step(batches)
                self.seconds += time.monotonic() - began
                began = time.monotonic()
                self._after_step(loss, log, checkpoint)
                if self._over(until, stop):
                    break
        if checkpoint is not None:
            self.save(checkpoint)
        return self.progress >= 1

    def _over(self, until: int | None, stop: float) -> bool:
        return self.progress >= 1 or self.step == until or time.monotonic() > stop

    def _after_step(self, loss: float, log: Path | None, checkpoint: Path | None) -> None:
        every = self.plan.evaluate_every
        evaluating = every > 0 and (self.step % every == 0 or self.progress >= 1)
        if checkpoint is not None and self.step % SAVE_STEPS == 0:
            self.save(checkpoint)
        if log is not None and (evaluating or self.step % 20 == 0 or self.progress >= 1):
            with log.open("a") as file:
                file.write(json.dumps(self._report(loss, evaluating)) + "\n")

    def _report(self, loss: float, evaluating: bool) -> dict[str, Any]:
        report: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(loss, 4),
            "guide": round(self.mean_guide_loss, 3),
            "rate": round(self.plan.scale(self.step, self.progress), 4),
            "known": _rounded(self.known),
        }
        if evaluating:
            views = (View.FULL, View.BARE)
            found = evaluate(self.model, EVALUATED_STORIES, 4, views)
            report["held_out"] = {task: _rounded(each) for task, each in found.items()}
        return report

    def export(self, folder: Path) -> None:
        export(self.model, self.optimizer.master, folder)

    def save(self, folder: Path) -> None:
        numbers = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "guided": self.mean_guide_loss,
            "known": self.known,
            "mix": asdict(self.mix),
        }
        write_checkpoint(folder, self.optimizer.state_dict(), numbers)

    def load(self, folder: Path) -> bool:
        """Restores the state of a checkpoint, and returns whether there was one."""
        found = read_checkpoint(folder)
        if found is None:
            return False
        tensors, numbers = found
        self.optimizer.load_state_dict(tensors)
        self.step, self.tokens = numbers["step"], numbers["tokens"]
        self.seconds, self.mean_guide_loss = numbers["seconds"], numbers["guided"]
        self.known, self.mix = numbers["known"], Mix(**numbers["mix"])
        return True


def losses(model: Decoder, batch: Batch, hidden: Tensor) -> tuple[Tensor, list[tuple[str, bool]]]:
    """Computes the loss of a batch and marks its answers.

    Args:
        hidden: The model's final hidden states, `[rows, tokens, hidden]`.

    Returns:
        The weighted sum of cross-entropies, and for every scored answer its task and whether it is
        right.
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
    """Draws new embeddings for rows that no text has used, and returns their number.

    An unused row is a wrong answer to every question, so training has pushed all unused rows in one
    direction. Rows from `start` on are known to be unused; earlier rows that point in the same
    direction are taken to be unused too.
    """
    rows = model.embed_tokens.weight
    unused = F.cosine_similarity(rows, rows[start:].mean(0)[None]) > UNUSED_COSINE
    unused[start:] = True
    fresh = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)) * EMBEDDING_STD
    rows[unused] = fresh[unused]
    return int(unused.sum())


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}
