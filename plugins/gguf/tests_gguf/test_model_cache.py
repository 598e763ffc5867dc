"""Conversions are made once, whole or not at all, and belong to one content."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.errors import ModelRefused
from kvstitch_gguf.model_cache import Conversion, ModelCache

WANTED = Conversion("tiny", "ab" * 32, "bfloat16")


def write(folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return {"source": "/tiny.gguf"}


def never(folder: Path) -> dict[str, Any]:
    raise AssertionError("it was there")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> ModelCache:
    return ModelCache(tmp_path / "cache", said.append)


def test_a_second_start_finds_the_first_one_s(cache: ModelCache) -> None:
    assert cache.find(WANTED) is None
    made = cache.make(WANTED, write)
    assert cache.make(WANTED, never) == cache.find(WANTED) == made
    [(folder, about)] = cache.all()
    assert folder == made and about["source"] == "/tiny.gguf" and about["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "other",
    [Conversion("tiny", "cd" * 32, "bfloat16"), Conversion("tiny", "ab" * 32, "float32")],
    ids=["content", "dtype"],
)
def test_another_content_or_dtype_is_another_folder(cache: ModelCache, other: Conversion) -> None:
    made = cache.make(WANTED, write)
    assert cache.find(other) is None and cache.make(other, write) != made
    assert cache.find(WANTED) == made


def test_only_the_owner_reads_it(cache: ModelCache) -> None:
    before = os.umask(0o022)
    try:
        made = cache.make(WANTED, write)
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert (made / "source.json").stat().st_mode & 0o777 == 0o600


def test_one_that_failed_leaves_nothing(cache: ModelCache) -> None:
    def fails(folder: Path) -> dict[str, Any]:
        write(folder)
        raise ModelRefused("half of it")

    with pytest.raises(ModelRefused, match="half of it"):
        cache.make(WANTED, fails)
    assert cache.find(WANTED) is None
    assert [path.suffix for path in cache.folder.iterdir()] == [".lock"]


def test_one_that_was_killed_is_made_again(cache: ModelCache) -> None:
    killed = cache.folder / f".{WANTED.folder_name}.new"
    killed.mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(b"wei")
    assert cache.find(WANTED) is None
    made = cache.make(WANTED, write)
    assert (made / "model.safetensors").read_bytes() == b"weights" and not killed.exists()


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_one_that_was_damaged_since_is_made_again(cache: ModelCache, damage: str) -> None:
    weights = cache.make(WANTED, write) / "model.safetensors"
    weights.write_bytes(b"wei") if damage == "cut" else weights.unlink()
    assert cache.find(WANTED) is None
    assert (cache.make(WANTED, write) / "model.safetensors").read_bytes() == b"weights"


def test_two_that_want_the_same_make_it_once(cache: ModelCache, said: list[str]) -> None:
    began, go_on, made = threading.Event(), threading.Event(), []

    def slow(folder: Path) -> dict[str, Any]:
        began.set()
        assert go_on.wait(240)
        return write(folder)

    first = threading.Thread(target=lambda: made.append(cache.make(WANTED, slow)))
    second = threading.Thread(target=lambda: made.append(cache.make(WANTED, never)))
    first.start()
    assert began.wait(240)
    second.start()
    for _ in range(24_000):
        if said:
            break
        time.sleep(0.01)
    go_on.set()
    first.join(240)
    second.join(240)
    assert made == [cache.find(WANTED)] * 2
    assert said == ["another process prepares tiny; waiting for it"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = ModelCache(tmp_path / "file" / "cache", said.append)
    with pytest.raises(ModelRefused, match=r"cannot be used .*--model-cache"):
        cache.make(WANTED, write)


def test_a_hash_is_remembered_until_the_file_changes(cache: ModelCache, tmp_path: Path) -> None:
    """Also if the new content has the same size and the same time of modification."""
    file = tmp_path / "a.gguf"
    file.write_bytes(b"one")
    status = file.stat()
    first = cache.sha256(file, remember=True)
    [note] = (cache.folder / ".hashes").iterdir()
    note.write_text(note.read_text().replace(first, "remembered"))
    assert cache.sha256(file, remember=True) == "remembered"
    file.write_bytes(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.sha256(file, remember=True) not in (first, "remembered")


def test_looking_writes_nothing(cache: ModelCache, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"one")
    assert len(cache.sha256(tmp_path / "a.gguf", remember=False)) == 64
    assert cache.find(WANTED) is None and list(cache.all()) == []
    assert not cache.folder.exists()
