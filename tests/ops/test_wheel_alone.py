"""The wheel in an environment with nothing but what it requires: its command starts, and the
gateway's parser reads one file of each kind there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.ops import tools
from tests.ops.test_package import SERVED
from tests.service.gateway.documents.office_files import make_zip
from tests.service.gateway.documents.parsing.test_requirements import FILES, expected_text

pytestmark = [pytest.mark.network, pytest.mark.slow]
# As the gateway reads an upload: the kind by bytes, media type and name, in a process with limits.
READ = """
import asyncio, json, sys
from kvstitch import service
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind, refuse_unread
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from kvstitch.service.settings import load

assert service.__file__.startswith(sys.prefix), service.__file__
content = sys.stdin.buffer.read()
kind = file_kind("file." + sys.argv[1], "", content)
try:
    if kind in ("text", "unread"):
        refuse_unread(content, kind)
    read = asyncio.run(parse_file(kind, content, FileLimits.of(load())))
    print(json.dumps({"text": read.text}))
except InvalidRequest as error:
    print(json.dumps({"error": error.message}))
"""


def run(command: list[str | Path], cwd: Path, stdin: bytes = b"") -> bytes:
    """Return what a command prints; it sees no modules but those of its own environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel was installed, with what it requires."""
    folder = tmp_path_factory.mktemp("wheel")
    index = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "setuptools>=77"]
    if subprocess.run(index, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("no package index in reach")
    source = folder / "source"  # building leaves files beside the sources
    for package in SERVED:
        kept = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(tools.REPOSITORY / package, source / package, ignore=kept, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(tools.REPOSITORY / name, source)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", source], folder)
    (wheel,) = folder.glob("kvstitch-*.whl")
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    # The same torch as here: the package index's may bring gigabytes of CUDA.
    torch = [f"torch=={version('torch')}"]
    if url := os.environ.get("TORCH_INDEX_URL"):
        torch += ["--extra-index-url", url]
    pip: list[str | Path] = [
        folder / "venv/bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
    ]
    run([*pip, "-c", tools.REPOSITORY / "constraints.txt", *torch, wheel], folder)
    return folder / "venv/bin"


def test_its_command_starts(programs: Path, tmp_path: Path) -> None:
    said = run([programs / "kvstitch", "--help"], tmp_path)
    assert all(command in said for command in (b"serve", b"ingest", b"keys"))


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "eml"])
def test_it_reads_a_file_of_each_kind(kind: str, programs: Path, tmp_path: Path) -> None:
    suffix = kind.partition(",")[0]
    read = run([programs / "python", "-c", READ, suffix], tmp_path, FILES[kind])
    assert expected_text(kind) in json.loads(read).get("text", ""), read


def test_what_plugins_read_is_refused_with_what_to_install(programs: Path, tmp_path: Path) -> None:
    read = run([programs / "python", "-c", READ, "png"], tmp_path, b"\x89PNG\r\n\x1a\n")
    assert "kvstitch-ocr" in json.loads(read)["error"]
    read = run([programs / "python", "-c", READ, "eml"], tmp_path, FILES["eml"])
    assert "kvstitch-formats" in json.loads(read)["error"]


def test_an_unknown_archive_is_refused_with_what_to_install(programs: Path, tmp_path: Path) -> None:
    content = make_zip({"mimetype": "application/vnd.oasis.opendocument.text"})
    read = run([programs / "python", "-c", READ, "odt"], tmp_path, content)
    assert "kvstitch-formats" in json.loads(read)["error"]
