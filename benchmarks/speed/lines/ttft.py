"""TTFT of stitched prompts relative to full prefill, and full prefill relative to transformers.

Ours is the time from submitting a request to its first token, with chunks in the memory tier.
transformers' is one forward (sdpa) over the same token ids with an unmodified model of the same
weights and logits of the last row only, as in its `generate`.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import count
from typing import Any

import torch

from benchmarks.speed.engines import (
    A3,
    FULL,
    METHODS,
    PIE,
    SCOUT,
    Prompt,
    answer,
    place,
    precompute,
)
from benchmarks.speed.outcome import Outcome, at_most
from benchmarks.speed.paired import Work, run_paired
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import MemoryTier

THEIRS = "transformers forward"


def run(setup: Setup) -> Outcome:
    shape, decoder, stock = setup.shape, setup.decoder, setup.stock
    prompt = Prompt(decoder, shape.tokens, shape.chunks, setup.seed)
    ids, number = torch.tensor([prompt.ids]), count()
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}

    with place(decoder, MemoryTier(4 << 30), len(prompt.ids)) as engine, torch.inference_mode():
        precompute(engine, prompt)

        def ours(name: str) -> None:
            request = prompt.request(str(next(number)), METHODS[name])
            stages[name].append(dict(answer(engine, request).report.stages))

        ways: dict[str, Work] = {name: partial(ours, name) for name in METHODS}
        ways[THEIRS] = partial(stock, ids, use_cache=True, logits_to_keep=1)
        paired = run_paired(ways, setup.repetitions)
    where = f"{shape.tokens} tokens in {shape.chunks} chunks, memory tier"
    figures = [
        paired.figure(f"TTFT of A3 r=0.15 over full prefill, {where}", A3, FULL, at_most(0.22)),
        paired.figure(f"TTFT of {SCOUT} over full prefill", SCOUT, FULL, at_most(0.20)),
        paired.figure("TTFT of PIE over full prefill", PIE, FULL, at_most(0.05)),
        paired.figure("full prefill over transformers' forward", FULL, THEIRS, at_most(1.05)),
    ]
    return Outcome(figures, {"seconds": paired.raw(), "stages": medians(stages)})


def medians(stages: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Median seconds of every stage of every method, without the warm-up."""
    return {
        name: {stage: statistics.median(r.get(stage, 0.0) for r in runs[1:]) for stage in runs[-1]}
        for name, runs in stages.items()
    }
