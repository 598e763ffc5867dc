"""Both sides of each row of the tiers' comparison move the same bytes."""

from __future__ import annotations

import pytest

from benchmarks.speed import tier_rows

ROWS = ["memory", "memory blocks", "ssd", "ssd warm", "redis", "redis blocks"]


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_every_row_reads_what_it_says(codec: str) -> None:
    chunk = tier_rows.make_chunk(codec, layers=3, kv_heads=2, head_dim=64, tokens=200)
    found = {}
    for row in tier_rows.rows(chunk):
        row.before()
        row.ours()
        row.before()
        row.bare()
        found[row.name] = row.nbytes
    assert list(found) == ROWS
    for tier in ("memory", "ssd", "redis"):
        assert found[tier] in (chunk.nbytes, chunk.header.nbytes)
    for tier in ("memory", "redis"):
        assert 0 < found[f"{tier} blocks"] < found[tier]
