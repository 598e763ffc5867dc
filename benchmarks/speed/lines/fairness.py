"""How much a long prompt slows down other answers: their TPOT relative to TPOT without it.

Four streams decode, first undisturbed for some tokens, then while a prompt of 8,192 tokens is
prefilled with A3. A sample is the ratio of the two mean times per token in one repetition. Chunks
are random KV in memory. A full prefill of the same length is measured too, for a limited time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.speed.engines import A3, FULL, METHODS, Prompt, place
from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.setup import Setup
from kvstitch.kvstore import MemoryTier
from kvstitch.service.messages.replies import Done, TokenItem
from kvstitch.service.messages.requests import Generate, Method, Sampling
from kvstitch.service.worker.api import Engine

STREAMS, STREAM_PROMPT, STREAM_ANSWER, ALONE = 4, 64, 8192, 10
LONGEST_S = {A3: 120.0, FULL: 12.0}
TARGETS = {A3: at_most(2.0), FULL: None}


def run(setup: Setup) -> Outcome:
    shape, decoder = setup.shape, setup.decoder
    prompt = Prompt(decoder, shape.long_tokens, shape.long_chunks, setup.seed)
    room = len(prompt.ids) + STREAMS * (STREAM_PROMPT + STREAM_ANSWER)
    samples: dict[str, list[float]] = {A3: [], FULL: []}
    intervals: list[dict[str, Any]] = []
    with place(decoder, MemoryTier(1 << 34), room) as engine:
        for key, chunk in prompt.random_chunks(engine, decoder).items():
            engine.store.put(key, chunk)
        _start_streams(engine, prompt)
        for turn in range(setup.repetitions):
            # One repetition is enough for full prefill.
            for name in (A3, FULL) if turn == 0 else (A3,):
                alone = _alone(engine)
                beside, finished = _beside(engine, prompt, f"{name}-{turn}", name)
                samples[name].append(statistics.fmean(beside) / statistics.fmean(alone))
                intervals.append(
                    {"method": name, "finished": finished, "alone": alone, "beside": beside}
                )
    figures = [
        Figure(
            f"TPOT of {STREAMS} streams beside {name} of {shape.long_tokens} tokens, over alone",
            values,
            TARGETS[name],
        )
        for name, values in samples.items()
    ]
    return Outcome(figures, {"seconds_per_token": intervals})


def _start_streams(engine: Engine, prompt: Prompt) -> None:
    question = prompt.question * (STREAM_PROMPT // len(prompt.question))
    for i in range(STREAMS):
        sampling = Sampling(max_tokens=STREAM_ANSWER)
        engine.submit(Generate(f"s{i}", [], [], question, Method("vanilla"), sampling=sampling))
    while len(engine.scheduler.running) < STREAMS:
        engine.step()
    for _ in range(3):
        engine.step()


def _alone(engine: Engine) -> list[float]:
    left = iter(range(ALONE))
    return _seconds_per_token(engine, lambda _: next(left, None) is None)


def _beside(engine: Engine, prompt: Prompt, label: str, name: str) -> tuple[list[float], bool]:
    engine.submit(prompt.request(label, METHODS[name]))
    give_up_at = time.perf_counter() + LONGEST_S[name]

    def over(events: Any) -> bool:
        done = any(isinstance(e, Done) and e.id == label for e in events)
        return done or time.perf_counter() > give_up_at

    intervals = _seconds_per_token(engine, over)
    finished = engine.scheduler.find(label) is None
    engine.abort(label, "enough")
    engine.step()
    return intervals, finished


def _seconds_per_token(engine: Engine, until: Callable[[Any], bool]) -> list[float]:
    """Seconds between neighbouring tokens of a stream, until `until(events)` is true."""
    out: list[float] = []
    last = time.perf_counter()
    while True:
        events = engine.step()
        if any(isinstance(e, TokenItem) and e.id == "s0" for e in events):
            now = time.perf_counter()
            out.append(now - last)
            last = now
        if until(events):
            return out
