"""The engine and the store import on a bare machine: torch, transformers, safetensors, numpy,
msgspec and xxhash are there, what serving needs besides is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCKED = (
    "fastapi",
    "redis",
    "faiss",
    "pydantic",
    "zmq",
    "prometheus_client",
    "sqlalchemy",
)
# The process's entry and its server.
NEED_MORE = {
    "kvstitch.service.worker.__main__",
    "kvstitch.service.worker.server.worker_server",
    "kvstitch.service.worker.server.composition",
    "kvstitch.service.worker.server.link",
    "kvstitch.service.worker.server.reporter",
    "kvstitch.service.worker.server.counters",
}

PROGRAM = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
for name in {blocked!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(name + " was imported: the block does not work")
threads = __import__("torch").get_num_threads()
failed = []
for name in {modules!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(name + ": " + str(error))
leaked = sorted(set({blocked!r}) & set(sys.modules))
assert not leaked, leaked
assert __import__("torch").get_num_threads() == threads, "an import changed the thread count"
assert __import__("torch").is_grad_enabled(), "an import switched gradients off"
raise SystemExit("\\n".join(failed) or 0)
"""


def modules(package: str) -> list[str]:
    """Dotted names of every module below a package, found as files (nothing is imported)."""
    folder = ROOT / package.replace(".", "/")
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name not in NEED_MORE]


@pytest.mark.parametrize("package", ["kvstitch.service.worker", "kvstitch.kvstore"])
def test_imports_on_a_bare_machine(package: str) -> None:
    """Every module but the entry and the server, in a fresh process in which those packages
    cannot be imported; importing changes no global state of torch."""
    names = modules(package)
    assert package in names
    program = PROGRAM.format(blocked=BLOCKED, modules=names)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
