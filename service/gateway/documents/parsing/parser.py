"""Turns an uploaded document of any kind into one that can be indexed.

Files are parsed by a process of its own, within limits of time, memory and output.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, Self

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever.chunking import middle_cut
from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    UNREAD,
    format_of,
    parsers_by_part,
    refuse_unread,
)
from kvstitch.service.gateway.documents.parsing.markup.text_files import without_metadata
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    MAX_MARKS,
    ParsedFile,
    ParseWarning,
)
from kvstitch.service.plugins import PictureReader, hooks
from kvstitch.service.settings import Settings
from kvstitch.service.shared.resources import behind_all
from kvstitch.service.shared.worker_settings import MIB

LONG_S = 2.0
"""A file that takes longer than most comes behind others."""
MAX_TITLE_CHARS = 100  # of a title that nobody gave: at most half a chunk of the demo model
GONE = "the uploaded file cannot be read ({}): ingest it again"


@dataclass(frozen=True)
class FileLimits:
    pages: int  # of a PDF, slides, sheets, chapters
    chars: int  # of its text
    cpu_s: int
    memory_bytes: int  # of the parser process
    ocr_pages: int = 0  # that are read as pictures
    pictures: PictureReader | None = None  # what reads these; None: nothing does

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_file_pages,
            settings.max_file_chars,
            settings.file_cpu_s,
            settings.file_memory_mib * MIB,
            settings.ocr_pages,
            hooks().picture_reader(),
        )

    @property
    def most_cpu_s(self) -> int:
        """Seconds of CPU with those that reading pictures adds."""
        return self.cpu_s + (self.ocr_pages * self.pictures.page_cpu_s if self.pictures else 0)

    @property
    def most_memory_bytes(self) -> int:
        """Memory with what reading pictures adds."""
        reads = self.pictures is not None and self.ocr_pages
        return self.memory_bytes + (self.pictures.memory_bytes if self.pictures and reads else 0)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The numbers that parser_process.py is given."""
        return (self.pages, self.chars, self.ocr_pages, self.cpu_s, self.most_cpu_s,
                self.memory_bytes, self.most_memory_bytes)  # fmt: skip

    @property
    def output_bytes(self) -> int:
        """The longest output: JSON takes up to 12 bytes per character, and all may be headings."""
        return 24 * self.chars + 64 * self.pages + 65_536

    @property
    def wall_s(self) -> float:
        """Seconds to wait: the process gets a thirtieth of a core that answers keep busy."""
        return 30.0 * self.most_cpu_s + 10.0


async def parse_file(
    kind: str, content: bytes | Path | SpooledFile, limits: FileLimits, charset: str = ""
) -> ParsedFile:
    """Parse content in a process of its own; text is read in this charset unless it is UTF-8."""
    if (found := format_of(kind)) is None:
        raise InvalidRequest(f"files of kind {kind!r} cannot be read")
    reader = "" if limits.pictures is None else limits.pictures.reader
    archives = json.dumps(parsers_by_part())
    what = [kind, found.parser, charset if found.text else "", reader, archives]
    if isinstance(content, bytes):
        answer = await _run(PIPE, content, limits, what)
    else:
        path = content.path if isinstance(content, SpooledFile) else content
        try:
            with path.open("rb") as file:
                answer = await _run(file, None, limits, what)
        except OSError as error:
            raise InvalidRequest(GONE.format(error.strerror)) from error
    if "error" in answer:
        raise InvalidRequest(str(answer["error"]))
    marks = [tuple(mark) for mark in answer["marks"]]
    warnings = tuple(
        ParseWarning(**{**warning, "places": tuple(warning["places"])})
        for warning in answer["warnings"]
    )
    return ParsedFile(answer["text"], answer["title"], marks, warnings, answer["said"])


async def _run(
    stdin: int | IO[bytes], content: bytes | None, limits: FileLimits, what: list[str]
) -> dict[str, Any]:
    # The environment holds only the path to its modules, none of our secrets.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvstitch.service.gateway.documents.parsing.parser_process",
        *what, *map(str, limits.arguments),
        stdin=stdin, stdout=PIPE, stderr=DEVNULL, process_group=0,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    put_back = asyncio.get_running_loop().call_later(LONG_S, behind_all, process.pid)
    try:
        async with asyncio.timeout(limits.wall_s):
            feeding = asyncio.create_task(_feed(process, content))
            output = await _output(process, limits.output_bytes)
            await feeding
            code = await process.wait()
    except TimeoutError:
        raise InvalidRequest(f"it took more than {limits.wall_s:.0f} s: split it") from None
    finally:
        put_back.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise InvalidRequest(f"it took more than {limits.cpu_s} s of CPU: split it")
    if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGTRAP, -signal.SIGBUS):
        raise InvalidRequest("it is damaged, or needs more memory than is allowed: save it anew")
    if code != 0:
        raise InvalidRequest(f"reading it failed (code {code}): save it anew")
    answer: dict[str, Any] = json.loads(output)
    return answer


async def _feed(process: Process, content: bytes | None) -> None:
    if content is None:
        return
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(content)
        await process.stdin.drain()
        process.stdin.close()


async def _output(process: Process, limit: int) -> bytes:
    assert process.stdout is not None
    out = bytearray()
    while part := await process.stdout.read(65_536):
        out += part
        if len(out) > limit:
            raise InvalidRequest("its text is longer than is allowed: split it")
    return bytes(out)


@dataclass(kw_only=True)
class ParsedDocument(EmbeddedDocument):
    """A document with its text, on its way into the catalog."""

    item: IngestDocument
    warnings: Sequence[ParseWarning] = ()  # what is not in its text, or may be wrong there


class DocumentParser:
    def __init__(self, limits: FileLimits) -> None:
        self._limits = limits

    async def document(self, item: IngestDocument) -> ParsedDocument:
        """Return the document with its text and marks; without a title it gets the file's, else the
        file's name. Raises InvalidRequest."""
        content, title = item.content, item.title
        marks: tuple[DocumentMark, ...] = ()
        if item.kind in ("text", UNREAD) and (text := await _plain(item)) is not None:
            parsed = ParsedFile(text)
            if PurePath(item.doc_id).suffix.lower() in (".txt", ".text"):
                text, said = without_metadata(text)
                parsed = ParsedFile(text, said=said)
                title = title or _short(said.get("title", ""))
        else:
            parsed = await parse_file(item.kind, content, self._limits, item.charset)
            title = title or _short(parsed.title or PurePath(item.doc_id).stem)
            marks = _marks(parsed)
        title = _told_apart(title, item.metadata, parsed.said)
        # Nobody could see, or search for, anything in it.
        if not any(char.isprintable() and not char.isspace() for char in parsed.text):
            raise InvalidRequest("the file holds no text")
        return ParsedDocument(
            item.doc_id, parsed.text, title, item.metadata, marks, item.readers, item.writers,
            scope=item.scope, item=item, warnings=parsed.warnings,
        )  # fmt: skip


def _short(title: str) -> str:
    """Cut a title of a file in its middle: it stands before each of its chunks."""
    fits = len(title) <= MAX_TITLE_CHARS
    return title if fits else middle_cut(title, lambda cut: len(cut) <= MAX_TITLE_CHARS)


# What tells a document from others of its title, by the names of entries of its metadata.
_TELLING = (("", "date", "updated", "lastmod"), ("version ", "version", "revision"),
            ("replaces ", "replaces", "supersedes"))  # fmt: skip


def _told_apart(title: str, *metadata: Mapping[str, Any]) -> str:
    """Return a title with date, version, and what the document replaces, which the model sees."""
    said = []
    for called, *names in _TELLING:
        values = (of[name] for of in metadata for name in names if of.get(name))
        value = next((one for one in values if isinstance(one, str | int | float)), "")
        text = str(value)[:MAX_TITLE_CHARS].strip()
        if text and text not in title:
            said.append(called + text)
    return f"{title} ({', '.join(said)})" if title and said else title


async def _plain(item: IngestDocument) -> str | None:
    """Return the text of a document that is UTF-8; None if its charset is to be found."""
    content = item.content
    if isinstance(content, SpooledFile):
        try:
            content = await asyncio.to_thread(content.read)
        except OSError as error:
            raise InvalidRequest(GONE.format(error.strerror)) from error
    refuse_unread(content, item.kind)
    try:
        return None if b"\0" in content else content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _marks(parsed: ParsedFile) -> tuple[DocumentMark, ...]:
    """Return the marks that have a label, and text behind them."""
    said = [
        DocumentMark(start=start, kind=kind, label=label)
        for start, kind, label in parsed.marks
        if label and start < len(parsed.text)
    ]
    return tuple(sorted(said, key=lambda mark: mark.start)[:MAX_MARKS])
