"""The results as Markdown, with a row for each configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.fidelity.report.summary import RIVALS, Duel, Summary, by_task
from tuning.statistics import Comparison

LEGEND = """\
KL: full prefill ‖ method, nats; mean over prompts [95 % bootstrap interval]. First: the first
answer token; next: the tokens after it along full prefill's greedy answer, to its end. Agree: the
same most likely token. Right: the generated answer is a known one. Rows: document tokens
recomputed, share of the prompt. FLOPs: over full prefill's. Hit: recomputed tokens among as many
that full prefill's question attends to most (all layers and heads). MB: stored KV read. Seconds:
prefill alone, on a shared machine: noisy.
"""
DUEL_LEGEND = """\
Difference of KL, prompt by prompt: negative is better than the rival; won: share of prompts with
the lower KL, of those that differ. ‡: the rival costs less.
"""
RIVAL_LEGEND = """\
Rival: the best {family} configuration (any ratio, layer and prefix mode) that costs as many
operations, or up to 8 % of a full prefill more; where there is none, the next above, else below.
It is chosen on these same prompts, which favours it.
"""


def report(
    title: str,
    summaries: Sequence[Summary],
    tasks: Sequence[str],
    against: Mapping[str, Sequence[Duel]],
) -> str:
    """The page. `tasks` has the task of each record of the summaries, `against` the comparisons."""
    parts = [f"# {title}\n", LEGEND, quality(summaries)]
    for rival, fought in against.items():
        if fought:
            legend = RIVAL_LEGEND.format(family=rival) if rival in RIVALS else ""
            parts += [f"## Against {rival}\n", legend + DUEL_LEGEND, versus(fought)]
    parts += [
        "## Attention of the question, and KV of the documents\n",
        "Map: L2 distance of the question rows' attention from full prefill's, mean over heads and "
        "rows, at A3's four depths. K, V: ‖Δ‖/‖full‖ over document rows (K after RoPE), mean over "
        "layers and at the last.\n",
        recovery(summaries),
        "## KL of the first token by task\n",
        tasks_table(summaries, tasks),
    ]
    return "\n".join(parts)


def quality(summaries: Sequence[Summary]) -> str:
    def row(s: Summary) -> list[str]:
        f = s.figures
        return [
            s.name,
            percent(f["rows"].mean),
            percent(f["flops"].mean),
            with_interval(f["kl_first"], _small),
            _small(s.kl_median),
            with_interval(f["kl_next"], _small),
            with_interval(f["agree_first"], percent),
            percent(f["agree_next"].mean),
            with_interval(f["right"], percent),
            percent(f["hit"].mean),
            f"{f['bytes'].mean / 1e6:.1f}",
            f"{f['seconds'].mean:.3f}",
        ]

    head = ["configuration", "rows", "FLOPs", "KL first", "median", "KL next", "agree first"]
    head += ["agree next", "right", "hit", "MB", "seconds"]
    return table(head, [row(s) for s in summaries])


def versus(fought: Sequence[Duel]) -> str:
    def cells(c: Comparison) -> list[str]:
        return [with_interval(c.difference, _small), percent(c.won)]

    rows = [
        [
            d.ours.name,
            percent(d.ours.cost),
            d.rival.name + (" ‡" if d.cheaper else ""),
            percent(d.rival.cost),
            *cells(d.first),
            *cells(d.answer),
        ]
        for d in fought
    ]
    head = ["configuration", "FLOPs", "rival", "its FLOPs", "Δ KL first", "won"]
    return table([*head, "Δ KL whole answer", "won"], rows)


def recovery(summaries: Sequence[Summary]) -> str:
    depths = len(summaries[0].map_l2)
    rows = [
        [
            s.name,
            *(f"{distance:.4f}" for distance in s.map_l2),
            *(
                f"{value:.3f}"
                for errors in (s.k_error, s.v_error)
                for value in (sum(errors) / len(errors), errors[-1])
            ),
        ]
        for s in summaries
    ]
    maps = [f"map {i}" for i in range(1, depths + 1)]
    return table(["configuration", *maps, "K", "K last", "V", "V last"], rows)


def tasks_table(summaries: Sequence[Summary], tasks: Sequence[str]) -> str:
    names = list(dict.fromkeys(tasks))
    rows = []
    for s in summaries:
        found = by_task(s, tasks)
        rows.append([s.name, *(_small(found[name]) for name in names)])
    return table(["configuration", *names], rows)


def _small(value: float) -> str:
    """Two significant digits; 0 for less than a hundred-thousandth."""
    if math.isnan(value):
        return "–"
    if abs(value) < 1e-5:
        return "0"
    return f"{value:.2g}" if abs(value) >= 1e-4 else f"{value:.0e}".replace("e-0", "e-")
