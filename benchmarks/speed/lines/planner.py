"""Never slower than the better of loading everything and computing everything, at any bandwidth.

Chunks lie on an SSD behind a throttle (all readers share it; nothing is kept in memory). Each
repetition runs, in turn and per bandwidth: full prefill, the method with the planner off (loads
whatever is stored), and with it on. A sample is TTFT with the planner over the lesser of the other
two of its repetition. The first repetition is told separately: its planner has never read that
tier. The shape has fewer layers: bytes and operations shrink alike.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.speed.engines import A3, FULL, METHODS, PIE, Prompt, Throttled, answer, place
from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.setup import Setup
from kvstore import SsdTier
from service.worker.engine import Engine

MB = 1_000_000
BANDWIDTHS = (1.0, 10.0, 100.0, 1000.0)  # MB/s
PLANNED = (A3, PIE)
NEVER = float("inf")


def run(setup: Setup) -> Outcome:
    shape, adapter = setup.shape, setup.adapter_of(layers=setup.shape.planner_layers)
    prompt = Prompt(adapter, shape.planner_tokens, shape.chunks, setup.seed)
    stored = prompt.computed(adapter)
    size = sum(chunk.nbytes for chunk in stored.values())
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def engine_at(speed: float, method: str, planner: bool) -> Engine:
            tier = SsdTier(folder / f"{speed}-{method}-{planner}", 1 << 36)
            slow: Any = Throttled(tier, speed * MB)
            tokens = len(prompt.ids)
            return stack.enter_context(place(adapter, slow, tokens, stored, planner=planner))

        engines = {
            (speed, name, on): engine_at(speed, name, on)
            for speed in BANDWIDTHS
            for name in PLANNED
            for on in (True, False)
        }
        for turn in range(setup.repetitions + 1):
            for speed in BANDWIDTHS:
                for name in PLANNED:
                    label, method = f"{name}-{turn}", METHODS[name]
                    planning, loading = engines[speed, name, True], engines[speed, name, False]
                    full = answer(planning, prompt.request(f"full-{turn}", METHODS[FULL])).ttft_s
                    planned = answer(planning, prompt.request(label, method))
                    load = NEVER  # what would take longer than 1.5 prefills is not run
                    if size / (speed * MB) < 1.5 * full:
                        load = answer(loading, prompt.request(label, method)).ttft_s
                    runs.append(
                        {
                            "turn": turn,
                            "mb_per_s": speed,
                            "method": name,
                            "full_s": full,
                            "load_s": load if load < NEVER else None,
                            "planned_s": planned.ttft_s,
                            "ratio": planned.ttft_s / min(full, load),
                            "loaded": sum(d.tier != "cold" for d in planned.report.documents),
                        }
                    )
    figures = [
        Figure(
            f"TTFT of {name} over min(load, cold prefill), tier at {speed:g} MB/s",
            [
                r["ratio"]
                for r in runs
                if (r["mb_per_s"], r["method"]) == (speed, name) and r["turn"]
            ],
            at_most(1.05),
        )
        for speed in BANDWIDTHS
        for name in PLANNED
    ]
    first = max(r["ratio"] for r in runs if not r["turn"])
    note = f"the first request of a tier that has never been read: at most {first:.2f}"
    return Outcome(figures, {"bytes": size, "runs": runs}, [note])
