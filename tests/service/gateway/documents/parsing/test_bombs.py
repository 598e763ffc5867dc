"""Hostile uploads, and every bound of the parser process: each one ends a file that exceeds it."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.retriever import Document
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing import parser
from kvstitch.service.gateway.documents.parsing.markup import html, text_files
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits, parse_file
from kvstitch.service.shared import resources
from tests.service.gateway.documents.pdfs import make_pdf

pytestmark = pytest.mark.exhaustive

BOUNDS = Bounds(10, 10_000)


class Patient(FileLimits):
    """What is measured in CPU is tried: on a busy machine the process waits long for its turn."""

    @property
    def wall_s(self) -> float:
        return 600.0


LIMITS = Patient(pages=10, chars=10_000, cpu_s=1, memory_bytes=512 << 20)
LITTLE_MEMORY = replace(LIMITS, memory_bytes=256 << 20)
ONE = make_pdf(["x"])


def with_content(packed: bytes, filters: str) -> bytes:
    """The page with another content stream."""
    old = ONE[ONE.index(b"<< /Length") : ONE.index(b"\nendstream")]
    head = b"<< /Length %d /Filter %b >>\nstream\n" % (len(packed), filters.encode())
    return ONE.replace(old, head + packed)


@cache
def unpacks_to(gigabytes: int) -> bytes:
    """The same compressed piece again and again, which takes less time than to compress it all."""
    block, pieces = b" " * (1 << 20), gigabytes << 10
    packer = zlib.compressobj(1, wbits=-15)
    piece = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    check = reduce(lambda check, _: zlib.adler32(block, check), range(pieces), 1)
    packed = b"\x78\x01" + piece * pieces + packer.flush() + check.to_bytes(4, "big")
    return with_content(zlib.compress(packed, 9), "[/FlateDecode /FlateDecode]")


def changed(old: bytes, new: bytes) -> bytes:
    assert ONE.count(old) == 1
    return ONE.replace(old, new)


def xref_loop() -> bytes:
    """The table names itself as the one before it."""
    at = ONE.rindex(b"xref\n0 ")
    return changed(b"/Size 7", b"/Size 7 /Prev %d" % at)


def page_tree_loop() -> bytes:
    return changed(b"/Kids [4 0 R]", b"/Kids [2 0 R]")


def nested() -> bytes:
    return changed(b"/Title ()", b"/Title " + b"[" * 100_000 + b"]" * 100_000)


PDFS: dict[str, tuple[Callable[[], bytes], str]] = {
    "unpacks to 2 GiB": (partial(unpacks_to, 2), "memory|CPU|readable|OCR|failed"),
    "xref loop": (xref_loop, ""),
    "page tree loop": (page_tree_loop, ""),
    "nested": (nested, ""),
    "startxref out of the file": (partial(changed, b"startxref\n", b"startxref\n99999"), ""),
}


@pytest.mark.parametrize("kind", PDFS)
async def test_pdf_bombs_cost_at_most_their_limits(kind: str) -> None:
    """Refused, or read as what is left of them; in either case soon, and this process is well."""
    make, says = PDFS[kind]
    content = make()
    before = resident_bytes()
    try:
        parsed = await parse_file("pdf", content, LIMITS)
    except InvalidRequest as error:
        assert error.message
    else:
        assert not says and parsed.text.strip() in ("", "x")
    assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "opening", ["<div>", "<b>", "<table><tr><td>", "<svg>", "<!--", "&#", "<a b="]
)
async def test_html_that_never_closes(opening: str) -> None:
    try:
        parsed = await parse_file("html", opening.encode() * 100_000, LIMITS)
    except InvalidRequest as error:
        assert error.message
    else:
        assert len(parsed.text) <= LIMITS.chars


@pytest.mark.parametrize("opening", ["[", "![[[", "*_", ">", "- ", "<a ", "`", "[](("])
async def test_markdown_that_never_closes(opening: str) -> None:
    """Its parser takes quadratic time, so it too runs within limits."""
    text = opening * (1 << 20)
    item = spooled(text.encode())
    limits = replace(LIMITS, cpu_s=1)
    try:
        document = await DocumentParser(limits).document(item)
    except InvalidRequest as error:
        assert re.search("CPU|memory|nested|longer", error.message)
    else:
        assert isinstance(document, Document) and document.text == text


async def test_markdown_costs_its_limit_of_cpu() -> None:
    """About a minute of CPU without a limit."""
    with pytest.raises(InvalidRequest, match="more than 1 s of CPU"):
        await DocumentParser(replace(LIMITS, cpu_s=1)).document(spooled(b"[" * 3_000_000))


def spooled(content: bytes) -> IngestDocument:
    return IngestDocument("d", "default", "md", content, number=1, job_id="job")


class Impatient(FileLimits):
    @property
    def wall_s(self) -> float:
        return 0.01


class NoOutput(FileLimits):
    @property
    def output_bytes(self) -> int:
        return 10


@pytest.mark.parametrize(
    ("kind", "content", "limits", "says"),
    [
        ("pdf", make_pdf(["x"] * 11), LIMITS, "11 pages, the limit is 10"),
        ("pdf", make_pdf(["x" * 11_000]), LIMITS, "more than 10000 characters"),
        ("html", b"<p>" + b"x" * 11_000, LIMITS, "more than 10000 characters"),
        ("md", b"[" * 3_000_000, replace(LIMITS, cpu_s=1), "more than 1 s of CPU"),
        ("html", partial(bytes, 200 << 20), LITTLE_MEMORY, "memory|failed"),
        ("pdf", partial(unpacks_to, 2), LITTLE_MEMORY, "memory|OCR|readable"),
        ("html", b"<p>x", Impatient(10, 10_000, 2, 512 << 20), "took more than 0 s"),
        ("html", b"<p>x", NoOutput(10, 10_000, 2, 512 << 20), "longer than is allowed"),
    ],
    ids=["pages", "chars of a pdf", "chars of html", "cpu", "memory", "memory, packed", "time",
         "output"],
)  # fmt: skip
async def test_each_bound_bites(
    kind: str, content: bytes | Callable[[], bytes], limits: FileLimits, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await parse_file(kind, content() if callable(content) else content, limits)


TAGS = st.sampled_from(
    ["<p>", "</p>", "<h1>", "</h1>", "<pre>", "<td>", "<li>", "<!--", "-->", "&lt;", "<br>",
     "<svg>"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(page=st.lists(TAGS | st.text(max_size=6), max_size=20).map("".join))
def test_any_html(page: str) -> None:
    try:
        parsed = html.parse(page.encode("utf-8", "replace"), BOUNDS)
    except InvalidRequest:
        return
    for start, _, label in parsed.marks:
        line = " ".join(parsed.text[start:].split("\n")[0].split())
        assert re.sub("^#{1,6} ", "", line) == label


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_as_html(content: bytes) -> None:
    try:
        html.parse(content, BOUNDS)
    except InvalidRequest as error:
        assert error.message


MARKS = st.sampled_from(["# ", "\n", "\r\n", "\r", "```\n", "===\n", "- ", "> ", "[", "](", "    "])
CHARACTERS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(MARKS | CHARACTERS, max_size=20).map("".join))
def test_any_markdown(text: str) -> None:
    parsed = text_files.parse_markdown(text.encode(), BOUNDS)
    assert parsed.text == text
    assert all(0 <= start <= len(text) for start, *_ in parsed.marks)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data())
async def test_damaged_pdfs(data: st.DataObject) -> None:
    content = bytearray(ONE)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        await parse_file("pdf", bytes(content), LIMITS)
    except InvalidRequest as error:
        assert error.message


async def test_a_file_that_takes_long_comes_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Niceness counts within a session only, so the process is in ours; in a group of its own,
    which is ended as a whole."""
    seen = []

    def behind_all(pid: int) -> None:
        before = os.getpriority(os.PRIO_PROCESS, pid)
        resources.behind_all(pid)
        seen.append((before, os.getpriority(os.PRIO_PROCESS, pid), os.getsid(pid)))
        assert os.getpgid(pid) == pid

    monkeypatch.setattr(parser, "LONG_S", 0.5)
    monkeypatch.setattr(parser, "behind_all", behind_all)
    with pytest.raises(InvalidRequest, match="more than 1 s of CPU"):
        await parse_file("md", b"[" * 3_000_000, replace(LIMITS, cpu_s=1))
    assert seen == [(resources.NICE, resources.LONG_NICE, os.getsid(0))]
