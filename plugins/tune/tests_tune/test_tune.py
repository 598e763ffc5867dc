"""`kvstitch tune` as a whole, on models of several families with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.cli import main
from kvstitch.service.settings import calibration, load
from tests.service.worker.model.families.test_hybrids import CONFIGS
from tests_tune.model_folders import make_documents, make_model


def tune(model: Path, documents: Path, data: Path, *more: str) -> int:
    return main(
        ["tune", "--model", str(model), "--documents", str(documents), "--data-dir", str(data),
         "--minutes", "0.001", "--dtype", "float32", *more]
    )  # fmt: skip


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("mistral", "granitemoehybrid")]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text", *SLOW])
def test_a_run_recommends_what_the_service_takes_as_its_defaults(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, documents = make_model(tmp_path / "model", family), make_documents(tmp_path / "docs")
    data = tmp_path / "data"
    assert tune(model, documents, data, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [stage["name"] for stage in report["stages"]] == ["screen", "prefix", "storage", "test"]
    best, fixed = report["recommended"], report["fixed_defaults"]
    assert best["kl"]["mean"] <= fixed["kl"]["mean"]
    tried = {row["fusion"]["method"] for stage in report["stages"] for row in stage["candidates"]}
    if family in CONFIGS:
        assert fixed["fusion"] == {"method": "legolink", "first": 4, "last": 0}
        assert tried <= {"legolink", "pie", "full_reuse"}
    else:
        assert fixed["fusion"]["method"] == "question_scout"
    page = (data / "tuning" / "report.html").read_text()
    assert best["label"] in page and page.count("<svg") == 2 and "<script" not in page
    found = calibration.find(load(data_dir=data), model)
    assert found is not None and found.path == data / "calibration.json"
    assert found.defaults["fusion"] == best["fusion"]
    settings = found.settings(load(data_dir=data))
    assert settings.codec == best["codec"] and settings.prefix_mode == best["prefix_mode"]


def test_a_promised_fidelity_is_kept_for_the_fewest_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("run", "stages"):
        monkeypatch.setattr(f"kvstitch_tune.{place}.LEAST_RECOMMENDED", 2)
    model, documents = make_model(tmp_path / "model", "llama"), make_documents(tmp_path / "docs")
    data = tmp_path / "data"
    assert tune(model, documents, data, "--fidelity", "0.5", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    promise, best = report["promise"], report["recommended"]
    assert promise["fidelity"] == 0.5 and 0 <= promise["same_answer"]["mean"] <= 1
    found = calibration.find(load(data_dir=data), model)
    assert found is not None
    settings = found.settings(load(data_dir=data))
    if promise["pays"]:
        assert promise["operations"] == pytest.approx(best["operations"] + promise["taken_over"])
        assert settings.exact_below == promise["exact_below"]
        assert found.defaults["fusion"] == best["fusion"]
    else:
        assert found.defaults["fusion"] == {"method": "vanilla"} and settings.exact_below == 0
    assert "50% were asked for" in (data / "tuning" / "report.html").read_text()


def records(data: Path) -> list[str]:
    (file,) = (data / "tuning").glob("trials-*.jsonl")
    return file.read_text().splitlines()


@pytest.mark.slow
def test_a_stopped_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured is not measured again, a line that was cut off is."""
    model, documents = make_model(tmp_path / "model", "qwen2"), make_documents(tmp_path / "docs")
    data = tmp_path / "data"
    assert tune(model, documents, data) == 0
    whole = records(data)
    (file,) = (data / "tuning").glob("trials-*.jsonl")
    half = whole[: len(whole) // 2]
    file.write_text("\n".join(half) + "\n" + whole[len(half)][:40])
    assert tune(model, documents, data) == 0
    again = records(data)
    assert again[: len(half)] == half and len(again) >= len(whole)
    keys = [(r["prompt"], r["configuration"]) for r in map(json.loads, again)]
    assert len(keys) == len(set(keys))
    capsys.readouterr()


def test_questions_of_ones_own_and_a_report_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstitch_tune.page.find_spec", lambda name: None)
    model, documents = make_model(tmp_path / "model", "llama"), make_documents(tmp_path / "docs")
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Who opened Elm?"}\n"What does Fir show?"\n')
    more = ("--questions", str(questions), "--out", str(tmp_path / "out"), "--json")
    assert tune(model, documents, tmp_path / "data", *more) == 0
    evidence: dict[str, Any] = json.loads(capsys.readouterr().out)["evidence"]
    assert evidence["questions"] == "2 questions, given"
    assert (tmp_path / "out" / "calibration.json").is_file()
    assert not (tmp_path / "data").exists()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" not in page and page.count("<table>") == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--documents FOLDER, or --collection"),
        (["--collection", "none"], "holds no documents"),
        (["--documents", "{empty}"], "no document that can be read"),
        (["--documents", "{docs}", "--questions", "{empty}/none.jsonl"], "cannot be read"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "model", "llama")
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "docs": make_documents(tmp_path / "docs")}
    given = [argument.format(**places) for argument in arguments]
    code = main(["tune", "--model", str(model), "--data-dir", str(tmp_path / "data"), *given])
    assert code == 2 and said in capsys.readouterr().err
