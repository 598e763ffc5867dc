"""The questions about real documentation are well formed, and packages are opened as they should
be. No file is fetched."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.quality.fetch_docs import extract
from benchmarks.quality.tasks import documentation
from benchmarks.quality.tasks.documentation import Package
from benchmarks.quality.texts import normalised_words
from service.errors import InvalidRequest


def test_splits_share_no_question_and_no_file() -> None:
    dev, test = documentation.load("dev"), documentation.load("test")
    assert (len(dev), len(test)) == (60, 100)
    assert len({asked.question for asked in dev + test}) == 160
    files = [{asked.file for asked in split} for split in (dev, test)]
    assert not files[0] & files[1]
    assert len(files[0] | files[1]) > 130
    assert files[0] | files[1] == set(documentation.names())


def test_every_question_has_answers_that_it_does_not_give_away() -> None:
    for asked in documentation.load("dev") + documentation.load("test"):
        assert asked.question.endswith("?") and asked.answers
        said = f" {' '.join(normalised_words(asked.question))} "
        for answer in asked.answers:
            words = " ".join(normalised_words(answer))
            assert words and f" {words} " not in said, asked


def test_every_package_is_pinned() -> None:
    for package in documentation.packages():
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
        version = package.version.rpartition(":")[2]
        assert package.path.endswith((f"{package.name}_{version}_all.deb", f"_{version}_amd64.deb"))
        assert all(file.endswith(".html") for file in package.files)
    assert max(Counter(package.name for package in documentation.packages()).values()) == 1


def deb(files: dict[str, bytes]) -> bytes:
    """A package with these files, behind a member of odd length."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    members = {"debian-binary": b"2.0", "data.tar.xz": packed.getvalue()}
    found = b"!<arch>\n"
    for name, content in members.items():
        found += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        found += content + b"\n" * (len(content) % 2)
    return found


def package(content: bytes, **files: str) -> Package:
    return Package("toy-doc", "1", "t/toy.deb", hashlib.sha256(content).hexdigest(), files)


def test_only_the_named_files_are_taken_from_a_package(tmp_path: Path) -> None:
    made = deb({"usr/a.html": b"A", "usr/b.html": b"B", "usr/share/doc/toy-doc/copyright": b"C"})
    extract(made, package(made, **{"one.html": "usr/a.html"}), tmp_path)
    found = {p.name: p.read_bytes() for p in (tmp_path / "toy-doc").iterdir()}
    assert found == {"one.html": b"A", "copyright": b"C"}


def test_another_package_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    made = deb({"usr/a.html": b"A"})
    with pytest.raises(ValueError, match="SHA-256"):
        extract(made, package(b"other"), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"lacks two\.html"):
        extract(made, package(made, **{"two.html": "usr/b.html"}), tmp_path)
    with pytest.raises(ValueError, match="no Debian package"):
        extract(b"<html>", package(b"<html>"), tmp_path)


def test_files_that_were_not_fetched_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="fetch_docs"):
        documentation.read(tmp_path)
