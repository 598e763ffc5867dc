"""Decoding relative to transformers' `generate`; a batch relative to batch 1.

Only decoding is timed: contexts are random KV that is put directly into our pool and into
transformers' cache. All decode greedily, one forward per token. transformers uses an unmodified
model with the same weights. The batch has contexts of different lengths around that of batch 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.speed.contexts import decode, filled, pool_for, spread
from benchmarks.speed.generate import Generate
from benchmarks.speed.outcome import Outcome, at_least
from benchmarks.speed.paired import Work, run_paired
from benchmarks.speed.setup import Setup
from kvstitch.service.worker.api import BatchDecoder

BATCH = 8
OURS, EIGHT = "ours, batch 1", "ours, batch 8"
THEIRS = "transformers generate, batch 1"


def run(setup: Setup) -> Outcome:
    shape, decoder, steps = setup.shape, setup.decoder, setup.shape.answer
    lengths = spread(shape.tokens, BATCH)
    room = steps * (setup.repetitions + 1) + 1
    pool = pool_for(decoder, [shape.tokens, *lengths], room)
    decoding = BatchDecoder(decoder, pool)
    one = [filled(pool, shape.tokens, room)]
    eight = [filled(pool, n, room) for n in lengths]
    theirs = Generate(setup.stock, shape.tokens)
    ways: dict[str, Work] = {
        OURS: partial(decode, decoding, one, steps),
        THEIRS: partial(theirs.decode, steps),
        EIGHT: partial(decode, decoding, eight, steps),
    }
    before: dict[str, Work] = {THEIRS: theirs.fill}
    with torch.inference_mode():
        paired = run_paired(ways, setup.repetitions, before=before)
    figures = [
        paired.figure(
            f"decode tokens/s over transformers generate, {shape.tokens} context, batch 1",
            THEIRS, OURS, at_least(1.5),
        ),
        paired.figure("decode tokens/s at batch 8 over batch 1", OURS, EIGHT, at_least(3), BATCH),
    ]  # fmt: skip
    samples: dict[str, Any] = {"steps": steps, "seconds": paired.raw()}
    return Outcome(figures, samples)
