"""How well loading overlaps with computing: TTFT of A3, relative to the longer of the two alone.

Chunks are on an SSD, whose pages are dropped from the page cache before every read. The SSD is used
at full speed, and throttled so that loading alone takes as long as computing alone, where only true
overlap helps. Each repetition measures in turn: loading alone, computing alone (with chunks in
memory), and TTFT.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.engines import A3, METHODS, Prompt, Throttled, answer, place
from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import MemoryTier, SsdTier
from kvstitch.service.worker.api import Engine

PLAIN, SLOWED = "SSD", "SSD as slow as computing"


def run(setup: Setup) -> Outcome:
    shape, decoder = setup.shape, setup.decoder
    prompt = Prompt(decoder, shape.tokens, shape.chunks, setup.seed)
    stored, tokens = prompt.computed(decoder), len(prompt.ids)
    nbytes = sum(chunk.nbytes for chunk in stored.values())
    runs: dict[str, list[dict[str, Any]]] = {PLAIN: [], SLOWED: []}
    a3 = METHODS[A3]
    with (
        tempfile.TemporaryDirectory() as folder,
        place(decoder, MemoryTier(1 << 33), tokens, stored) as memory,
    ):
        answer(memory, prompt.request("warm-up", a3))
        pace = answer(memory, prompt.request("pace", a3)).ttft_s
        for label, mine in runs.items():
            path = Path(folder) / str(len(label))
            tier: Any = SsdTier(path, 1 << 36)
            if label == SLOWED:
                tier = Throttled(tier, nbytes / pace)
            with place(decoder, tier, tokens, stored) as engine:
                for turn in range(setup.repetitions):
                    drop_pages(path)
                    loading = load_alone(engine, prompt)
                    computing = answer(memory, prompt.request(f"c{turn}", a3)).ttft_s
                    drop_pages(path)
                    both = answer(engine, prompt.request(f"b{turn}", a3))
                    mine.append(
                        {
                            "load_s": loading,
                            "compute_s": computing,
                            "ttft_s": both.ttft_s,
                            "stages": both.report.stages,
                        }
                    )
    figures = [
        Figure(
            f"TTFT from {label} over max(load alone, compute alone)",
            [r["ttft_s"] / max(r["load_s"], r["compute_s"]) for r in mine],
            at_most(1.15),
        )
        for label, mine in runs.items()
    ]
    return Outcome(figures, {"bytes": nbytes, "runs": runs})


def load_alone(engine: Engine, prompt: Prompt) -> float:
    """Seconds until every layer of every chunk is loaded."""
    started = time.perf_counter()
    streams = [engine.loader.join(a, "ssd") for a in prompt.addresses(engine)]
    for stream in streams:
        for part in stream.part_futures:
            part.result()
    seconds = time.perf_counter() - started
    if any(stream.lost for stream in streams):
        raise RuntimeError("a chunk that was just stored is gone")
    return seconds


def drop_pages(folder: Path) -> None:
    """Drops the files from the page cache, so that the next read goes to the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
