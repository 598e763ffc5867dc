"""`kvstitch ingest`: files to documents, documents to jobs, and a bar until their KV is stored."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from service.cli.http import Refused, checked, client

SUFFIXES = (".txt", ".md", ".markdown", ".jsonl")
POLL_S = 0.2


def run(given: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them failed."""
    documents = list(read_all([Path(path) for path in given.paths]))
    if not documents:
        raise Refused(f"no documents: {', '.join(given.paths)} hold no {', '.join(SUFFIXES)} files")
    batches = [documents[i : i + given.batch] for i in range(0, len(documents), given.batch)]
    with client(given.url) as http:
        jobs = [
            checked(http.post("/admin/precompute", json={"documents": batch}))["job_id"]
            for batch in batches
        ]
        if given.no_wait:
            print("\n".join(jobs))
            return 0
        finished = _watch(http, jobs, len(documents))
    errors = [error for job in finished for error in job["errors"]]
    chunks = sum(job["chunks"] for job in finished)
    print(f"{len(documents) - len(errors)} documents in {chunks} chunks, {len(errors)} failed")
    for error in errors:
        print(f"  {error['doc_id']}: {error['message']}", file=sys.stderr)
    return 1 if errors else 0


def read_all(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Documents of files and folders; doc_id is the path relative to the folder given.

    Raises Refused naming a file that is missing or not UTF-8.
    """
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix.lower() in SUFFIXES and file.is_file():
                    yield from _read(file, file.relative_to(path).as_posix())
        else:
            yield from _read(path, path.name)


def _read(file: Path, doc_id: str) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(
            f"{file} is not valid UTF-8 (byte {error.start}): convert it, e.g. with "
            f"iconv -f latin1 -t utf-8 {file}"
        ) from None
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None
    if file.suffix.lower() == ".jsonl":
        yield from _lines(file, text)
    else:
        yield {"doc_id": doc_id, "title": _title(file, text), "text": text}


def _lines(file: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                document = json.loads(line)
                known = {k: document[k] for k in ("title", "metadata") if k in document}
                yield {"doc_id": document["doc_id"], "text": document["text"], **known}
            except (ValueError, KeyError, TypeError) as error:
                raise Refused(
                    f"{file}, line {number}: expected an object with doc_id and text ({error!r})"
                ) from None


def _title(file: Path, text: str) -> str:
    """The first markdown heading, else the file's name."""
    if file.suffix.lower() != ".txt":
        for line in text.split("\n"):
            if line.startswith("# "):
                return line[2:].strip()
    return file.stem


def _watch(http: httpx.Client, job_ids: Sequence[str], total: int) -> list[Any]:
    """Poll until all jobs have ended; returns them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("precomputing", total=total)
        finished: dict[str, Any] = {}
        while True:
            counted = 0
            for job_id in job_ids:
                job = finished.get(job_id) or checked(http.get(f"/admin/jobs/{job_id}"))
                if job["state"] not in ("queued", "running"):
                    finished[job_id] = job
                counted += job["progress"]["done"] + job["progress"]["failed"]
            progress.update(bar, completed=counted)
            if len(finished) == len(job_ids):
                return [finished[job_id] for job_id in job_ids]
            time.sleep(POLL_S)
