"""What becomes of real files: every file of a folder is parsed alone, or ingested by a service.

    python -m benchmarks.retrieval.real_files FOLDER [--url URL] [--out FILE]

The first level of folders is taken for the package that files come from. Each file ends as one of
`stored`, `warned` (stored, and something is said of it) or `refused` (with a reason); a file of
which neither the job nor the service knows anything is `lost`. Prints a table by suffix and the
reasons; the record of --out holds every file, with what was said of it, and documents per second.

Parsing alone takes files one after another, each in a process of its own, as the service does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mimetypes
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from service.errors import InvalidRequest
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.parsing.file_kinds import file_kind, media_type_of_suffix
from service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from service.settings import Settings
from tuning.environment import describe

STATES = ("stored", "warned", "refused", "lost")
FILES_PER_CALL = 20
POLL_S = 1.0
CALL_S = 600.0
_VARIABLE = re.compile(r"'[^']*'|\([^)]*\)|\d[\d,.]*|\S+\.(?:xml|rels|html)\b")


@dataclass
class Outcome:
    """What became of a file; `said` is the reason of a refusal, or the codes of its warnings."""

    name: str
    state: str
    said: list[str] = field(default_factory=list)
    seconds: float | None = None

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix.lower()


async def parse_alone(folder: Path, files: Iterable[Path]) -> list[Outcome]:
    """Parse files one after another, without a service."""
    parser = DocumentParser(FileLimits.of(Settings()))
    outcomes = []
    for path in files:
        name, content = str(path.relative_to(folder)), path.read_bytes()
        kind = file_kind(name, _media_type(path), content)
        started = time.perf_counter()
        try:
            parsed = await parser.document(IngestDocument(name, "files", kind, content))
        except InvalidRequest as error:
            outcome = Outcome(name, "refused", [error.message])
        else:
            said = [warning.code for warning in parsed.warnings]
            outcome = Outcome(name, "warned" if said else "stored", said)
        outcome.seconds = round(time.perf_counter() - started, 4)
        outcomes.append(outcome)
    return outcomes


async def ingest(
    folder: Path, files: Sequence[Path], url: str, collection: str, api_key: str | None
) -> list[Outcome]:
    """Have a service ingest files, some per call, and wait until all of its jobs are finished."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    outcomes: list[Outcome] = []
    async with httpx.AsyncClient(base_url=url, timeout=CALL_S, headers=headers) as http:
        jobs = []
        rest = iter(files)
        while batch := list(islice(rest, FILES_PER_CALL)):
            names = [str(path.relative_to(folder)) for path in batch]
            reply = await _send(http, collection, zip(names, batch, strict=True))
            if reply.status_code >= 400:
                outcomes += [Outcome(name, "refused", [reply.text[:300]]) for name in names]
            else:
                jobs.append((reply.json(), names))
        for job, names in jobs:
            while job["state"] in ("queued", "running"):
                await asyncio.sleep(POLL_S)
                job = (await http.get(f"/admin/jobs/{job['job_id']}")).raise_for_status().json()
            refused = {error["doc_id"]: error["message"] for error in job["errors"]}
            for name in names:
                if name in refused:
                    outcomes.append(Outcome(name, "refused", [refused[name]]))
                else:
                    outcomes.append(await _stored(http, collection, name))
    return outcomes


async def _send(
    http: httpx.AsyncClient, collection: str, batch: Iterable[tuple[str, Path]]
) -> httpx.Response:
    parts: list[tuple[str, Any]] = [("collection", (None, collection))]
    for name, path in batch:
        parts.append(("file", (name, path.read_bytes(), _media_type(path))))
    while True:
        reply = await http.post("/admin/precompute", files=parts)
        if reply.status_code not in (429, 503):  # its queue is full
            return reply
        await asyncio.sleep(POLL_S)


async def _stored(http: httpx.AsyncClient, collection: str, name: str) -> Outcome:
    reply = await http.get(f"/admin/documents/{name}", params={"collection": collection})
    if reply.status_code != 200:
        return Outcome(name, "lost", [reply.text[:300]])
    said = [warning["code"] for warning in reply.json()["warnings"] or []]
    return Outcome(name, "warned" if said else "stored", said)


def _media_type(path: Path) -> str:
    known = media_type_of_suffix().get(path.suffix.lower())
    return known or mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield lines of Markdown: files by suffix and state, then what was said how often."""
    yield "| suffix | files | " + " | ".join(STATES) + " |"
    yield "|---" * (2 + len(STATES)) + "|"
    by_suffix = Counter((outcome.suffix, outcome.state) for outcome in outcomes)
    for suffix, count in sorted(Counter(outcome.suffix for outcome in outcomes).items()):
        numbers = " | ".join(str(by_suffix[suffix, state]) for state in STATES)
        yield f"| `{suffix}` | {count} | {numbers} |"
    said = Counter(
        (outcome.state, _VARIABLE.sub("…", one)) for outcome in outcomes for one in outcome.said
    )
    yield from ("", *(f"- {count} {state}: {one}" for (state, one), count in said.most_common()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="of a running service; without it files are only parsed")
    parser.add_argument("--collection", default="real-files")
    parser.add_argument("--api-key")
    parser.add_argument("--out", type=Path, help="where the record is written, as JSON")
    args = parser.parse_args()
    files = sorted(path for path in args.folder.rglob("*") if path.is_file())
    started = time.perf_counter()
    work = (
        ingest(args.folder, files, args.url, args.collection, args.api_key)
        if args.url
        else parse_alone(args.folder, files)
    )
    outcomes = asyncio.run(work)
    seconds = time.perf_counter() - started
    packages = sorted({Path(outcome.name).parts[0] for outcome in outcomes})
    print(*table(outcomes), sep="\n")
    print(f"\n{len(files)} files of {len(packages)} packages in {seconds:.1f} s", end="")
    print(f", {len(files) / seconds:.2f} documents/s")
    if args.out:
        record = {
            "environment": describe(),
            "service": args.url is not None,
            "packages": packages,
            "seconds": round(seconds, 1),
            "documents_per_s": round(len(files) / seconds, 3),
            "files": [asdict(outcome) for outcome in outcomes],
        }
        args.out.write_text(json.dumps(record, ensure_ascii=False, indent=1), encoding="utf-8")
    return 1 if any(outcome.state == "lost" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
