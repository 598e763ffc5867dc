"""A file is read as what it is, whatever it is called; its metadata tells it from its twins."""

from __future__ import annotations

from typing import Any

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    UNREAD,
    file_kind,
    refuse_unread,
)
from kvstitch.service.gateway.documents.parsing.markup.text_files import parse_markdown
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from tests.service.gateway.documents.office_files import make_zip

BOUNDS = Bounds(50, 100_000)


def markdown(text: str) -> ParsedFile:
    return parse_markdown(text.encode(), BOUNDS)


@pytest.mark.parametrize(
    ("text", "stored", "title"),
    [
        ("---\ntitle: Fees\nlayout: post\ndate: 2025-01-02\n---\n# Pier\n\n40.",
         "date: 2025-01-02\n\n# Pier\n\n40.", "Fees"),
        ("+++\ntitle = 'Fees'\nweight = 3\n+++\n40.", "40.", "Fees"),
        ("---\ntags:\n  - a\n  - b\nauthor: Q\n---\n\n# Pier",
         "author: Q | tags: a, b\n\n\n# Pier", "Pier"),
        ("---\n\nA line above.\n\n---\n\n# Pier", "---\n\nA line above.\n\n---\n\n# Pier", "Pier"),
        ("# Pier\n\n---\na: b\n---\n", "# Pier\n\n---\na: b\n---\n", "Pier"),
        ("A <!-- secret --> B `<!-- x -->`\n\n[//]: # (secret)\n", "A B `<!-- x -->`\n\n\n", ""),
        ("```\n<!-- code -->\n```\n", "```\n<!-- code -->\n```\n", ""),
    ],
)  # fmt: skip
def test_metadata_and_comments_of_markdown(text: str, stored: str, title: str) -> None:
    found = markdown(text)
    assert (found.text, found.title) == (stored, title)
    assert bool(found.warnings) is ("secret" in text)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.doc", b"\xef\xbb\xbf <!-- x --><!DOCTYPE html><p>x", "html"),
        ("a.xls", b"<html><table><tr><td>1</table>", "html"),
        ("a.csv", b"<?xml version='1.0'?>\n<html xmlns='x'>", "html"),
        ("a.xls", b"Boat\tFee\nFerry\t40\n", "csv"),
        ("a.xlsx", b"Boat;Fee\nFerry;40\n", "csv"),
        ("a.docx", b"A plain letter.", "text"),
        ("a.pdf", "Größe".encode(), "text"),
        ("a.txt", b"From now on: the pier is open.\nSubject: none", "text"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "office"),
        ("a.docx", b"", "office"),
    ],
)
def test_a_file_is_what_it_holds_not_what_it_is_called(
    name: str, content: bytes, kind: str
) -> None:
    assert file_kind(name, "", content) == kind


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.one", b"\xe4R\\\x7b\x8c\xd8\xa7M\0\0", "OneNote: export it"),
        ("a.pages", make_zip({"Index/Document.iwa": "x", "preview.jpg": "x"}), "export it as PDF"),
        ("a.key", make_zip({"index.apxl": "x"}), "export it as PDF"),
        ("a.mp3", b"ID3\x03\0abc", "sound or film"),
        ("a.db", b"SQLite format 3\0", "export its tables"),
        ("a.jpg", b"\xff\xd8\xff\xe0", "install kvstitch-ocr"),
        ("a.rar", b"Rar!\x1a\7\0", "unpack it"),
    ],
)
async def test_what_has_no_parser_is_refused_with_what_to_do(
    name: str, content: bytes, says: str
) -> None:
    item = IngestDocument(name, "c", file_kind(name, "", content), content)
    with pytest.raises(InvalidRequest, match=says):
        await DocumentParser(FileLimits(10, 10_000, 10, 512 << 20)).document(item)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"1\n00:00:01,000 --> 00:00:02,000\nHi", "subtitles"),
        (b"\xef\xbb\xbfWEBVTT\n", "subtitles"),
        (b'{\n "cells": [', "a notebook of Jupyter"),
        (b'{"nbformat": 4', "a notebook of Jupyter"),
        ("<?xml version='1.0'?><a/>".encode("utf-16"), "XML"),
        (b"From a@b.org Tue Mar  4 10:00:00 2025\nSubject: x\n", "an e-mail"),
        (b"Received: by x\n\twith y\nFrom: a@b.org\n\nHi", "an e-mail"),
    ],
)
def test_what_a_plugin_would_read_names_it(content: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"it is {says}: install kvstitch-formats"):
        refuse_unread(content, UNREAD)


@pytest.mark.parametrize(
    ("title", "metadata", "shown_title"),
    [
        ("Fees", {"date": "2025-01-02", "replaces": "fees-2024"},
         "Fees (2025-01-02, replaces fees-2024)"),
        ("Fees", {"version": 3, "supersedes": "2"}, "Fees (version 3, replaces 2)"),
        ("Fees 2025-01-02", {"date": "2025-01-02"}, "Fees 2025-01-02"),
        ("Fees", {"date": ["a"], "author": "Q"}, "Fees"),
        ("", {"date": "2025"}, ""),
    ],
)  # fmt: skip
async def test_twins_are_told_apart_in_their_titles(
    title: str, metadata: dict[str, Any], shown_title: str
) -> None:
    item = IngestDocument("a.bin", "c", "text", b"40 crowns.", title, metadata)
    parser = DocumentParser(FileLimits(10, 10_000, 10, 512 << 20))
    assert (await parser.document(item)).title == shown_title
    block = IngestDocument("fees.txt", "c", "text", b"---\ntitle: Dues\nversion: 2\n---\n40.")
    assert (await parser.document(block)).title == "Dues (version 2)"
