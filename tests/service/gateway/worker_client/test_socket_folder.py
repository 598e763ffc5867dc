"""Folders of gateways that were killed, and of those that were not."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from kvstitch.service.gateway.worker_client import sockets


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Path:
    path = Path(tempfile.mkdtemp(prefix="kv-"))  # a short path, for a socket
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def _old(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    os.utime(folder, (time.time() - 3600,) * 2)
    return folder


def test_only_what_nobody_uses_is_removed(parent: Path) -> None:
    used, lock = sockets.make_folder()
    _old(used)
    listening = parent / "kvstitch-listening"
    listening.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening / "worker-1.sock"))
        server.listen()
        _old(listening)
        left = parent / "kvstitch-left"
        left.mkdir()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left / "worker-1.sock"))
        _old(left)
        foreign = _old(parent / "kvstitch-notes")
        (foreign / "notes.txt").write_text("mine")
        _old(foreign)
        young = parent / "kvstitch-young"
        young.mkdir()
        (parent / "kvstitch-link").symlink_to(_old(parent / "elsewhere"))
        again, second = sockets.make_folder()
        kept = {path.name for path in parent.iterdir()}
        assert kept == {used.name, again.name, "kvstitch-listening", "kvstitch-notes",
                        "kvstitch-young", "kvstitch-link", "elsewhere"}  # fmt: skip
    os.close(lock)
    os.close(second)
    _old(used)
    sockets.remove_unused_folders(parent)
    assert not used.exists() and again.exists()
