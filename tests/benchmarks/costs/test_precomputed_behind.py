"""The bench of what primers cost runs, and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.costs import precomputed_behind
from service.settings import demo_model


@pytest.mark.slow
def test_every_mode_is_timed_and_a_change_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = precomputed_behind.documents("test")[:70]
    monkeypatch.setattr(precomputed_behind, "documents", lambda split: few)
    given = ["--model", str(demo_model()), "--dtype", "float32", "--rounds", "1", "--most", "5"]
    assert precomputed_behind.main([*given, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "precomputed_behind.json").read_text(encoding="utf-8"))
    assert set(result["speed"]) == {"system", "primer", "neighbours"}
    assert all(speed > 0 for speeds in result["speed"].values() for speed in speeds)
    assert result["chunks"]["timed"] == 5
    assert result["bytes"]["primer"] > 2 * result["bytes"]["system"] > 0
    assert result["bytes"]["neighbours"] == 2 * result["bytes"]["system"]
    assert set(result["tokens_per_processor_second"]) == {"before", *result["speed"]}
    assert all(0 <= share < 1 for share in result["computed_again"].values())
    assert result["environment"] and result["model"]["fingerprint"]
