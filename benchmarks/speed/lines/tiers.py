"""Reads of every tier, relative to what the memory, disk or socket under it can do.

A sample is the rate of the store relative to that without the store in the same repetition. What
each row compares is described in `benchmarks.speed.tier_rows`. The chunk has 512 tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.common.shapes import sizes
from benchmarks.speed import tier_rows
from benchmarks.speed.outcome import Figure, Outcome, at_least
from benchmarks.speed.paired import run_paired
from benchmarks.speed.setup import Setup

CODECS = ("raw", "int8")
# More than elsewhere, because a read is as short as an interruption: milliseconds.
TIMES = 10
TARGETS = {
    ("raw", "memory"): ("memory tier read over memcpy", at_least(0.8)),
    ("raw", "ssd"): ("SSD read over the same bytes with O_DIRECT", at_least(0.8)),
    ("raw", "redis"): ("Redis read over a bare socket loop", at_least(0.6)),
}


def run(setup: Setup) -> Outcome:
    numbers = sizes(setup.shape.model)
    heads = numbers["num_attention_heads"]
    figures: list[Figure] = []
    seconds: dict[str, Any] = {}
    for codec in CODECS:
        chunk = tier_rows.make_chunk(
            codec,
            layers=numbers["num_hidden_layers"],
            kv_heads=numbers["num_key_value_heads"],
            head_dim=numbers["hidden_size"] // heads,
            tokens=setup.shape.tokens // setup.shape.chunks,
        )
        for row in tier_rows.rows(chunk):
            before = dict.fromkeys(("store", "bare"), row.before)
            ways = {"store": partial(_drop, row.ours), "bare": partial(_drop, row.bare)}
            paired = run_paired(ways, TIMES * setup.repetitions, before=before)
            plain = f"{row.name} read over the bare one, {codec}"
            what, target = TARGETS.get((codec, row.name), (plain, None))
            figures.append(paired.figure(what, "bare", "store", target))
            seconds[f"{row.name}, {codec}"] = {"bytes": row.nbytes} | paired.raw()
    return Outcome(figures, {"seconds": seconds})


def _drop(work: Any) -> None:
    """Does the work and frees what it read, so that freeing is part of the measured time."""
    work()
