"""The comparison of tiers runs, and both sides of each row move the same bytes."""

import json
import sys

import pytest

from benchmarks.speed import tiers

ROWS = ["memory", "memory blocks", "ssd", "ssd warm", "redis", "redis blocks"]


def test_every_row_for_every_codec(monkeypatch, capsys):
    monkeypatch.setitem(tiers.SHAPES, "tiny", {"layers": 3, "kv_heads": 2, "head_dim": 64})
    results = tiers.run(["tiny"], 2, tokens=200)
    assert [(result["codec"], result["row"]) for result in results] == [
        (codec, row) for codec in tiers.CODECS for row in ROWS
    ]
    for result in results:
        assert result["bytes"] > 0
        assert 0 < result["ratio"]["min"] <= result["ratio"]["median"] <= result["ratio"]["max"]
        ours, bare = result["samples"]["ours"], result["samples"]["bare"]
        assert len(ours) == len(bare) == 2 and result["best"] == max(ours) / max(bare)
    raw, int8 = (next(r for r in results if r["codec"] == codec) for codec in tiers.CODECS)
    assert int8["bytes"] < 0.6 * raw["bytes"]
    assert len(capsys.readouterr().out.splitlines()) == len(results)


def test_both_sides_run_in_turn():
    order = []
    row = tiers.Row(
        "x",
        1000,
        lambda: order.append("ours"),
        lambda: order.append("bare"),
        lambda: order.append("before"),
    )
    tiers.measure(row, 2)
    timed = [step for step in order if step != "before"]
    assert order[::2] == ["before"] * 8
    assert timed == ["bare", "ours", "ours", "bare"] * 2


@pytest.mark.parametrize("quick", [True, False])
def test_the_command_writes_what_it_measured(monkeypatch, tmp_path, quick):
    asked = []
    monkeypatch.setattr(
        tiers, "run", lambda models, repetitions: asked.append((models, repetitions))
    )
    out = tmp_path / "deep" / "tiers.json"
    monkeypatch.setattr(sys, "argv", ["tiers", "--out", str(out), *["--quick"] * quick])
    tiers.main()
    record = json.loads(out.read_text())
    assert record["environment"]["commit"] and record["tokens"] == 512
    models, repetitions = asked[0]
    assert models == list(tiers.SHAPES)[: 1 if quick else 2] and repetitions >= 5
