"""Codecs, eviction and SamKV on the demo model: the table says what each of them promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.quality import less_kv
from service.settings import demo_model


@pytest.mark.slow
def test_a_run_measures_everything_once(tmp_path: Path) -> None:
    documents = [[10 + (7 * n + k) % 200 for k in range(40)] for n in range(3)]
    prompt = {"task": "t", "system": [3, 4, 5], "documents": documents, "question": [6, 7, 8]}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(prompt) + "\n", encoding="utf-8")
    given = ["--model", str(demo_model()), "--prompts", str(file), "--dtype", "float32"]
    given += ["--out", str(tmp_path / "out")]
    assert less_kv.main(given) == 0
    [records] = (tmp_path / "out").glob("*.jsonl")
    known = records.read_text(encoding="utf-8")
    result = json.loads((tmp_path / "out" / "less_kv.json").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "less_kv.md").read_text(encoding="utf-8")

    rows = result["results"]
    assert len(rows) == len(known.splitlines()) == page.count("system |") + page.count("system ·")
    for row in rows:
        [kl], [kept], [stored] = row["kl"], row["kept"], row["bytes"]
        assert kl >= 0
        if row["eviction"]:
            budget = row["eviction"]["budget"]
            assert kept <= (budget + 1) / 126, row
        elif row["fusion"]["method"] != "samkv":
            assert kept == 1, row
        if row["codec"] != "raw":
            assert stored < rows[0]["bytes"][0], row

    assert less_kv.main(given) == 0
    assert records.read_text(encoding="utf-8") == known, "what is known is not measured again"

    assert less_kv.main([*given, "--only", "samkv*", "pie*"]) == 0
    assert records.read_text(encoding="utf-8") == known
    fewer = json.loads((tmp_path / "out" / "less_kv.json").read_text(encoding="utf-8"))["results"]
    assert [row["fusion"]["method"] for row in fewer] == ["pie"] * 4 + ["samkv"]
