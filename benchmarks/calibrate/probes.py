"""Probes for `benchmarks.calibrate`: hidden facts, and stories of the demo language's tasks.

`needle` works with any model. `demo` uses wordings that the embedded model was trained on.
"""

from __future__ import annotations

import random
import re

from demo.language import tasks
from tuning.head_scores import Probe, Prober

KINDS = ("needle", "demo")
TRIES = 50  # attempts to draw a task whose answer is in the context exactly once


class DemoProber(Prober):
    """Makes probes of both kinds; the i-th of a kind depends only on the seed and i."""

    def make(self, kind: str, number: int, seed: int) -> Probe:
        rng = random.Random(f"{seed} {kind} {number}")
        return self.needle(rng) if kind == "needle" else self.demo(rng, number)

    def demo(self, rng: random.Random, number: int) -> Probe:
        """A held-out story of one of the demo tasks, which take turns.

        If the answer is not exactly once in the context, another story or task is drawn.
        """
        names = list(tasks.TASKS)
        for attempt in range(TRIES):
            name = names[(number + attempt // 10) % len(names)]
            drawn = tasks.sample(name, rng)
            answer = drawn.answers[0]
            found = list(re.finditer(rf"\b{re.escape(answer)}\b", drawn.context))
            if len(found) == 1:
                fact = _sentence(drawn.context, found[0].start(), found[0].end())
                return self.hidden(drawn.context, fact, drawn.question, answer)
        raise AssertionError("no demo task has its answer in its context")


def _sentence(text: str, start: int, end: int) -> str:
    """The sentence around text[start:end]."""
    borders = [match.end() for match in re.finditer(r"\. |\n", text[:start])]
    stop = re.compile(r"\.|\n").search(text, end)
    first = max(borders, default=0)
    return text[first : len(text) if stop is None else stop.end()].strip()
