"""From answers to numbers: scores by task with intervals, averages over tasks, costs, comparisons.

A ranked task is one that full prefill does well enough to tell methods apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from benchmarks.quality.bench import Result
from benchmarks.quality.compare import Paired, macro, paired
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.run import Run
from tuning.statistics import Bootstrap, Estimate


@dataclass(frozen=True)
class Spread:
    """Spread of samples: quartiles, or smallest, mean and largest."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Scored:
    """The numbers of one configuration.

    average, by_seed, flops, rows, kept and coverage are macro averages over the ranked tasks. ttft
    is relative to full prefill, over the timed samples; None if none was timed.
    """

    configuration: Configuration
    results: Sequence[Result] = field(repr=False)
    by_task: Mapping[str, Estimate]
    average: Estimate
    by_seed: Mapping[str, float]
    flops: Spread
    rows: float
    kept: float
    coverage: float
    ttft: Spread | None

    @property
    def name(self) -> str:
        return self.configuration.name


class Scores:
    """The numbers of all configurations of an experiment.

    `full` is full prefill, or the first configuration if that is not among them. A task is ranked
    if full prefill scores at least `ranked_from` on it. If no task is, all are ranked and `learnt`
    is False.
    """

    def __init__(
        self, run: Run, configurations: Sequence[Configuration], *, ranked_from: float = 0.0
    ) -> None:
        self.run, self.configurations = run, list(configurations)
        self.tasks = run.tasks
        self._task = [s.task for s in run.samples]
        self._seed = [str(s.text.details.get("seed", "")) for s in run.samples]
        full = [r.score for r in run.of(self.full)]
        ranked = [t for t in self.tasks if self._mean(full, [t]) >= ranked_from]
        self.learnt = bool(ranked)
        self.ranked = ranked or self.tasks
        self._bootstrap = {t: Bootstrap(self._task.count(t)) for t in self.tasks}
        self._places = [i for i, task in enumerate(self._task) if task in self.ranked]
        self.rows = [self._scored(c) for c in configurations]
        self._by_key = {s.configuration.key: s for s in self.rows}

    @property
    def full(self) -> Configuration:
        whole = (c for c in self.configurations if c.full)
        return next(whole, self.configurations[0])

    @property
    def seeds(self) -> list[str]:
        return sorted(set(self._seed))

    def of(self, configuration: Configuration) -> Scored:
        return self._by_key[configuration.key]

    def named(self, name: str) -> Scored | None:
        return next((s for s in self.rows if s.name == name), None)

    def against(self, ours: Scored, theirs: Scored) -> Paired:
        """Compares two configurations on the ranked tasks: ours minus theirs."""
        chosen = [(self._task[i], ours.results[i].score, theirs.results[i].score)
                  for i in self._places]  # fmt: skip
        tasks, a, b = zip(*chosen, strict=True)
        return paired(tasks, a, b)

    def recovered(self, of: Scored, start: Scored) -> float | None:
        """Share of the gap from `start` to full prefill that `of` closes; None without a gap."""
        gap = self.of(self.full).average.mean - start.average.mean
        return (of.average.mean - start.average.mean) / gap if gap > 0 else None

    def _scored(self, configuration: Configuration) -> Scored:
        results = self.run.of(configuration)
        scores = [r.score for r in results]
        chosen = [scores[i] for i in self._places]
        flops = [r.flops for r in results]
        return Scored(
            configuration,
            results,
            {t: self._estimate(scores, t) for t in self.tasks},
            macro([self._task[i] for i in self._places], chosen),
            {s: self._mean(scores, self.ranked, s) for s in self.seeds},
            Spread(min(flops), self._mean(flops, self.ranked), max(flops)),
            self._mean([r.rows for r in results], self.ranked),
            self._mean([r.kept for r in results], self.ranked),
            self._mean([r.coverage for r in results], self.ranked),
            self._ttft(configuration),
        )

    def _estimate(self, values: Sequence[float], task: str) -> Estimate:
        own = [v for v, t in zip(values, self._task, strict=True) if t == task]
        return self._bootstrap[task].mean(own)

    def _mean(
        self, values: Sequence[float], tasks: Sequence[str], seed: str | None = None
    ) -> float:
        """Macro average over tasks."""
        means = []
        for task in tasks:
            own = [
                v
                for v, t, s in zip(values, self._task, self._seed, strict=True)
                if t == task and seed in (None, s)
            ]
            if own:
                means.append(fmean(own))
        return fmean(means)

    def _ttft(self, configuration: Configuration) -> Spread | None:
        timings, full = self.run.timings, self.full.key
        ratios = [
            timings[s.key, configuration.key].seconds / timings[s.key, full].seconds
            for s in self.run.samples
            if (s.key, full) in timings
        ]
        if len(ratios) < 2:
            return None
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        return Spread(low, middle, high)
