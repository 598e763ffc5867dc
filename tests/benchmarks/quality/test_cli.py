"""Both command lines on the demo model: what is wrong is said at once, what was measured stays,
several processes answer as one does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.quality.__main__ import main as compare
from benchmarks.quality.report.__main__ import main as report
from service.settings import demo_model

pytestmark = pytest.mark.slow

ONE_SAMPLE = ["--tasks", "single", "--samples", "1", "--seed", "3"]
TWO = ["multidoc", *ONE_SAMPLE, "--fusion", "vanilla", "pie"]


def run(out: Path, *given: str) -> dict[str, object]:
    assert compare([*given, "--out", str(out)]) == 0
    record: dict[str, object] = json.loads((out / "multidoc.json").read_text())
    return record


def answers(out: Path) -> list[str]:
    """Whole records, in no order."""
    files = out.glob("answers-*.jsonl")
    return sorted(line for file in files for line in file.read_text().splitlines())


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["multidoc", "--fusion", "a4"], "a4"),
        (["multidoc", "--fusion", "a3:ratio=2"], "fusion.ratio must be a number from 0 to 1"),
        (["multidoc", "--fusion", "a3:share=1"], "fusion.share is not a parameter"),
        (["multidoc", "--fusion", "a3:ratio"], "name:parameter=value"),
        (["multidoc", "--eviction", "snapkv:budget=0"], "eviction.budget"),
        (["multidoc", "--codec", "int3"], "int3"),
        (["multidoc", "--tasks", "nothing"], "nothing"),
        (["multidoc", "--samples", "0"], "at least 1"),
        (["longbench"], "--data"),
        (["needle", "--lengths", "5000"], "model takes"),
        (["multidoc", "--model", "/nowhere"], "/nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], told: str
) -> None:
    assert compare([*given, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_not_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(demo_model(), folder, ignore=shutil.ignore_patterns("calibration.json"))
    given = ["multidoc", "--model", str(folder), "--eviction", "headkv", "--out", str(out)]
    assert compare(given) == 2
    assert "calibration.json" in capsys.readouterr().err
    assert not out.exists()


def test_the_report_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["--tasks", "nothing", "--out", str(tmp_path)]) == 2
    assert "nothing" in capsys.readouterr().err
    for wrong in (["--experiments", "nothing"], ["--replace"], ["--check", "x.json"]):
        with pytest.raises(SystemExit):
            report(wrong)


# -- comparing methods ----------------------------------------------------------------------------


def test_the_cross_product_is_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--eviction", "none", "snapkv:budget=90", "--codec", "raw", "int8"]
    record = run(tmp_path, *TWO, *options)
    names = [c["name"] for c in record["configurations"]]  # type: ignore[attr-defined]
    assert len(names) == 8
    assert names[0] == "vanilla + none + raw"
    assert names[-1] == "pie + snapkv:budget=90 + int8"
    shown = capsys.readouterr().out
    assert shown.count("| pie + none + int8 |") == 2  # its scores, and beside the first
    assert all(c["theirs"] == names[0] for c in record["comparisons"])  # type: ignore[attr-defined]


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Killed in the middle of a line, with some answers missing: the report is the same."""
    options = [*TWO, "--tasks", "single", "pronoun"]
    whole = run(tmp_path / "whole", *options)
    expected = answers(tmp_path / "whole")
    assert len(expected) == 4
    [file] = (tmp_path / "whole").glob("answers-*.jsonl")
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / file.name
    cut.write_text("\n".join(expected[:2]) + "\n" + expected[2][:40])
    again = run(tmp_path / "cut", *options)
    assert answers(tmp_path / "cut") == expected
    assert again == whole
    before = cut.read_text()
    assert run(tmp_path / "cut", *options) == whole
    assert cut.read_text() == before
    assert run(tmp_path / "cut", *options, "--fresh") == whole


def test_several_processes_answer_as_one(tmp_path: Path) -> None:
    options = [*TWO, "--fusion", *(f"a3:ratio={n / 100}" for n in range(5, 18))]
    options += ["--tasks", "single", "update", "--samples", "1"]
    one = run(tmp_path / "one", *options)
    two = run(tmp_path / "two", *options, "--processes", "2")
    assert answers(tmp_path / "one") == answers(tmp_path / "two")
    # Of two batches a quick process may take both.
    assert 1 <= len(list((tmp_path / "two").glob("answers-*.jsonl"))) <= 2
    assert one == two


# -- the report -----------------------------------------------------------------------------------


def test_a_smoke_report(tmp_path: Path) -> None:
    """The whole way, and its table against its own JSON."""
    assert report(["--smoke", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "smoke.json").read_text())
    assert record["model"]["name"] == "demo model"
    text = (tmp_path / "smoke.md").read_text()
    for c in record["configurations"]:
        assert len(c["scores"]) == 4
        assert f"| {c['name']} | {100 * c['average']['mean']:.1f} [" in text


def test_one_experiment_with_pictures_and_index(tmp_path: Path) -> None:
    given = ["--experiments", "extension", *ONE_SAMPLE, "--timed", "1", "--out", str(tmp_path)]
    assert report(given) == 0
    assert "(extension.md)" in (tmp_path / "README.md").read_text()


def test_a_quick_table_is_compared_with_the_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same model reproduces it; one that was off by more than its interval is told."""
    monkeypatch.setattr("benchmarks.quality.report.__main__.QUICK_SAMPLES", 1)
    monkeypatch.setattr("benchmarks.quality.report.__main__.QUICK_TASKS", ["single"])
    monkeypatch.setattr("benchmarks.quality.report.__main__.QUICK_PROCESSES", 1)
    given = ["--quick", "--out", str(tmp_path)]
    committed = tmp_path / "quick" / "quick.json"
    assert report(given) == 0
    before = committed.read_bytes()
    again = tmp_path / "quick" / "again"
    again.mkdir()
    for file in (tmp_path / "quick").glob("answers-*.jsonl"):
        shutil.copy(file, again / file.name)
    assert report(given) == 0
    assert committed.read_bytes() == before
    assert "**outside**" not in capsys.readouterr().out
    record = json.loads(before)
    record["configurations"][0]["average"] = {"mean": 0.5, "low": 0.4, "high": 0.6}
    committed.write_text(json.dumps(record))
    assert report(given) == 1
    assert "**outside**" in capsys.readouterr().out
    record["model"]["fingerprint"] = "other"
    committed.write_text(json.dumps(record))
    assert report(given) == 2
