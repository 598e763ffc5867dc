"""The sizes of a fleet: arithmetic by hand, what grows with what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet import sizing
from benchmarks.fleet.fleet_size import TIERS, Load, Machine, read_s, size
from benchmarks.sizing import GIB, LLAMA, MIDDLE, TOKENS, share_of_reads

LOAD, MACHINE = Load(), Machine()


def test_a_fleet_without_tiers_computes_everything() -> None:
    """By hand: 8 chunks of 512 tokens and a question of 100 at 35 µs, 100 tokens of answer."""
    nothing = replace(MACHINE, memory_gib=1e-9, ssd_gib=1e-9, redis_covers=1e-9)
    got = size(MIDDLE, "int8", LOAD, nothing)
    seconds = (8 * 512 + 100) * 35e-6 + 100 / 2000
    assert got.shares["computed"] == pytest.approx(1)
    assert got.seconds == pytest.approx(seconds)
    assert got.workers == 6 and 5 < 20 * seconds / 0.7 <= 6


def test_everything_in_memory_is_only_repaired() -> None:
    ample = replace(MACHINE, memory_gib=1e6, together=1.0)
    got = size(MIDDLE, "int8", LOAD, ample)
    chunk = MIDDLE.chunk_bytes("int8")
    per_chunk = chunk / 25e9 + 0.15 * 512 * 35e-6
    assert got.shares["memory"] == pytest.approx(1)
    assert got.seconds == pytest.approx(8 * per_chunk + 100 * 35e-6 + 0.05)


def test_bytes_are_those_of_chunks() -> None:
    got = size(LLAMA, "int4", replace(LOAD, documents=10, tokens=513), MACHINE)
    assert got.kv_bytes == 20 * LLAMA.chunk_bytes("int4")
    assert got.precompute_s == pytest.approx(20 * 512 * 37e-6)


@pytest.mark.parametrize("rate", [1, 20, 300])
@pytest.mark.parametrize("documents", [1000, 100_000, 10_000_000])
def test_the_fleet_is_the_smallest_that_does_it(documents: int, rate: int) -> None:
    load = replace(LOAD, documents=documents, rate=rate)
    got = size(LLAMA, "int8", load, MACHINE)
    assert sum(got.shares.values()) == pytest.approx(1)
    assert min(got.shares.values()) >= -1e-9
    assert rate * got.seconds <= got.workers * MACHINE.utilisation
    if got.workers > 1:  # with one less, each holding as much, there is more to do than time
        assert rate * got.seconds > (got.workers - 1) * MACHINE.utilisation * 0.9
    held = got.redis_chunks
    assert share_of_reads(held, load.chunks) >= MACHINE.redis_covers > 0
    assert share_of_reads(held - 1, load.chunks) < MACHINE.redis_covers
    room = got.redis_servers * MACHINE.redis_gib * GIB
    assert held * got.chunk_bytes <= room
    assert got.redis_bytes_s <= got.redis_servers * MACHINE.redis_gbs * 1e9


def test_more_of_everything_needs_no_more_workers() -> None:
    base = size(MIDDLE, "int8", LOAD, MACHINE).workers
    for better in (
        {"memory_gib": 256.0},
        {"together": 0.9},
        {"redis_gbs": 10.0},
        {"decode_tokens_s": 8000.0},
        {"s3_gbs": 5.0, "s3_latency_s": 0.001},
    ):
        assert size(MIDDLE, "int8", LOAD, replace(MACHINE, **better)).workers <= base
    assert size(MIDDLE, "int8", replace(LOAD, rate=40.0), MACHINE).workers > base


def test_a_tier_that_is_slower_than_computing_is_not_read() -> None:
    got = size(MIDDLE, "int8", LOAD, replace(MACHINE, redis_gbs=0.1))
    assert got.shares["redis"] == 0 and got.redis_bytes_s == 0
    slow = replace(MACHINE, redis_gbs=0.1)
    assert read_s("redis", got.chunk_bytes, slow) > TOKENS * MIDDLE.prefill_s
    assert set(got.shares) == {*TIERS, "computed"}


def test_a_model_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Own-7B"
    folder.mkdir()
    config = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
              "hidden_size": 3584}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    own = sizing.of_config(folder / "config.json", MIDDLE.prefill_s)
    assert own == replace(MIDDLE, name="Own-7B")
    asked = ["--config", str(folder / "config.json"), "--rate", "40"]
    assert sizing.main(asked) == 2
    assert "--prefill-us" in capsys.readouterr().err
    assert sizing.main([*asked, "--prefill-us", "35"]) == 0
    assert "Own-7B" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "GPT"], "--config and --prefill-us"),
        (["--rate", "0"], "--rate must be above 0"),
        (["--config", "nowhere.json", "--prefill-us", "1"], "does not tell"),
        (["--rate", "1e9"], "more than 100,000 workers"),
    ],
)
def test_what_cannot_be_sized_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sizing.main(arguments) == 2
    assert said in capsys.readouterr().err
