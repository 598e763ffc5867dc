"""TTFT of A3 relative to full prefill for a long prompt, where attention is a larger part."""

from __future__ import annotations

from functools import partial
from itertools import count

from benchmarks.speed.engines import A3, FULL, METHODS, Prompt, answer, place, precompute
from benchmarks.speed.outcome import Outcome, at_most
from benchmarks.speed.paired import Work, run_paired
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import MemoryTier


def run(setup: Setup) -> Outcome:
    shape, decoder, number = setup.shape, setup.decoder, count()
    prompt = Prompt(decoder, shape.long_tokens, shape.long_chunks, setup.seed)
    with place(decoder, MemoryTier(4 << 30), len(prompt.ids)) as engine:
        precompute(engine, prompt)

        def ttft(name: str) -> None:
            answer(engine, prompt.request(str(next(number)), METHODS[name]))

        ways: dict[str, Work] = {name: partial(ttft, name) for name in (A3, FULL)}
        # Precomputing has warmed up already.
        paired = run_paired(ways, setup.repetitions, warm_up=False)
    what = f"TTFT of A3 r=0.15 over full prefill, {shape.long_tokens} tokens"
    return Outcome([paired.figure(what, A3, FULL, at_most(0.20))], {"seconds": paired.raw()})
