"""`kvstitch eval`: figures by hand, questions against a service, and lines that are not as they
should be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvstitch.service.cli import main
from kvstitch_tune.evaluation import NOT_FOUND, NOT_STORED, Found, figures
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]


def test_figures_by_hand() -> None:
    found = [Found("hybrid", [2, 3]), Found("hybrid", [6]), Found("hybrid", [])]
    made = figures(found, [2, 1, 1], 5)
    ndcg = (1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3))
    assert made == pytest.approx({"hit_rate": 1 / 3, "mrr": 1 / 6, "ndcg": ndcg / 3})


def test_questions_are_searched_in_every_mode(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.ingest()
    lines = [
        {"question": "Oslo", "documents": ["oslo"]},
        {"question": "Rome", "documents": "rome"},
        {"question": "Where is it?", "documents": ["gone"]},
        {"question": "zzzz", "text": "no passage says this"},
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["eval", str(file), "--json", "--url", rig.url]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["questions"] == 4 and list(out["modes"]) == ["sparse", "dense", "hybrid"]
    assert out["modes"]["sparse"]["hit_rate"] == 0.5 and out["modes"]["hybrid"]["mrr"] == 0.5
    assert [row["lost"] for row in out["samples"]] == [None, None, NOT_STORED, NOT_FOUND]
    assert main(["eval", str(file), "--mode", "sparse", "--url", rig.url]) == 0
    shown = capsys.readouterr().out
    assert "hit rate@5" in shown and "missed by sparse: 2" in shown and NOT_STORED in shown


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "holds no questions"),
        ("{", "line 1 is not JSON"),
        ("[]", 'an object with "question"'),
        ('{"question": "x"}', 'either "documents"'),
        ('{"question": "x", "documents": []}', 'either "documents"'),
        ('{"question": "x", "documents": ["a"], "text": "b"}', 'either "documents"'),
        ('{"question": "x", "documents": [1]}', 'either "documents"'),
        ('{"question": "x", "text": " "}', 'either "documents"'),
    ],
)
def test_wrong_lines_are_told(
    line: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(line, encoding="utf-8")
    assert main(["eval", str(file)]) == 2
    assert told in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "none")]) == 2
