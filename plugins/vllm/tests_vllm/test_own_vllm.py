"""A vLLM that the service starts: a stand-in for vLLM's package, run by what runs the real one;
and that one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import load
from kvstitch_vllm.own_vllm import OwnVllm
from tests.e2e.service import Service
from tests_vllm.test_real_vllm import START_S, newest

ROOT = Path(__file__).parents[3]
QUESTION = "Who pays on Friday?"
SERVER = """
import argparse, json, os, pathlib, signal
from kvstitch_vllm.weights import weights_of
from tests_vllm.vllm_server import Vllm

parser = argparse.ArgumentParser()
for name in ("model", "host", "dtype", "max-model-len", "structured-outputs-config"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--enable-prompt-tokens-details", action="store_true", required=True)
parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
given = parser.parse_args()
model, shared = pathlib.Path(given.model), given.kv_transfer_config["kv_connector_extra_config"]
assert not any(name.startswith("KVSTITCH_") for name in os.environ)
vllm = Vllm(model, pathlib.Path(shared["folder"]), weights_of(model), port=given.port,
            api_key=os.environ["VLLM_API_KEY"])
print("it listens", flush=True)
signal.pause()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment that has the stand-in."""
    package = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVER)
    path = ":".join([str(tmp_path / "packages"), str(ROOT), str(ROOT / "plugins" / "vllm")])
    file = tmp_path / "python"
    file.write_text(
        f'#!/bin/sh\nif [ "$1" = -I ]; then exit 0; fi\n'
        f'PYTHONPATH="$PYTHONPATH:{path}" exec {sys.executable} "$@"\n'
    )
    file.chmod(0o755)
    return file


@pytest.fixture(params=["stand-in", pytest.param("vLLM", marks=pytest.mark.slow)])
def service(
    request: pytest.FixtureRequest, python: Path, tmp_path: Path, model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Service:  # fmt: skip
    settings: dict[str, object] = {"vllm_python": python}
    if request.param == "vLLM":
        settings = {"vllm_python": newest(), "vllm_args": "--enforce-eager"}
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        monkeypatch.setattr("tests.e2e.service.START_S", START_S)
    (tmp_path / "shared").mkdir()
    return Service(
        model, tmp_path / "data", engine="vllm", dtype="float32",
        hand_over_dir=tmp_path / "shared", **settings,
    )  # fmt: skip


def test_it_is_started_again_and_ends_with_the_service(service, tmp_path, twelve):
    with service:
        service.ingest(twelve)
        first = service.ask(QUESTION, max_tokens=4)
        assert first["warnings"] == [] and first["stages"]["engine"] > 0
        (server,) = running(tmp_path)
        left = group(server)
        os.kill(server, signal.SIGKILL)
        service.until(lambda: running(tmp_path) not in ([], [server]), "it is not started again")
        service.until(lambda: service.post(QUESTION).status_code == 200, "it is not back", START_S)
        assert service.ask(QUESTION, max_tokens=4)["text"] == first["text"]
        (again,) = running(tmp_path)
        left += group(again)
        service.sigterm()
        assert service.exit_code() == 0
        service.until(lambda: not any(map(alive, left)), "a process is left")


def running(folder: Path) -> list[int]:
    """Servers that are handed KV below this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"\0kvstitch_vllm.serve\0" in command and bytes(folder) in command:
                found.append(int(process.name))
    return found


def group(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-g", str(pid)], stdout=PIPE, check=True).stdout
    return [int(each) for each in found.split()]


def test_it_ends_with_whoever_has_started_it(tmp_path, python):
    """Also with its children, and where nobody could tell it."""
    server = tmp_path / "packages" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.write_text(
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\nsignal.pause()\n"
    )
    command = [str(python), "-m", "kvstitch_vllm.serve"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True) as running:
        assert running.stdin is not None and running.stdout is not None
        child = int(running.stdout.readline())
        assert alive(child) and running.poll() is None
        running.stdin.close()
        assert running.wait(60) == -signal.SIGKILL
    give_up_at = time.monotonic() + 60
    while alive(child):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.mark.parametrize(
    ("changed", "why"),
    [({}, "has none: set vllm_python"), ({"vllm_python": "/absent/python"}, "No such file"),
     ({"worker_addresses": "tcp://127.0.0.1:1"}, "set engine_url")],
    ids=str,
)  # fmt: skip
def test_what_is_missing_is_said(tmp_path, model, changed, why):
    with pytest.raises(InvalidSetting, match=why):
        OwnVllm(load(engine="vllm", data_dir=tmp_path, **changed), model)
