"""Time per token for several batch sizes and eviction budgets; for the plots, no target.

A budget is the share of each prompt's KV that is kept, unevenly over layers and heads.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.speed.contexts import decode, evict, filled, pool_for, spread
from benchmarks.speed.outcome import Figure, Outcome
from benchmarks.speed.paired import run_paired
from benchmarks.speed.setup import Setup
from service.worker.api import BatchDecoder


def run(setup: Setup) -> Outcome:
    shape, decoder = setup.shape, setup.decoder
    steps = max(2, shape.answer // 4)
    room = steps * (setup.repetitions + 1) * len(shape.batches) + 1
    most = max(shape.batches)
    lengths = spread(shape.tokens, most)
    pool = pool_for(decoder, lengths * len(shape.budgets), room)
    decoding = BatchDecoder(decoder, pool)
    ways = {}
    for budget in shape.budgets:
        contexts = [filled(pool, n, room) for n in lengths]
        for number, context in enumerate(contexts):
            if budget < 1:
                evict(context, budget, room, seed=number)
        for batch in shape.batches:
            ways[f"{batch} {budget}"] = partial(decode, decoding, contexts[:batch], steps)
    with torch.inference_mode():
        paired = run_paired(ways, setup.repetitions)
    tpot = {name: [s / steps for s in taken.wall] for name, taken in paired.taken.items()}
    figures = [
        Figure(
            f"TPOT at batch {most}, all KV over {budget:g} of it",
            paired.ratios(f"{most} {shape.budgets[0]}", f"{most} {budget}"),
        )
        for budget in shape.budgets[1:]
    ]
    return Outcome(figures, {"steps": steps, "tpot_s": tpot})
