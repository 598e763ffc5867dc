"""The stages of a run: methods, prefix modes, codecs and evictions, then the test part.

    development part   screen   methods and amounts race: the better half goes on
                       prefix   the best ones in the prefix modes
                       storage  the best one with codecs and evictions
    test part          test     what is left, and the fixed defaults, on other prompts

Every stage may go on until a share of the time budget is spent. Its candidates are in the order in
which they are worth trying: those that the time does not suffice for are left out, and are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvstitch.service.worker.methods.api import ModelFacts
from kvstitch_tune.candidates import (
    Candidate,
    codecs,
    evictions,
    methods,
    prefix_modes,
)
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import Trials
from kvstitch_tune.statistics import (
    SAME_COST,
    Bootstrap,
    Summary,
    best_within,
    better_half,
    frontier,
    versus,
)

UNTIL = {"heads": 0.05, "screen": 0.3, "prefix": 0.5, "storage": 0.6, "test": 1.0}
"""Share of the time budget that is spent when a stage ends; heads and layers come before all."""
LEAST_TEST = 4
LEAST_RECOMMENDED = 12
"""Test prompts without which nothing is recommended: chance decides between fewer."""
NEARLY = LEAST_RECOMMENDED - 2
"""With so many the missing ones are measured too, even if that takes longer."""
FIRST_PROMPT = {"screen": 5, "prefix": 3, "storage": 3, "test": LEAST_RECOMMENDED}
"""A stage's first prompt may take one part in so many of its time. Screening eight prompts takes
some five times as long as the first: two of all candidates, two of half, four of LEFT."""
BETWEEN_LOOKS = 4
"""Candidates that are measured on a stage's first prompt between two looks at the clock."""
SCREENED_PREFIX = "system"
FIRST_CUT = 2
"""Prompts after which the worse half is dropped for the first time; then after twice as many."""
LEFT = 6
"""Candidates that are never dropped by halving."""
LEADERS = 3
"""Candidates whose prefix modes are compared."""
FINALISTS = 6
TOLERANCE = 0.002
TOLERANCE_SHARE = 0.1
"""A smaller codec may cost this much mean KL in nats, or this share of it, whichever is more.
With int4 chunks, whose KL was 0.018 instead of 0.015, 60 % of 98 answers were full prefill's
instead of 70 % (plugins/tune/README.md)."""


@dataclass(frozen=True)
class Stage:
    """What a stage has measured."""

    name: str
    prompts: int
    summaries: list[Summary]
    left_out: int = 0

    @property
    def left(self) -> list[Summary]:
        """The candidates that were left at the end."""
        return [s for s in self.summaries if len(s.trials) == self.prompts]

    def find(self, candidate: Candidate) -> Summary:
        return next(s for s in self.summaries if s.candidate.key == candidate.key)


class Stages:
    """Runs the stages of one run."""

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

    def probe(self) -> float:
        """Measure the fixed defaults on the first development prompt."""
        first = self._development[:1]
        before = self._trials.budget.spent
        known = all(self._known(prompt, [self._fixed]) for prompt in first)
        for prompt in first:
            self._trials.measure(prompt, [self._fixed])
        return 0.0 if known else self._trials.budget.spent - before

    def screen(self) -> Stage:
        """Methods over their range of costs; halved after 2, 4, 8, … prompts."""
        lengths = sorted(len(ids) for p in self._development for ids in p.documents)
        typical = lengths[len(lengths) // 2] if lengths else 0
        everything = methods(SCREENED_PREFIX, self._facts, document_tokens=typical)
        tried = self._tried("screen", self._development, everything)
        baseline = replace(self._fixed, prefix_mode=SCREENED_PREFIX)
        live, done, cut = tried, list[Prompt](), FIRST_CUT
        for prompt in self._development:
            if len(done) >= FIRST_CUT and self._over("screen") and not self._known(prompt, live):
                break
            done += self._measure("screen", [prompt], live, before=len(done))
            if len(done) == cut:
                kept = better_half(self._summaries(live, done), LEFT)
                live = [c for c in live if c in kept or c.key == baseline.key]
                cut *= 2
        summaries = [self._own_summary(c, done) for c in tried]
        return Stage("screen", len(done), summaries, len(everything) - len(tried))

    def prefix(self, screened: Stage) -> Stage:
        """The best of the screened ones at the fixed defaults' cost, in the prefix modes."""
        cost = screened.find(replace(self._fixed, prefix_mode=SCREENED_PREFIX)).operations
        leaders: list[Candidate] = []
        rest = list(screened.left)
        while rest and len(leaders) < LEADERS:
            best = best_within(rest, max(cost, min(s.operations for s in rest)))
            leaders.append(best.candidate)
            rest.remove(best)
        compared = prefix_modes(leaders, self._fixed.prefix_mode, has_bos=self._has_bos)
        return self._stage("prefix", self._development, compared, least=FIRST_CUT)

    def storage(self, best: Candidate) -> Stage:
        """Return one candidate with codecs and evictions."""
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
        named = {c.key: c for c in (self._fixed, best, replace(best, codec="raw"), *served)}
        finalists = list(named.values())
        stage = self._stage("test", self._test, finalists, least=LEAST_TEST)
        if NEARLY <= stage.prompts < LEAST_RECOMMENDED:
            stage = self._stage("test", self._test, finalists, least=LEAST_RECOMMENDED)
        return stage

    def codec_of(self, storage: Stage, best: Candidate) -> Candidate:
        """The candidate with the smallest codec that is as good as raw, within the tolerance."""
        raw = storage.find(best)
        bootstrap = Bootstrap(storage.prompts, seed=self._seed)
        allowed = max(TOLERANCE, TOLERANCE_SHARE * raw.kl.mean)
        keys = {c.key for c in codecs(best)}
        smaller = [s for s in storage.summaries if s.candidate.key in keys]
        good = [s for s in smaller if versus(s, raw, bootstrap).difference.high <= allowed]
        return min([raw, *good], key=lambda s: s.bytes).candidate

    def holding(self, tested: Stage, best: Candidate) -> Summary:
        """The choice if the test part bears it out; else the same with raw chunks; else the fixed
        defaults, also where there are fewer than LEAST_RECOMMENDED prompts.
        """
        fixed = tested.find(self._fixed)
        if tested.prompts < LEAST_RECOMMENDED:
            return fixed
        bootstrap = Bootstrap(tested.prompts, seed=self._seed)
        tolerance = max(TOLERANCE, TOLERANCE_SHARE * fixed.kl.mean)
        for candidate in (best, replace(best, codec="raw")):
            found = tested.find(candidate)
            saves = found.bytes < fixed.bytes or found.operations * SAME_COST < fixed.operations
            allowed = tolerance if saves else 0.0
            if versus(found, fixed, bootstrap).difference.high <= allowed:
                return found
        return fixed

    def _stage(
        self, name: str, prompts: Sequence[Prompt], candidates: Sequence[Candidate], *, least: int
    ) -> Stage:
        tried = self._tried(name, prompts, candidates)
        done = self._measure(name, prompts, tried, least=least)
        return Stage(name, len(done), self._summaries(tried, done), len(candidates) - len(tried))

    def _tried(
        self, name: str, prompts: Sequence[Prompt], candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """Measure a stage's first prompt with as many candidates as it has time for."""
        shares = list(UNTIL.values())
        begin = shares[list(UNTIL).index(name) - 1]
        until = begin + (UNTIL[name] - begin) / FIRST_PROMPT[name]
        tried: list[Candidate] = []
        for start in range(0, len(candidates), BETWEEN_LOOKS):
            part = candidates[start : start + BETWEEN_LOOKS]
            over = self._trials.budget.left_until(until) <= 0
            if tried and over and not self._known(prompts[0], part):
                break
            self._trials.measure(prompts[0], part)
            tried += part
        return tried

    def _measure(
        self,
        name: str,
        prompts: Sequence[Prompt],
        candidates: Sequence[Candidate],
        *,
        least: int = 1,
        before: int = 0,
    ) -> list[Prompt]:
        until = UNTIL[name]
        return self._trials.measure_all(
            name, prompts, candidates, until=until, least=least, before=before
        )

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
