"""Sizes of what is measured: the real shape, and a tiny one that only shows that a line runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from benchmarks.common.shapes import random_qwen2, sizes
from kvstitch.service.worker.api import DecoderModel, decoder_for


@dataclass(frozen=True)
class Shape:
    """Sizes, in tokens unless noted. A stitched prompt has `chunks` documents of equal length."""

    model: str  # see benchmarks.common.shapes
    tokens: int = 2048
    chunks: int = 4
    long_tokens: int = 8192
    long_chunks: int = 16
    answer: int = 16
    concurrency: int = 8
    contexts: tuple[int, ...] = (512, 1024, 4096)
    ratios: tuple[float, ...] = (0.05, 0.15, 0.3, 0.5)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    budgets: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125)  # shares of the prompt's KV that are kept
    planner_tokens: int = 512
    planner_layers: int = 4
    requests: int = 1000
    documents: int = 200
    questions: int = 60

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | sizes(self.model)


REAL = Shape("qwen2.5-0.5b")
TINY = Shape(
    "tiny",
    tokens=128,
    long_tokens=256,
    long_chunks=4,
    answer=4,
    concurrency=3,
    contexts=(64, 256),
    ratios=(0.15, 0.5),
    batches=(1, 2),
    budgets=(1.0, 0.5),
    planner_tokens=64,
    planner_layers=2,
    requests=30,
    documents=8,
    questions=3,
)


@dataclass(frozen=True)
class Setup:
    """The circumstances of a run; models are made once and shared by the lines."""

    shape: Shape
    threads: int
    repetitions: int = 5
    seed: int = 0

    @cached_property
    def decoder(self) -> DecoderModel:
        return self.decoder_of()

    @cached_property
    def stock(self) -> Any:
        """A transformers model with the same weights, to compare with."""
        return random_qwen2(self.shape.model, seed=self.seed)

    def decoder_of(self, layers: int | None = None) -> DecoderModel:
        return decoder_for(random_qwen2(self.shape.model, seed=self.seed, layers=layers))

    def begin(self) -> None:
        """Resets what another line may have changed; called before every line."""
        torch.set_num_threads(self.threads)
        torch.manual_seed(self.seed)
