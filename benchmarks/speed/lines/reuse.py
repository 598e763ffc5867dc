"""Reuse does not decay: new combinations and orders of known documents are always hits.

The real engine with a tiny model, because the counts do not depend on the model's size. Memory
holds a quarter of the documents, the SSD all. Every request has four documents in random order.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch

from benchmarks.common.engine import open_engine, precompute_now
from benchmarks.common.shapes import random_qwen2
from benchmarks.speed.engines import answer
from benchmarks.speed.outcome import Figure, Outcome, at_least, at_most
from benchmarks.speed.setup import Setup
from kvstore import MemoryTier, SsdTier, TieredStore
from service.messages.requests import ChunkTokens, Generate, Method, Sampling
from service.worker.api import decoder_for

TOKENS, DRAWN, ENDS = 48, 4, 100
METHOD = Method("a3", {"ratio": 0.15})


def run(setup: Setup) -> Outcome:
    shape = setup.shape
    decoder = decoder_for(random_qwen2("tiny", seed=setup.seed))
    chooser = random.Random(setup.seed)
    vocabulary = range(decoder.vocabulary)
    system = chooser.choices(vocabulary, k=16)
    documents = [
        ChunkTokens(i, chooser.choices(vocabulary, k=TOKENS)) for i in range(shape.documents)
    ]
    memory = shape.documents * TOKENS * decoder.kv_bytes_per_token // 4
    hits: list[bool] = []
    seen: set[tuple[int, ...]] = set()
    with (
        tempfile.TemporaryDirectory() as folder,
        TieredStore([MemoryTier(memory), SsdTier(Path(folder), 1 << 32)]) as store,
    ):
        with open_engine(decoder, store, pool_tokens=1024, planner=False) as engine:
            with torch.inference_mode():
                for address in engine.admission.addresses(system, documents, "none", ""):
                    assert address is not None
                    precompute_now(engine, address)
            store.flush(60)
            known = store.stats().new_keys
            for number in range(shape.requests):
                drawn = chooser.sample(documents, DRAWN)
                seen.add(tuple(d.chunk_id for d in drawn))
                question = chooser.choices(vocabulary, k=8)
                sampling = Sampling(max_tokens=1)
                request = Generate(str(number), system, drawn, question, METHOD, sampling=sampling)
                report = answer(engine, request).report
                hits.append(all(d.tier != "cold" for d in report.documents))
        store.flush(60)
        written = store.stats().new_keys - known
    ends = min(ENDS, len(hits))
    first, last = sum(hits[:ends]) / ends, sum(hits[-ends:]) / ends
    asked = f"{shape.requests} requests over {shape.documents} documents"
    return Outcome(
        [
            Figure(f"new document keys after {asked}", [float(written)], at_most(0), "keys"),
            Figure(
                f"hit rate in the last {ends} over the first {ends}", [last / first], at_least(1)
            ),
        ],
        {"combinations": len(seen), "hit_rate": {"first": first, "last": last}},
    )
