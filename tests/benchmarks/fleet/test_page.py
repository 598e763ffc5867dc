"""The page's tables come from results that the benchmarks write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.fleet import page, scale


def test_tables_are_made_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    given = ["--workers", "2", "--per-worker", "10", "--chunks", "200000", "--sensitivity", "2"]
    monkeypatch.setattr(sys, "argv", ["scale", *given, "--out", str(tmp_path / "scale.json")])
    scale.main()
    page.main()
    text = page.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    rows = [line for line in text.splitlines() if line.startswith("| 2 |")]
    assert len(rows) == 8 and "| `token_s` × 0.5 | `cost` |" in text
