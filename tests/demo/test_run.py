"""`python -m demo.run` from start to end, with the real model and without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  the kernels use its OpenMP

from demo.model import ModelMissing, fetch
from service.worker.kernels.cpu.native import why_missing

PNG = b"\x89PNG\r\n\x1a\n"
TIMEOUT_SECONDS = 900.0


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "demo.run", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_without_the_real_model_the_small_one_serves_and_is_named(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    done = run(
        *("--questions", "1", "--skip-shape", "--picture", str(picture)),
        PIP_NO_INDEX="1",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smollm2 could not be fetched" in done.stdout
    assert "small model inside the package" in done.stdout
    assert "precomputing 72 documents" in done.stdout
    assert "1/1" in done.stdout
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.network
def test_the_real_model_answers_in_sentences_with_citations(tmp_path: Path) -> None:
    if (reason := why_missing()) is not None:
        pytest.skip(f"the real model computes for ten minutes here: {reason}")
    try:
        fetch()
    except ModelMissing as missing:
        pytest.skip(str(missing))
    picture = tmp_path / "demo.png"
    done = run("--questions", "4", "--picture", str(picture))
    assert done.returncode in (0, 1), done.stdout + done.stderr  # four questions judge no model
    assert "SmolLM2-135M-Instruct" in done.stdout
    assert "65/65" in done.stdout
    assert "picture:" in done.stdout
    assert "]*" in done.stdout  # a document that holds the answer was cited
    assert picture.read_bytes().startswith(PNG)


def test_a_number_of_questions_is_checked() -> None:
    done = run("--questions", "0")
    assert done.returncode == 2
    assert "above 0" in done.stderr
