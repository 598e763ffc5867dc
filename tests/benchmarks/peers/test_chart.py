"""The chart of README shows what the committed pages of results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.chart import AGREE, REORDERED, RESULTS, bars, cells, draw, number


def test_bars_are_the_figures_of_the_pages(tmp_path: Path) -> None:
    found = bars()
    assert found[0][1] == 1.0 and [agreement for _, _, agreement in found][:2] == [None, None]
    row = next(
        line
        for line in (RESULTS / "peers" / "peers.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {REORDERED} | ")
    )
    assert all(f"| {ttft:.2f} [" in row for _, ttft, _ in found)
    draw(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000


def test_a_row_that_is_gone_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"| method | {AGREE} |\n| --- | --- |\n| pie | 91.9 % [91.2 %, 92.6 %] |\n")
    assert number(cells(page, "pie", AGREE)[AGREE]) == 91.9
    with pytest.raises(LookupError, match="no row 'a3'"):
        cells(page, "a3", AGREE)
