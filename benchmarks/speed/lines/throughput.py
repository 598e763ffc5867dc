"""Requests per second of several at once: A3 relative to transformers' continuous batching.

Every prompt has its own documents, which for A3 are in the memory tier. Both answer with the same
number of tokens. transformers starts and stops its worker thread in every call, which takes about a
second, and may process a whole prompt in one forward.
"""

from __future__ import annotations

from functools import partial
from itertools import count

from benchmarks.speed.engines import (
    A3,
    METHODS,
    Prompt,
    answer,
    answer_all,
    place,
)  # fmt: skip
from benchmarks.speed.generate import generate_batch
from benchmarks.speed.outcome import Outcome, at_least
from benchmarks.speed.paired import run_paired
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import MemoryTier

OURS, THEIRS = "a3 r=0.15", "transformers generate_batch"


def run(setup: Setup) -> Outcome:
    shape, decoder, stock, number = setup.shape, setup.decoder, setup.stock, count()
    prompts = [
        Prompt(decoder, shape.tokens, shape.chunks, setup.seed + i)
        for i in range(shape.concurrency)
    ]
    ids = [prompt.ids for prompt in prompts]
    room = sum(len(one) + shape.answer for one in ids)
    with place(decoder, MemoryTier(4 << 30), room) as engine:
        for prompt in prompts:
            for key, chunk in prompt.random_chunks(engine, decoder).items():
                engine.store.put(key, chunk)

        def ours() -> None:
            answer_all(
                engine,
                [p.request(str(next(number)), METHODS[A3], shape.answer) for p in prompts],
            )

        theirs = partial(generate_batch, stock, ids, shape.answer, len(ids[0]))
        answer(engine, prompts[0].request("warm-up", METHODS[A3], 2))
        generate_batch(stock, [ids[0][:64]], 2, 64)
        paired = run_paired({OURS: ours, THEIRS: theirs}, setup.repetitions, warm_up=False)
    what = f"A3 requests/s at concurrency {shape.concurrency} over transformers generate_batch"
    note = f"{shape.tokens}-token prompts, {shape.answer}-token answers"
    return Outcome(
        [paired.figure(what, THEIRS, OURS, at_least(3))], {"seconds": paired.raw()}, [note]
    )
