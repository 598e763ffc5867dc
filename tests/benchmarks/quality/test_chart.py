"""The chart of quality over cost is drawn from the tables' files."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.quality.chart import lines, main


def result(name: str, seconds: float, same: list[float]) -> dict[str, object]:
    samples = {"seconds": [seconds] * 2, "same": same, "right_of_full": [None, same[0]]}
    return {"name": name, "samples": samples}


RESULTS = [
    result("full prefill", 1.0, [1, 1]),
    result("pie system", 0.02, [0, 0]),
    result("pie primer-g3/32", 0.03, [0, 1]),
    result("question_scout r=0.3 primer-g3/32", 0.35, [1, 1]),
    result("question_scout r=0.15 primer-g3/32", 0.2, [1, 0]),
    result("a3 r=0.15 system", 0.2, [0, 0]),
]


def test_a_method_is_a_line_from_pie_over_its_ratios() -> None:
    found = lines(RESULTS, "same", "primer-g3/32")
    assert found["question_scout"] == [(0.03, 0.5), (0.2, 0.5), (0.35, 1)]
    assert set(found) == {"pie", "question_scout"}
    assert lines(RESULTS, "right_of_full", "system")["a3"] == [(0.02, 0), (0.2, 0)]


def test_the_same_tables_give_the_same_picture(tmp_path: Path) -> None:
    table, drawn = tmp_path / "t.json", []
    table.write_text(json.dumps({"prompts": [1, 2], "results": RESULTS}))
    for name in ("a.png", "b.png"):
        assert main([f"A model={table}", f"Another={table}", "--out", str(tmp_path / name)]) == 0
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]
