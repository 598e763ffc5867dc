"""Precomputing documents onto an SSD, relative to a plain prefill of the same tokens."""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path

import torch

from benchmarks.speed.engines import Prompt, place
from benchmarks.speed.outcome import Outcome, at_least
from benchmarks.speed.paired import run_paired
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import SsdTier
from kvstitch_tune.prompts import prefill_ids

LONG, SHORT, PLAIN = "precompute to SSD", "precompute of short chunks to SSD", "plain prefill"
SHORT_TOKENS = 128


def run(setup: Setup) -> Outcome:
    shape, decoder, number = setup.shape, setup.decoder, count(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        place(decoder, SsdTier(Path(folder), 1 << 36), shape.tokens) as engine,
    ):

        def fresh(chunks: int) -> Prompt:
            """A prompt whose documents are not stored yet."""
            return Prompt(decoder, shape.tokens, chunks, seed=next(number))

        def precompute(chunks: int) -> None:
            prompt = fresh(chunks)
            for address in prompt.addresses(engine)[
                1:
            ]:  # without the instruction, which is not a document
                engine.precompute_queue.add(address, id="document")
            while engine.precompute_queue.pending:
                if engine.idle:  # as the server does; polling would slow down the writing
                    time.sleep(0.001)
                engine.step()
            engine.store.flush(60)

        def plain() -> None:
            for document in fresh(shape.chunks).documents:
                prefill_ids(decoder, document.ids)

        short = max(1, shape.tokens // SHORT_TOKENS)
        ways = {LONG: lambda: precompute(shape.chunks), SHORT: lambda: precompute(short)}
        with torch.inference_mode():
            paired = run_paired({**ways, PLAIN: plain}, setup.repetitions)
        if engine.precompute_queue.counts["failed"]:
            raise RuntimeError("chunks could not be written")
    what = "precompute tokens/s, written to SSD, over plain prefill of as many tokens"
    figures = [paired.figure(what, PLAIN, LONG, at_least(0.9))]
    what = f"the same with chunks of {SHORT_TOKENS} tokens"
    figures.append(paired.figure(what, PLAIN, SHORT, at_least(0.9)))
    return Outcome(figures, {"seconds": paired.raw()})
