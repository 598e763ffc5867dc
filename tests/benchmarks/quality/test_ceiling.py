"""What another program's full prefill agrees with: the demo's model, in both programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.quality import __main__ as quality
from benchmarks.quality import ceiling
from service.settings import demo_model


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """Four prompts with records of one method, as arguments of the program."""
    file = tmp_path / "prompts.jsonl"
    lines = (Path(__file__).parent / "demo_tasks.jsonl").read_text().splitlines()
    file.write_text("\n".join(lines[:4]))
    same = ["--model", str(demo_model()), "--prompts", str(file)]
    assert quality.main([*same, "--out", str(tmp_path), "--only", "pie system"]) == 0
    (records,) = tmp_path.glob("samples-*.jsonl")
    more = ["--records", str(records), "--method", "pie system", "--dtype", "float32"]
    return [*same, *more, "--out", str(tmp_path)]


def rows(tmp_path: Path) -> Mapping[str, list[str]]:
    page = (tmp_path / "ceiling.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in cells}


def test_transformers_gives_our_answers_and_is_asked_once(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ceiling.main(given) == 0
    assert rows(tmp_path)["all"][:2] == ["4", "100.0 % [100.0 %, 100.0 %]"]
    assert rows(tmp_path)["where both full prefills agree"][0] == "4"
    monkeypatch.delattr(ceiling, "TransformersAnswers")
    assert ceiling.main(given) == 0


def test_an_answer_that_differs_is_no_prompt_on_which_both_agree(
    given: list[str], tmp_path: Path
) -> None:
    assert ceiling.main(given) == 0
    answers = tmp_path / "ceiling.jsonl"
    first, *others = answers.read_text().splitlines()
    answers.write_text("\n".join([json.dumps(json.loads(first) | {"text": "no"}), *others, ""]))
    assert ceiling.main(given) == 0
    assert rows(tmp_path)["all"][1].startswith("75.0 %")
    assert rows(tmp_path)["where both full prefills agree"][:2] == [
        "3",
        "100.0 % [100.0 %, 100.0 %]",
    ]


def test_a_name_that_no_configuration_has_says_which_there_are(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ceiling.main([*given, "--method", "a3"]) == 2
    assert "pie system" in capsys.readouterr().err
