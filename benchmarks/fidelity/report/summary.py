"""From records to numbers: means with intervals, and comparisons at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.report.records import Record
from tuning.statistics import Bootstrap, Comparison, Estimate, compare

TOLERANCE = 0.02
"""Costs that differ by less than this share count as equal."""
WINDOW = 0.08
"""A rival may cost more by this share of a full prefill."""
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
    """One configuration over all prompts.

    Attributes:
        configuration: the configuration.
        records: in the order of the prompts.
        figures: means with intervals, by name.
        kl_median: median of the first token's KL, because few prompts can dominate a mean.
        map_l2: means by depth.
        k_error: means by layer.
        v_error: means by layer.
    """

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
    """One configuration compared with a rival that costs as much or more.

    `cheaper` is True if there is none; then the rival is the most expensive one, which costs less.
    """

    ours: Summary
    rival: Summary
    cheaper: bool
    first: Comparison
    answer: Comparison


def rival_of(ours: Summary, family: str, all_of: Sequence[Summary]) -> Summary | None:
    """The rival of a family: the best by mean KL among those of about equal cost.

    Candidates have the raw codec, any prefix mode and any parameters, and cost at least as much as
    `ours` and at most `WINDOW` more. If there are none it is the cheapest of those that cost more,
    else the most expensive of all. None if the family has no member.
    """
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
    """Comparisons by heading: all with `base`, or without it with the rival of each family."""
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
    """Mean KL of the first token by task; `tasks` has the task of each record."""
    return {
        task: fmean(r.kl_first for r, of in zip(summary.records, tasks, strict=True) if of == task)
        for task in dict.fromkeys(tasks)
    }


def _by_place(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]
