"""TTFT for several context lengths, ratios and tiers; for the plots, no target."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common.redis import redis_url
from benchmarks.speed.engines import A3, FULL, METHODS, PIE, SCOUT, Prompt, answer, place
from benchmarks.speed.outcome import Figure, Outcome
from benchmarks.speed.paired import Paired, Work, run_paired
from benchmarks.speed.setup import Setup
from kvstore import MemoryTier, RedisTier, SsdTier
from kvstore.tiers.base import Tier
from service.messages.requests import Method
from service.worker.api import Engine

BY_RATIO = ("a3", "question_scout", "cacheblend")
SHORT = 2  # the ratio and tier sweeps take 1/SHORT of the prompt


def run(setup: Setup) -> Outcome:
    contexts = {str(n): _raw(by_context(setup, n)) for n in setup.shape.contexts}
    ratios, tiers = by_ratio(setup), by_tier(setup)
    figures = [
        Figure(f"TTFT of {name} at {n} tokens over full prefill", _over(taken, name, FULL))
        for n, taken in contexts.items()
        for name in (A3, SCOUT, PIE)
    ]
    figures += [
        tiers.figure(f"TTFT of A3 from {tier} over that from memory", tier, "memory")
        for tier in ("ssd", "redis")
    ]
    samples = {"contexts": contexts, "ratios": _raw(ratios), "tiers": _raw(tiers)}
    return Outcome(figures, samples)


def by_context(setup: Setup, tokens: int) -> Paired:
    prompt = Prompt(setup.decoder, tokens, setup.shape.chunks, setup.seed)
    with _in_memory(setup, prompt) as engine:
        return _ttft(setup, engine, prompt, METHODS)


def by_ratio(setup: Setup) -> Paired:
    """TTFT by `method ratio` for every ratio, and of full prefill."""
    prompt = Prompt(setup.decoder, setup.shape.tokens // SHORT, setup.shape.chunks, setup.seed)
    methods = {FULL: METHODS[FULL]} | {
        f"{name} {ratio}": Method(name, {"ratio": ratio})
        for name in BY_RATIO
        for ratio in setup.shape.ratios
    }
    with _in_memory(setup, prompt) as engine:
        return _ttft(setup, engine, prompt, methods)


def by_tier(setup: Setup) -> Paired:
    """TTFT of A3 with its chunks in only one tier."""
    prompt = Prompt(setup.decoder, setup.shape.tokens // SHORT, setup.shape.chunks, setup.seed)
    chunks, number = prompt.computed(setup.decoder), count()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(redis_url())
        tiers: dict[str, Tier] = {
            "memory": MemoryTier(4 << 30),
            "ssd": SsdTier(folder, 1 << 36),
            "redis": RedisTier(url, timeout_s=10, deadline_s=60),
        }
        engines = {
            name: stack.enter_context(place(setup.decoder, tier, len(prompt.ids), chunks))
            for name, tier in tiers.items()
        }

        def ttft(name: str) -> None:
            answer(engines[name], prompt.request(str(next(number)), METHODS[A3]))

        return run_paired({name: partial(ttft, name) for name in tiers}, setup.repetitions)


@contextmanager
def _in_memory(setup: Setup, prompt: Prompt) -> Iterator[Engine]:
    with place(setup.decoder, MemoryTier(4 << 30), len(prompt.ids)) as engine:
        for key, chunk in prompt.random_chunks(engine, setup.decoder).items():
            engine.store.put(key, chunk)
        yield engine


def _ttft(setup: Setup, engine: Engine, prompt: Prompt, methods: dict[str, Method]) -> Paired:
    number = count()

    def ttft(method: Method) -> None:
        answer(engine, prompt.request(str(next(number)), method))

    ways: dict[str, Work] = {name: partial(ttft, method) for name, method in methods.items()}
    return run_paired(ways, setup.repetitions)


def _raw(paired: Paired) -> dict[str, list[float]]:
    return {name: taken.wall for name, taken in paired.taken.items()}


def _over(taken: dict[str, Any], name: str, other: str) -> list[float]:
    return [a / b for a, b in zip(taken[name], taken[other], strict=True)]
