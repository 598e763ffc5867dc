"""The quick table's check: fresh averages against the intervals of a committed table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.quality.report import check
from service.errors import InvalidRequest


def table(path: Path, means: Mapping[str, float], **facts: object) -> Path:
    rows = [
        {"name": name, "average": {"mean": m, "low": m - 0.1, "high": m + 0.1}}
        for name, m in means.items()
    ]
    path.write_text(json.dumps({"model": "m", "seeds": [1], **facts, "configurations": rows}))
    return path


def test_fresh_averages_are_checked(tmp_path: Path) -> None:
    committed = table(tmp_path / "a.json", {"pie": 0.5, "a3": 0.7, "full": 0.9})
    fresh = table(tmp_path / "b.json", {"pie": 0.6, "a3": 0.59, "full": 0.9, "more": 1})
    checked = check.check(committed, fresh)
    assert [(c.name, c.within) for c in checked] == [("pie", True), ("a3", False), ("full", True)]
    text = check.shown(checked)
    assert "| a3 | 70.0 [60.0, 80.0] | 59.0 | **outside** |" in text


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    committed = table(tmp_path / "a.json", {"pie": 0.5})
    with pytest.raises(InvalidRequest, match="not measured: pie"):
        check.check(committed, table(tmp_path / "b.json", {"a3": 0.5}))
    with pytest.raises(InvalidRequest, match="of model m"):
        check.check(committed, table(tmp_path / "b.json", {"pie": 0.5}, model="other"))
    with pytest.raises(InvalidRequest, match="no table"):
        check.check(tmp_path / "none.json", committed)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="no table"):
        check.check(committed, tmp_path / "b.json")
