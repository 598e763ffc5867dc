"""The stages of a run: methods, prefix modes, codecs and evictions, then the test part.

    development part   screen   every method and amount on few prompts; the better half goes on
                       prefix   the best ones in every prefix mode
                       storage  the best one with every codec and eviction
    test part          test     what is left, and the fixed defaults, on other prompts

Every stage may go on until a share of the time budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.worker.methods.api import ModelFacts
from tuning.candidates import (
    Candidate,
    codecs,
    evictions,
    fixed_defaults,
    methods,
    prefix_modes,
)
from tuning.prompts import Prompt
from tuning.records import Trials
from tuning.statistics import Bootstrap, Summary, best_within, better_half, frontier, versus

UNTIL = {"screen": 0.45, "prefix": 0.6, "storage": 0.7, "test": 1.0}
"""Share of the time budget that is spent when a stage ends."""
SCREENED_PREFIX = "system"
FIRST_CUT = 2
"""Prompts after which the worse half is dropped for the first time; then after twice as many."""
LEFT = 6
"""Candidates that are never dropped by halving."""
LEADERS = 3
"""Candidates whose prefix modes are compared."""
FINALISTS = 6
LEAST_TEST = 4
TOLERANCE = 0.01
TOLERANCE_SHARE = 0.1
"""A smaller codec may cost this much mean KL in nats, or this share of it, whichever is more."""


@dataclass(frozen=True)
class Stage:
    """What a stage has measured.

    Attributes:
        name: Of the stage.
        prompts: Number of prompts that the candidates left at its end were measured on.
        summaries: Of all its candidates; those dropped early have fewer trials.
    """

    name: str
    prompts: int
    summaries: list[Summary]

    @property
    def left(self) -> list[Summary]:
        """The candidates that were left at the end."""
        return [s for s in self.summaries if len(s.trials) == self.prompts]

    def find(self, candidate: Candidate) -> Summary:
        return next(s for s in self.summaries if s.candidate.key == candidate.key)


class Stages:
    """Runs the stages of one run.

    Args:
        trials: Measures and records.
        development: Prompts to choose by.
        test: Prompts that decide nothing but whether the choice holds.
        fixed: The defaults of the service, which the choice must be at least as good as.
        facts: Sizes and calibration of the model.
        has_bos: Whether the model has a token that begins every prompt.
        seed: Of the intervals.
    """

    def __init__(
        self,
        trials: Trials,
        development: Sequence[Prompt],
        test: Sequence[Prompt],
        fixed: Candidate,
        *,
        facts: ModelFacts,
        has_bos: bool,
        seed: int,
    ) -> None:
        self._trials = trials
        self._development = development
        self._test = test
        self._fixed = fixed
        self._facts = facts
        self._has_bos = has_bos
        self._seed = seed

    def screen(self) -> Stage:
        """Every method over its range of costs; halved after 2, 4, 8, … prompts."""
        lengths = sorted(len(ids) for p in self._development for ids in p.documents)
        typical = lengths[len(lengths) // 2] if lengths else 0
        everything = methods(SCREENED_PREFIX, self._facts.layers, document_tokens=typical)
        baseline = fixed_defaults(SCREENED_PREFIX)
        live, done, cut = everything, list[Prompt](), FIRST_CUT
        for prompt in self._development:
            if len(done) >= FIRST_CUT and self._over("screen") and not self._known(prompt, live):
                break
            done += self._measure("screen", [prompt], live)
            if len(done) == cut:
                kept = better_half(self._summaries(live, done), LEFT)
                live = [c for c in live if c in kept or c.key == baseline.key]
                cut *= 2
        stages = [self._own_summary(c, done) for c in everything]
        return Stage("screen", len(done), stages)

    def prefix(self, screened: Stage) -> Stage:
        """The best of the screened ones at the fixed defaults' cost, in every prefix mode."""
        cost = screened.find(fixed_defaults(SCREENED_PREFIX)).operations
        leaders: list[Candidate] = []
        rest = list(screened.left)
        while rest and len(leaders) < LEADERS:
            best = best_within(rest, max(cost, min(s.operations for s in rest)))
            leaders.append(best.candidate)
            rest.remove(best)
        compared = prefix_modes(leaders, has_bos=self._has_bos)
        return self._stage("prefix", self._development, compared, least=FIRST_CUT)

    def storage(self, best: Candidate) -> Stage:
        """Return one candidate with every codec and every eviction."""
        lengths = sorted(p.tokens for p in self._development)
        typical = lengths[len(lengths) // 2]
        compared = [
            best,
            *codecs(best),
            *evictions(best, prompt_tokens=typical, facts=self._facts),
        ]
        return self._stage("storage", self._development, compared, least=FIRST_CUT)

    def test(self, screened: Stage, best: Candidate) -> Stage:
        """Return the fixed defaults, the choice, and the frontier in its prefix mode and codec."""
        served = [
            replace(s.candidate, prefix_mode=best.prefix_mode, codec=best.codec)
            for s in _spread(frontier(screened.left), FINALISTS)
        ]
        finalists = {c.key: c for c in (self._fixed, best, replace(best, codec="raw"), *served)}
        return self._stage("test", self._test, list(finalists.values()), least=LEAST_TEST)

    def codec_of(self, storage: Stage, best: Candidate) -> Candidate:
        """The candidate with the smallest codec that is as good as raw, within the tolerance."""
        raw = storage.find(best)
        bootstrap = Bootstrap(storage.prompts, seed=self._seed)
        allowed = max(TOLERANCE, TOLERANCE_SHARE * raw.kl.mean)
        smaller = [storage.find(c) for c in codecs(best)]
        good = [s for s in smaller if versus(s, raw, bootstrap).difference.high <= allowed]
        return min([raw, *good], key=lambda s: s.bytes).candidate

    def holding(self, tested: Stage, best: Candidate) -> Summary:
        """The choice if it is at least as near to full prefill as the fixed defaults on the test
        part; else the same with raw chunks; else the fixed defaults."""
        fixed = tested.find(self._fixed)
        for candidate in (best, replace(best, codec="raw")):
            found = tested.find(candidate)
            if found.kl.mean <= fixed.kl.mean:
                return found
        return fixed

    def _stage(
        self, name: str, prompts: Sequence[Prompt], candidates: Sequence[Candidate], *, least: int
    ) -> Stage:
        done = self._measure(name, prompts, candidates, least=least)
        return Stage(name, len(done), self._summaries(candidates, done))

    def _measure(
        self,
        name: str,
        prompts: Sequence[Prompt],
        candidates: Sequence[Candidate],
        *,
        least: int = 1,
    ) -> list[Prompt]:
        return self._trials.measure_all(name, prompts, candidates, until=UNTIL[name], least=least)

    def _over(self, name: str) -> bool:
        return self._trials.budget.left_until(UNTIL[name]) <= 0

    def _known(self, prompt: Prompt, candidates: Sequence[Candidate]) -> bool:
        return self._trials.known(prompt, candidates)

    def _summaries(
        self, candidates: Sequence[Candidate], prompts: Sequence[Prompt]
    ) -> list[Summary]:
        bootstrap = Bootstrap(len(prompts), seed=self._seed)
        return [Summary.of(c, self._trials.of(c, prompts), bootstrap) for c in candidates]

    def _own_summary(self, candidate: Candidate, prompts: Sequence[Prompt]) -> Summary:
        """Over the prompts that this candidate was measured on."""
        return self._summaries([candidate], self._trials.complete([candidate], prompts))[0]


def _spread(summaries: Sequence[Summary], count: int) -> list[Summary]:
    """Return at most `count` of them, evenly spaced, first and last among them."""
    if len(summaries) <= count:
        return list(summaries)
    last = len(summaries) - 1
    return [summaries[round(i * last / (count - 1))] for i in range(count)]
