"""Markdown, HTML and PDF to text, and what happens to hostile files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib

import pytest

from kvstitch.retriever import Document
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.markup import html, text_files
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits, parse_file
from kvstitch.service.shared.resources import NICE
from tests.service.gateway.documents.pdfs import Drawn, draw_pdf, make_pdf

BOUNDS = Bounds(10, 10_000)
LIMITS = FileLimits(pages=10, chars=10_000, cpu_s=5, memory_bytes=512 << 20)
MARKDOWN = "intro\r\n\r\n# Kettle #\r\n\r\n```\n# no heading\n```\n\nParts\n-----\n\ntext"
HTML = (
    "<html><head><title>The  Kettle</title><style>p{}</style></head><body><nav>menu</nav>"
    "<h2>Parts<br><i>list</i></h2><p>It has a lid\n and a <b>handle</b>.</p><script>evil()</script>"
    "<ul><li>lid<li>handle</ul><table><tr><td>a<td>b</table><pre>x\n  y</pre>one<br>two"
)


def test_markdown_keeps_its_text_and_finds_its_headings() -> None:
    parsed = text_files.parse_markdown(MARKDOWN.encode(), BOUNDS)
    assert parsed.text == MARKDOWN and parsed.title == "Kettle"
    assert [mark[1:] for mark in parsed.marks] == [("heading", "Kettle"), ("heading", "Parts")]
    assert [MARKDOWN[start:][:5] for start, *_ in parsed.marks] == ["# Ket", "Parts"]


def test_html_becomes_what_a_reader_sees() -> None:
    parsed = html.parse(HTML.encode(), BOUNDS)
    assert parsed.title == "The Kettle"
    assert parsed.text.split("\n") == [
        "## Parts list",
        "It has a lid and a handle.",
        "- lid",
        "- handle",
        "a | b",
        "x",
        "  y",
        "one",
        "two",
    ]
    assert parsed.marks == [(0, "heading", "Parts list")]


def test_html_in_its_own_charset() -> None:
    page = '<meta charset="iso-8859-1"><p>Grüße “20 €”</p>'
    assert html.parse(page.encode("cp1252"), BOUNDS).text == "Grüße “20 €”"
    with pytest.raises(InvalidRequest, match="charset cannot be told"):
        html.parse("<p>Grüße</p>".encode("latin-1"), BOUNDS)
    assert html.parse(b"<meta charset=martian><p>x", BOUNDS).text == "x"


async def test_pdf_has_pages_and_a_title() -> None:
    parsed = await parse_file("pdf", make_pdf(["First page.", "Second."], title="T"), LIMITS)
    assert parsed.text == "First page.\n\nSecond." and parsed.title == "T"
    assert parsed.marks == [(0, "page", "1"), (13, "page", "2")]
    assert parsed.text[13:] == "Second."


async def test_pages_without_text_are_named() -> None:
    """The warnings come out of the process."""
    pages = [[Drawn(60, 700, "Text.")] if n in (0, 4, 6) else [] for n in range(8)]
    parsed = await parse_file("pdf", draw_pdf(pages, pictures=range(8)), LIMITS)
    warning = parsed.warnings[0]
    assert warning.code == "pages_without_text" and warning.count == 5
    assert warning.places == ("2", "3", "4", "6", "8") and "2-4, 6, 8" in warning.message
    assert (await parse_file("pdf", make_pdf(["First."]), LIMITS)).warnings == ()


def bomb() -> bytes:
    """A page whose content is 256 MiB of spaces in 256 KiB."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(256)) + packer.flush()
    page = make_pdf(["x"])
    content = page[page.index(b"<< /Length") : page.index(b"\nendstream")]
    head = b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(packed)
    return page.replace(content, head + packed)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"%PDF-1.4 and no more", "not readable pdf"),
        (make_pdf(["x"] * 11), "11 pages, the limit is 10"),
        (make_pdf(["x" * 11_000]), "more than 10000 characters"),
        (make_pdf([""]), "nothing on its pages"),
        (bomb(), "memory|readable|CPU|OCR"),
    ],
    ids=["broken", "pages", "text", "empty", "bomb"],
)
async def test_pdfs_that_are_refused(content: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await parse_file("pdf", content, LIMITS)


async def test_html_that_nests_without_end_costs_its_limit_of_cpu() -> None:
    limits = FileLimits(pages=1, chars=1000, cpu_s=1, memory_bytes=512 << 20)
    with pytest.raises(InvalidRequest, match=r"1 s of CPU|20 s: split|memory|failed"):
        await parse_file("html", b"<div>" * 200_000, limits)


async def stored(name: str, kind: str, content: bytes) -> Document:
    item = IngestDocument(name, "default", kind, content, number=1, job_id="job")
    return await DocumentParser(LIMITS).document(item)


@pytest.mark.parametrize("kind", ["text", "md", "html"])
@pytest.mark.parametrize("content", [b"", b"\n \t\n", "\u200b\ufeff \u2060\n\u00a0".encode()])
async def test_files_without_a_visible_character_are_refused(kind: str, content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="holds no text"):
        await stored("a", kind, content)


async def test_titles_that_nobody_gave_are_cut_between_words() -> None:
    long = " ".join(f"Kettle {n} in steel" for n in range(40))
    page = await stored("a.html", "html", f"<title>{long}</title><p>It boils.</p>".encode())
    first, end = page.title.split(" \u2026 ")
    assert long.startswith(f"{first} ") and long.endswith(f" {end}") and len(page.title) <= 100
    named = await stored("K" * 240 + ".html", "html", b"<p>It boils.</p>")
    assert len(named.title) == 100


async def test_bytes_of_pictures_in_markdown_are_left_out() -> None:
    data = "data:image/svg+xml;charset=utf-8;base64," + "QUJD" * 500
    text = f"# Pump\n\n![photo]({data}) Grease it.\n\n[x]: {data}\n\n<img src='{data}'>\n\n## Oil\n"
    parsed = await parse_file("md", text.encode(), LIMITS)
    assert "QUJD" not in parsed.text and "Grease it." in parsed.text
    assert [parsed.text[start:][:6] for start, *_ in parsed.marks] == ["# Pump", "## Oil"]
    assert [(warning.code, warning.count) for warning in parsed.warnings] == [("pictures", 3)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (rb"{\rtf1\ansi The ferry is red.}", "save it as .docx"),
        (b"%!PS-Adobe-3.0\n(The ferry is red) show", "make a PDF of it"),
        (b"GIF89a\x01\x00\x01\x00", "a GIF"),
        (b"\x1f\x8b\x08\x00\x00", "unpack it"),
    ],
)
async def test_what_nobody_reads_as_text_is_not_stored_as_text(content: bytes, says: str) -> None:
    """Their names say nothing, and half of them are valid UTF-8."""
    with pytest.raises(InvalidRequest, match=says):
        await DocumentParser(LIMITS).document(IngestDocument("a.x", "default", "text", content))
    said = b"Files of Word once began with {\\rtf1, those for printers with %!PS."
    assert await DocumentParser(LIMITS).document(IngestDocument("a", "default", "text", said))


def test_reading_a_file_gives_way_to_answers() -> None:
    module = "kvstitch.service.gateway.documents.parsing.parser_process"
    limits = map(str, FileLimits(9, 999, cpu_s=60, memory_bytes=1 << 30).arguments)
    parser = "kvstitch.service.gateway.documents.parsing.markup.text_files:parse_text"
    command = [sys.executable, "-m", module, "text", parser, "", "", "{}", *limits]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        give_up_at = time.monotonic() + 120.0
        while os.getpriority(os.PRIO_PROCESS, process.pid) != NICE:  # until it waits for its file
            assert process.poll() is None and time.monotonic() < give_up_at
            time.sleep(0.02)
        text, _ = process.communicate(b"A line.")
    assert b"A line." in text
