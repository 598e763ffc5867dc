"""Questions about real documentation: files of Debian's -doc packages, as a user would ingest them.

The answer of each question stands in one passage of one file. The two splits share no file; all
files together are one collection. The files are not in this repository:
`python -m benchmarks.quality.fetch_docs` fetches them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvstitch.retriever import Document
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from kvstitch.service.settings import Settings

_DATA = Path(__file__).resolve().parents[1] / "data"
PARSERS = 2
"""Files that are parsed at a time, each by a process of its own."""


@dataclass(frozen=True)
class Asked:
    """A question; `file` is the name of the one that answers it, `PACKAGE/FILE`."""

    question: str
    answers: tuple[str, ...]
    file: str


@dataclass(frozen=True)
class Package:
    """A Debian package.

    Attributes:
        path: of the package below the root of an archive.
        sha256: of the whole package, so of all its files.
        files: paths in the package by their names in the collection's folder of the package.
    """

    name: str
    version: str
    path: str
    sha256: str
    files: Mapping[str, str]


@cache
def load(split: str) -> tuple[Asked, ...]:
    """All questions of a split, in the order of the file, which is random."""
    lines = (_DATA / "docs_questions.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(
        Asked(raw["question"], tuple(raw["answers"]), raw["file"])
        for raw in map(json.loads, lines)
        if raw["split"] == split
    )


@cache
def packages(file: Path = _DATA / "docs_packages.json") -> tuple[Package, ...]:
    raw = json.loads(file.read_text(encoding="utf-8"))
    return tuple(Package(**one) for one in raw)


def names() -> list[str]:
    """The files of the collection, `PACKAGE/FILE`, sorted."""
    return sorted(f"{package.name}/{file}" for package in packages() for file in package.files)


def default_folder() -> Path:
    """Where the files are fetched to: $XDG_CACHE_HOME/kvstitch/benchmarks/docs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstitch" / "benchmarks" / "docs"


def contents(folder: Path) -> list[tuple[str, bytes]]:
    """Every file of the collection with its name.

    Raises:
        InvalidRequest: files are missing.
    """
    missing = [name for name in names() if not (folder / name).is_file()]
    if missing:
        raise InvalidRequest(
            f"{folder} lacks {len(missing)} files, {missing[0]} first: run "
            f"`python -m benchmarks.quality.fetch_docs --out {folder}`",
            field="docs",
        )
    return [(name, (folder / name).read_bytes()) for name in names()]


def read(folder: Path) -> list[Document]:
    """The files as the service parses them.

    Raises:
        InvalidRequest: files are missing.
    """
    return parsed(contents(folder))


def parsed(files: Iterable[tuple[str, bytes]]) -> list[Document]:
    """Files, with their names, as the service parses them."""
    return asyncio.run(_parsed(files))


async def _parsed(files: Iterable[tuple[str, bytes]]) -> list[Document]:
    parser = DocumentParser(FileLimits.of(Settings.model_validate({})))
    turn = asyncio.Semaphore(PARSERS)

    async def parse(name: str, content: bytes) -> Document:
        async with turn:
            kind = file_kind(name, "", content)
            found = await parser.document(IngestDocument(name, "default", kind, content))
            return Document(name, found.text, found.title, marks=found.marks)

    return list(await asyncio.gather(*(parse(*file) for file in files)))
