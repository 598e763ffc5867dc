"""From records to figures: means with intervals by configuration, and who wins at what cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.report.records import Record
from benchmarks.fidelity.report.statistics import Bootstrap, Comparison, Estimate, compare

TOLERANCE = 0.02
"""Costs that differ by less than this share are equal."""
WINDOW = 0.08
"""A rival may cost this much of a full prefill more."""
RIVALS = ("a3", "cacheblend")


def answer_kl(record: Record) -> float:
    """KL per token over the whole answer, first token included."""
    later = 0.0 if record.kl_next is None else record.kl_next * record.next_count
    return (record.kl_first + later) / (1 + record.next_count)


FIGURES: dict[str, Callable[[Record], float | None]] = {
    "kl_first": lambda r: r.kl_first,
    "kl_next": lambda r: r.kl_next,
    "kl_answer": answer_kl,
    "agree_first": lambda r: r.agree_first,
    "agree_next": lambda r: r.agree_next,
    "right": lambda r: r.right,
    "rows": lambda r: r.rows / r.tokens,
    "hit": lambda r: r.hit,
    "flops": lambda r: r.flops,
    "bytes": lambda r: r.bytes,
    "seconds": lambda r: r.seconds,
}


@dataclass(frozen=True)
class Summary:
    """One configuration over all prompts: `records` in the prompts' order, means with intervals
    by figure, the median of the first token's KL (few prompts can make a mean), plain means by
    depth or layer."""

    configuration: Configuration
    records: Sequence[Record] = field(repr=False)
    figures: dict[str, Estimate]
    kl_median: float
    map_l2: list[float]
    k_error: list[float]
    v_error: list[float]

    @property
    def name(self) -> str:
        return self.configuration.name

    @property
    def kl(self) -> float:
        return self.figures["kl_first"].mean

    @property
    def cost(self) -> float:
        return self.figures["flops"].mean

    @classmethod
    def of(
        cls, configuration: Configuration, records: Sequence[Record], bootstrap: Bootstrap
    ) -> Summary:
        figures = {
            name: bootstrap.mean([figure(r) for r in records]) for name, figure in FIGURES.items()
        }
        return cls(
            configuration,
            records,
            figures,
            median(r.kl_first for r in records),
            _by_place([r.map_l2 for r in records]),
            _by_place([r.k_error for r in records]),
            _by_place([r.v_error for r in records]),
        )


@dataclass(frozen=True)
class Duel:
    """One configuration against a rival that costs as much or more (`cheaper` false), or against
    the most expensive one there is (`cheaper` true: the rival had less to spend)."""

    ours: Summary
    rival: Summary
    cheaper: bool
    first: Comparison
    answer: Comparison


def rival_of(ours: Summary, family: str, all_of: Sequence[Summary]) -> Summary | None:
    """The best of `family` (lowest mean KL, raw codec, any prefix mode and parameters) among those
    that cost at least what `ours` does and at most `WINDOW` more; if there is none, the cheapest
    of those that cost more; failing that the most expensive. None if the family has no member."""
    members = [
        s for s in all_of if s.configuration.family == family and s.configuration.codec == "raw"
    ]
    members = [s for s in members if s is not ours]
    if not members:
        return None
    dearer = [s for s in members if s.cost >= ours.cost * (1 - TOLERANCE)]
    near = [s for s in dearer if s.cost <= ours.cost + WINDOW]
    if near:
        return min(near, key=lambda s: s.kl)
    level = min(s.cost for s in dearer) if dearer else max(s.cost for s in members)
    return min((s for s in members if abs(s.cost - level) <= level * TOLERANCE), key=lambda s: s.kl)


def duel(ours: Summary, rival: Summary, bootstrap: Bootstrap) -> Duel:
    def compared(figure: Callable[[Record], float]) -> Comparison:
        mine, theirs = map(figure, ours.records), map(figure, rival.records)
        return compare(bootstrap, list(mine), list(theirs))

    cheaper = rival.cost < ours.cost * (1 - TOLERANCE)
    return Duel(ours, rival, cheaper, compared(lambda r: r.kl_first), compared(answer_kl))


def duels(
    summaries: Sequence[Summary], bootstrap: Bootstrap, base: Summary | None
) -> dict[str, list[Duel]]:
    """By heading: everybody against `base`, or else against the best of each rival family."""
    if base is not None:
        return {base.name: [duel(s, base, bootstrap) for s in summaries if s is not base]}
    return {
        family: [
            duel(s, rival, bootstrap)
            for s in summaries
            if (rival := rival_of(s, family, summaries)) is not None
        ]
        for family in RIVALS
    }


def by_task(summary: Summary, tasks: Sequence[str]) -> dict[str, float]:
    """Mean KL of the first token by task; `tasks` is each record's."""
    return {
        task: fmean(r.kl_first for r, of in zip(summary.records, tasks, strict=True) if of == task)
        for task in dict.fromkeys(tasks)
    }


def _by_place(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]
