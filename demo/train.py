"""Trains the demo model: `python -m demo.train --phase shallow`, then `--phase grow`.

A shallow model learns to look names up first; blocks with zero output projections are then
inserted below and between its own, which changes nothing it computes, and the deeper model is
trained on. Every step draws its data from (seed, step), so a resumed run is the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.decoder import Decoder, DecoderConfig
from demo.evaluate import accuracy
from demo.export import export
from demo.grow import GROWN_FROM, grow
from demo.guide import PROBED, Guide
from demo.guide import RATE as GUIDE_RATE
from demo.guide import WEIGHT as GUIDE_WEIGHT
from demo.optimizer import MasterOptimizer
from demo.samples import Batch, Mix, Sampler
from demo.vocabulary import build_tokenizer

STAGES = (
    Mix(documents=6, facts=(1, 1), questions=6, shared=2),
    Mix(documents=4, facts=(3, 3), questions=12, shared=4),
    Mix(documents=3, facts=(5, 6), questions=12),
)
"""From the start every question has rivals in the context: the right attribute of the wrong
entity, the plateau such training sticks on, does not pay."""
STAGE_LIMITS = (1001, 1150, 1300)
"""Steps by which a stage ends at the latest."""
LAST_STAGE = len(STAGES)
DOCUMENT_COUNTS = (2, 3, 3, 3, 3, 3, 4, 4, 5)
"""Draws of the last stage: contexts of two to five documents, three the most common."""
INDUCTION_SHARE = 0.25
QUESTION_WEIGHT = 0.3
REVERSE_SHARE = 0.15
PASS_MARK = 0.9
"""Running first-token accuracy that ends a stage."""


@dataclass(frozen=True)
class Plan:
    """One phase of training."""

    phase: str
    steps: int
    batch_tokens: int
    peak: float
    floor: float
    seed: int
    block_mask_share: float = 0.0
    last_stage_only: bool = False
    evaluate_every: int = 250
    warm_up: int = 100

    def scale(self, step: int) -> float:
        """Learning-rate factor: linear warm-up, then a cosine from `peak` to `floor`."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        done = min(1.0, (step - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


class Trainer:
    """Model, optimiser and curriculum; `run` goes on from wherever `load` left it."""

    def __init__(self, plan: Plan, config: DecoderConfig, dtype: torch.dtype) -> None:
        self.plan = plan
        self.dtype = dtype
        self.model = Decoder(config, seed=plan.seed).to(dtype)
        self.optimizer = MasterOptimizer(self.model)
        self.tokenizer = build_tokenizer()
        self.sampler = Sampler(self.tokenizer)
        self.guide: Guide | None = None
        if plan.phase == "shallow" and config.num_hidden_layers > PROBED + 1:
            self.guide = Guide(config.hidden_size, config.vocab_size, plan.seed)
            self.guide_optimizer = torch.optim.Adam(self.guide.parameters(), lr=GUIDE_RATE)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.stage = LAST_STAGE if plan.last_stage_only else 0
        self.passing = 0.0
        """Running mean of first-token accuracy in the current stage."""

    def batch(self) -> Batch:
        """The batch of the current step, a function of (seed, step, stage) alone."""
        rng = random.Random(f"{self.plan.seed}/{self.plan.phase}/{self.step}")
        early = self.step / self.plan.steps if not self.plan.last_stage_only else 1.0
        if early < 0.15 and rng.random() < INDUCTION_SHARE:
            rows = self.plan.batch_tokens // 100
            return self.sampler.induction_batch(rng, rows, 120, self.dtype)
        if self.stage < LAST_STAGE:
            mix = STAGES[self.stage]
        else:
            mix = Mix(documents=rng.choice(DOCUMENT_COUNTS), facts=(5, 6), questions=12)
        recap = 0.2 if early < 0.5 else 0.0
        mix = replace(
            mix,
            recap_share=recap,
            reverse_share=REVERSE_SHARE if early < 0.6 else 0.0,
            question_weight=QUESTION_WEIGHT,
            block_mask_share=self.plan.block_mask_share,
        )
        expected = 12 + mix.documents * (4 + 11 * sum(mix.facts) // 2) + 18 * mix.questions
        return self.sampler.batch(rng, mix, max(1, self.plan.batch_tokens // expected), self.dtype)

    def train_step(self) -> dict[str, float]:
        """Forward, backward, update; returns losses and accuracy (nan without answers)."""
        began = time.perf_counter()
        batch = self.batch()
        report = self._backward(batch)
        self.optimizer.step(self.plan.scale(self.step))
        self.step += 1
        self.tokens += int((batch.segments >= 0).sum())
        hit = report["first"]
        if not math.isnan(hit):
            self.passing = 0.95 * self.passing + 0.05 * hit
        if self.stage < LAST_STAGE:
            late = self.step >= STAGE_LIMITS[self.stage]
            if self.passing > PASS_MARK or late:
                self.stage, self.passing = self.stage + 1, 0.0
        self.seconds += time.perf_counter() - began
        return report

    def _backward(self, batch: Batch) -> dict[str, float]:
        hidden, stream = self.model.streams(batch.ids, batch.positions, batch.mask, PROBED)
        loss, hit = losses(self.model, batch, hidden)
        report = {"loss": float(loss.detach()), "first": hit}
        if self.guide is not None and len(batch.links):
            named, link = self.guide.losses(self.model, batch, stream)
            report |= {"named": float(named.detach()), "link": float(link.detach())}
            loss = loss + GUIDE_WEIGHT * (named + link)
            self.guide_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.guide is not None and len(batch.links):
            self.guide_optimizer.step()
        return report

    def run(self, until: int, log: Path | None, checkpoint: Path | None, out: Path | None) -> None:
        """Trains to step `until`, logging every 20 steps and evaluating at intervals."""
        while self.step < until:
            report: dict[str, Any] = dict(self.train_step())
            last = self.step == until
            if self.step % self.plan.evaluate_every == 0 or last:
                report["full"] = accuracy(self.model, self.sampler, blocked=False)
                report["blocked"] = accuracy(self.model, self.sampler, blocked=True)
                if checkpoint is not None:
                    self.save(checkpoint)
                if out is not None:
                    export(self.model, self.optimizer.master, self.tokenizer, out)
            if log is not None and (self.step % 20 == 0 or "full" in report):
                report |= {
                    "phase": self.plan.phase,
                    "step": self.step,
                    "stage": self.stage,
                    "tokens": self.tokens,
                    "passing": self.passing,
                    "seconds": self.seconds,
                }
                with log.open("a") as file:
                    file.write(json.dumps({k: _rounded(v) for k, v in report.items()}) + "\n")

    def save(self, path: Path) -> None:
        state = {
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "stage": self.stage,
            "passing": self.passing,
            "seconds": self.seconds,
            "config": self.model.config.as_dict(),
        }
        if self.guide is not None:
            state["guide"] = self.guide.state_dict()
            state["guide_optimizer"] = self.guide_optimizer.state_dict()
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.guide is not None and "guide" in state:
            self.guide.load_state_dict(state["guide"])
            self.guide_optimizer.load_state_dict(state["guide_optimizer"])
        self.step, self.tokens, self.stage = state["step"], state["tokens"], state["stage"]
        self.passing, self.seconds = state["passing"], state["seconds"]


def losses(model: Decoder, batch: Batch, hidden: Tensor) -> tuple[Tensor, float]:
    """Weighted cross-entropy, and the share of answers whose first token is right.

    `hidden` `[rows, tokens, hidden]` are the model's final hidden states on the batch.
    """
    hidden = hidden[:, :-1]
    weights = batch.weights[:, 1:]
    chosen = weights > 0
    logits = model.logits(hidden[chosen]).float()
    targets = batch.ids[:, 1:][chosen]
    each = F.cross_entropy(logits, targets, reduction="none")
    first = batch.first[:, 1:][chosen]
    hits = (logits.detach().argmax(-1) == targets)[first]
    hit = float(hits.float().mean()) if len(hits) else math.nan
    return (each * weights[chosen]).sum() / weights.sum(), hit


def _rounded(value: Any) -> Any:
    """JSON knows no nan: an induction batch has no first-token accuracy."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", choices=("shallow", "grow"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--peak", type=float, default=1.0)
    parser.add_argument("--floor", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--block-mask-share", type=float, default=0.0)
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--checkpoints", type=Path, default=Path("demo/.training"))
    parser.add_argument("--log", type=Path, default=Path("demo/train_log.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("demo/model"))
    args = parser.parse_args()
    plan = Plan(
        phase=args.phase,
        steps=args.steps,
        batch_tokens=args.batch_tokens,
        peak=args.peak,
        floor=args.floor,
        seed=args.seed,
        block_mask_share=args.block_mask_share,
        last_stage_only=args.phase == "grow",
        evaluate_every=args.evaluate_every,
    )
    torch.manual_seed(args.seed)
    args.checkpoints.mkdir(parents=True, exist_ok=True)
    layers = DecoderConfig().num_hidden_layers if args.phase == "grow" else GROWN_FROM
    trainer = Trainer(plan, replace(DecoderConfig(), num_hidden_layers=layers), torch.float32)
    own = args.checkpoints / f"{args.phase}.pt"
    if own.exists():
        trainer.load(own)
    elif args.phase == "grow":
        grow(trainer.optimizer, args.checkpoints / "shallow.pt", layers)
    trainer.run(args.steps, args.log, own, args.out)


if __name__ == "__main__":
    main()
