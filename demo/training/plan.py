"""The two sizes of the demo model, and the plan of a training run of each.

`small` is the model in `service/demo_model`; a run continues from its weights on a CPU. `large`
starts from random weights and needs a GPU; it is written for one H200 and has not been run on one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from demo.training.decoder import DecoderConfig


@dataclass(frozen=True)
class Plan:
    """Model, length, learning rate and data of a run.

    A run ends after `steps`, or, where that is None, after `minutes` of steps. Everything that
    changes during a run depends on its progress, from 0 to 1.

    Attributes:
        batch_tokens: Tokens of a step.
        pass_tokens: A step's rows are computed in passes of at most so many tokens.
        peak: Highest factor of the learning rates.
        floor: Factor of the learning rates at the end.
        warm_up: Steps in which the rate rises.
        cooling: Last share of the run, in which the rate falls.
        guided_share: First share of the run, in which there are the guide's losses and rows that
            repeat random tokens.
        lengths: Pairs of a progress and the tokens of a context from then on; stories are joined to
            fill it. Empty: a context is one story.
        refresh: Steps between two updates of the `Mix`; between them data can be drawn ahead.
        evaluate_every: Steps between two evaluations on held-out names; 0 for none.
    """

    batch_tokens: int
    pass_tokens: int
    peak: float
    floor: float
    model: DecoderConfig = field(default_factory=DecoderConfig)
    steps: int | None = None
    minutes: float = 0.0
    seed: int = 22
    warm_up: int = 50
    cooling: float = 0.25
    guided_share: float = 0.9
    adam_rate: float = 2e-3
    lengths: tuple[tuple[float, int], ...] = ()
    refresh: int = 1
    evaluate_every: int = 250

    def progress(self, step: int, seconds: float) -> float:
        """Share of the run that is done."""
        done = step / self.steps if self.steps is not None else seconds / (60 * self.minutes)
        return min(1.0, done)

    def scale(self, step: int, progress: float) -> float:
        """Factor of the learning rates: linear warm-up, then `peak`, then linear to `floor`."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        return self.floor + (self.peak - self.floor) * min(1.0, (1 - progress) / self.cooling)

    def entities(self, rng: random.Random, progress: float) -> int:
        """Entities in a story: two or three at first, then up to five."""
        if progress < 0.1:
            return rng.choice((2, 3, 3))
        if progress < 0.25:
            return rng.choice((3, 4))
        return rng.choice((3, 4, 5, 5))

    def context_tokens(self, rng: random.Random, progress: float) -> int:
        """Tokens of a context: half of the current limit up to all of it; 0 for a single story."""
        limit = max((tokens for start, tokens in self.lengths if progress >= start), default=0)
        return rng.randint(limit // 2, limit)


SMALL = Plan(batch_tokens=3072, pass_tokens=1280, peak=0.4, floor=0.02, steps=1060, cooling=0.45)
"""12 layers of width 256; contexts of one story. About an hour on one core."""

LARGE = Plan(
    batch_tokens=2**17,
    pass_tokens=2**15,
    peak=1.0,
    floor=0.02,
    model=DecoderConfig(
        hidden_size=320,
        intermediate_size=480,
        num_hidden_layers=14,
        num_attention_heads=10,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
    ),
    minutes=22.0,
    warm_up=100,
    guided_share=0.6,
    adam_rate=5e-4,
    lengths=((0.0, 256), (0.3, 1024), (0.75, 3968)),
    refresh=25,
    evaluate_every=500,
)
"""10.4 M parameters, 4,096 positions. The guide ends before the longest contexts begin."""

SIZES = {"small": SMALL, "large": LARGE}
