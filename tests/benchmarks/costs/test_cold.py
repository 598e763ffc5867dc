"""The benchmark of `cold`: its records on a tiny model say what the two modes promise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.costs.cold import (
    METHODS,
    MODES,
    STORED,
    Record,
    divergence,
    measure,
    summary,
    table,
)
from tests.service.worker.tiny import D1, D2, D3, Q, S, random_model, tiny_config, tiny_of
from tuning.prompts import Prompt
from tuning.records import RecordFile

PROMPT = Prompt("tiny", tuple(S), (tuple(D1), tuple(D2), tuple(D3)), tuple(Q))


def test_records_of_a_prompt(tmp_path: Path) -> None:
    decoder = tiny_of(random_model(tiny_config("llama", "llama3"))).decoder
    path = tmp_path / "cold.jsonl"
    file = RecordFile(path, Record)
    for stored in STORED:
        measure(decoder, PROMPT, [METHODS["pie"]], stored, file)
    written = path.read_text()
    measure(decoder, PROMPT, [METHODS["pie"]], "half", file)
    assert path.read_text() == written, "what is known is not measured again"
    rows = {(row["stored"], row["cold"]): row for row in summary([PROMPT], file)}
    assert set(rows) == {(stored, cold) for stored in STORED for cold in MODES}
    for (stored, cold), row in rows.items():
        first, second, same = row["first_kl"][0], row["second_kl"][0], row["same"][0]
        if cold == "as_stored":
            assert first == second and same == 1.0
            assert row["work_flops"] == row["first_flops"]
        else:
            assert (first == 0) == (stored == "nothing") and second > 0
            assert row["work_flops"][0] > row["first_flops"][0]
    same_later = {row["second_kl"][0] for row in rows.values()}
    assert len(same_later) == 1
    lines = table(list(rows.values())).splitlines()
    assert len(lines) == 4 + len(rows) and "`as_stored`" in lines[-1]


def test_divergence_by_hand() -> None:
    full = {1: math.log(0.75), 2: math.log(0.25)}
    assert divergence(full, full) == 0
    other = {2: math.log(0.5), 3: math.log(0.25)}  # 1 is not among its likeliest
    expected = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.5)
    assert divergence(full, other) == pytest.approx(expected)
