"""TTFT at other lengths of prompts: unrecorded, with recorded layers, and over int8 chunks.

Beside each time stand the launches that CUDA's own runtime counts (torch.profiler), and how long
the device was busy: what is left of the time is waiting for launches, or for copies.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from functools import partial
from itertools import count
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.run import Run, synchronised
from benchmarks.speed.engines import A3, FULL, METHODS, PIE, SCOUT, Prompt, answer, place
from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.paired import Work, run_paired
from kvstitch.kvstore import EncodedChunk, MemoryTier

Chunks = dict[str, EncodedChunk]
NAMES = (FULL, A3, SCOUT, PIE)
WAYS = {
    "unrecorded": (False, "raw"),
    "recorded layers": (True, "raw"),
    "int8 chunks, recorded layers": (True, "int8"),
}
"""Whether layers are recorded, and the codec of the chunks."""
TARGETS = {
    2048: {PIE: 0.2, A3: 0.3, SCOUT: 0.4},
    8192: {PIE: 0.1, A3: 0.22, SCOUT: 0.28},
}
"""Of the TTFT over full prefill's, with recorded layers."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync")
RECORDING_S = 20.0
"""Longest that recording in spare time is waited for."""


def contexts(run: Run) -> Outcome:
    """TTFT over full prefill by method and length; each line is printed when it is measured."""
    figures: list[Figure] = []
    samples: dict[str, Any] = {}
    for tokens in run.contexts:
        prompt = Prompt(run.decoder, tokens, run.chunks, 0)
        chunks: dict[str, Chunks] = {}  # by codec: making them takes longer than all prefills
        for way, (graphs, codec) in WAYS.items():
            name = f"{tokens} tokens, {way}"
            found, samples[name] = _one(run, prompt, name, graphs, codec, chunks)
            figures += found
    return Outcome(figures, samples)


def _one(
    run: Run, prompt: Prompt, label: str, graphs: bool, codec: str, chunks: dict[str, Chunks]
) -> tuple[list[Figure], dict[str, Any]]:
    number, tier = count(), MemoryTier(64 << 30)
    room = 2 * len(prompt.ids)  # recordings are compared on another prompt
    with place(run.decoder, tier, room, graphs=graphs, codec=codec) as engine:
        if codec not in chunks:
            chunks[codec] = prompt.random_chunks(engine, run.decoder)
        for key, chunk in chunks[codec].items():
            engine.store.put(key, chunk)

        def ttft(method: str) -> None:
            answer(engine, prompt.request(str(next(number)), METHODS[method]))

        ways: dict[str, Work] = {
            name: synchronised(run.decoder, partial(ttft, name)) for name in NAMES
        }
        for way in ways.values():  # what it would have replayed is recorded behind it
            way()
            give_up = time.monotonic() + RECORDING_S
            while not engine.idle_work.idle and time.monotonic() < give_up:
                engine.step()
        paired = run_paired(ways, run.repetitions)
        asked = {name: _asked(run, way) for name, way in ways.items()}
    targets = TARGETS.get(sum(len(d.ids) for d in prompt.documents), {})
    for name in NAMES:
        ms = 1e3 * statistics.median(paired.taken[name].wall)
        print(f"{label}: {name} {ms:.2f} ms, {asked[name]}", flush=True)
    figures = [
        paired.figure(
            f"{name} over full prefill, {label}", name, FULL,
            at_most(targets.get(name, 1.0)),
        )
        for name in NAMES[1:]
    ]  # fmt: skip
    return figures, {"seconds": paired.raw(), "asked": asked}


def _asked(run: Run, way: Work) -> dict[str, float]:
    """Return launches by kind, and milliseconds in which the device was busy; nothing on a CPU."""
    if run.decoder.device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        way()
    launches = Counter[str]()
    busy_us = 0.0
    for event in profiled.events():
        for kind in LAUNCHES:
            if event.name.startswith(kind):
                launches[kind] += 1
        if event.device_type.name == "CUDA":
            busy_us += event.time_range.elapsed_us()
    return {**launches, "busy_ms": round(busy_us / 1e3, 2)}
