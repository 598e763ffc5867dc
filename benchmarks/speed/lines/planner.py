"""The planner at every bandwidth: TTFT relative to the better of loading and computing everything.

Chunks are on a throttled SSD; all readers share the bandwidth, and nothing is kept in memory. Each
repetition runs in turn, for each bandwidth: full prefill, the method with the planner off (it loads
whatever is stored) and with the planner on. Each runs `ASKED` times, because it may take only
milliseconds, and both methods run right after a full prefill, because that leaves other data in the
CPU's caches. A sample is the median TTFT with the planner, relative to the smaller median of the
other two. The first repetition is reported separately, because its planner has never read from the
tier. The model has fewer layers, which reduces bytes and operations alike.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.speed.engines import A3, FULL, METHODS, PIE, Prompt, Throttled, answer, place
from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import SsdTier
from kvstitch.service.worker.api import Engine

MB = 1_000_000
BANDWIDTHS = (1.0, 10.0, 100.0, 1000.0)  # MB/s
PLANNED = (A3, PIE)
NEVER = float("inf")
ASKED = 3


def run(setup: Setup) -> Outcome:
    shape, decoder = setup.shape, setup.decoder_of(layers=setup.shape.planner_layers)
    prompt = Prompt(decoder, shape.planner_tokens, shape.chunks, setup.seed)
    stored = prompt.computed(decoder)
    size = sum(chunk.nbytes for chunk in stored.values())
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def engine_at(speed: float, method: str, planner: bool) -> Engine:
            tier = SsdTier(folder / f"{speed}-{method}-{planner}", 1 << 36)
            slow: Any = Throttled(tier, speed * MB)
            tokens = len(prompt.ids)
            return stack.enter_context(place(decoder, slow, tokens, stored, planner=planner))

        engines = {
            (speed, name, on): engine_at(speed, name, on)
            for speed in BANDWIDTHS
            for name in PLANNED
            for on in (True, False)
        }
        for turn in range(setup.repetitions + 1):
            for speed in BANDWIDTHS:
                for name in PLANNED:
                    planning, loading = engines[speed, name, True], engines[speed, name, False]
                    full, load, planned = [], [], []
                    for ask in range(ASKED if turn else 1):
                        asked = prompt.request(f"{name}-{turn}.{ask}", METHODS[name])
                        whole = prompt.request(f"full-{name}-{turn}.{ask}", METHODS[FULL])
                        full.append(answer(planning, whole).ttft_s)
                        planned.append(answer(planning, asked))
                        # Skipped if loading would take longer than 1.5 prefills.
                        if size / (speed * MB) < 1.5 * full[0]:
                            full.append(answer(loading, whole).ttft_s)
                            load.append(answer(loading, asked).ttft_s)
                    full_s, planned_s = median(full), median(p.ttft_s for p in planned)
                    load_s = median(load) if load else None
                    runs.append(
                        {
                            "turn": turn,
                            "mb_per_s": speed,
                            "method": name,
                            "full_s": full_s,
                            "load_s": load_s,
                            "planned_s": planned_s,
                            "ratio": planned_s / min(full_s, NEVER if load_s is None else load_s),
                            "loaded": [
                                sum(d.tier != "cold" for d in p.report.documents) for p in planned
                            ],
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
