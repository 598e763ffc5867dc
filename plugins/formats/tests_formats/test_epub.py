"""EPUB: chapters in reading order, and what a reader sees of them."""

from __future__ import annotations

import zipfile
from io import BytesIO

import pytest

from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch_formats import epub
from tests.service.gateway.documents.office_files import changed_zip
from tests_formats.made_files import make_epub

BOUNDS = Bounds(50, 100_000)


def test_epub() -> None:
    found = epub.parse(make_epub("The Book", ["<h1>One</h1><p>Goat.</p>", "<h1>Two</h1>x"]), BOUNDS)
    assert (found.title, found.text) == ("The Book", "# One\nGoat.\n\n# Two\nx")
    assert [(mark[1:], found.text[mark[0] :][:3]) for mark in found.marks] == [
        (("heading", "One"), "# O"), (("heading", "Two"), "# T"),
    ]  # fmt: skip


def test_readings_do_not_divide_words() -> None:
    ruby = "<ruby>東<rp>(</rp><rt>とう</rt><rp>)</rp>京<rt>きょう</rt></ruby>"
    found = epub.parse(make_epub("Book", [f"<p>{ruby}都</p>"]), BOUNDS)
    assert found.text == "東京都"
    assert [(w.code, w.count) for w in found.warnings] == [("readings_left_out", 2)]


EMPTY = ["<title/>", "<script src='x.js'/>", "<style/>", "<textarea/>", "<a id='n1'/>", "<iframe/>",
         "<noscript/>"]  # fmt: skip


@pytest.mark.parametrize("element", EMPTY)
@pytest.mark.parametrize("whole", [True, False], ids=["XML", "damaged XML"])
def test_empty_elements_of_chapters_swallow_nothing(element: str, whole: bool) -> None:
    body = f"{element}<h1>One</h1>{element}<p>The heron.</p>" + ("" if whole else "<br>")
    found = epub.parse(make_epub("Book", [body]), BOUNDS)
    assert found.text == "# One\nThe heron."


def test_a_book_with_notes_apart_pictures_and_a_missing_chapter() -> None:
    book = make_epub("Book", ["<h1>One</h1>", "<p>A note.</p><img src='a.png'/>", "<h1>Two</h1>"])
    opf = next(iter(_parts(book, ".opf").values()))
    first, second = opf.split("<itemref", 2)[:2], opf.split("<itemref", 2)[2]
    changed = "<itemref".join([*first, " linear='no'" + second])
    changed = changed.replace("chapter%203", "chapter%209")
    found = epub.parse(changed_zip(book, {"OEBPS/book.opf": changed}), BOUNDS)
    assert found.text == "# One\n\nA note."
    assert {w.code: w.count for w in found.warnings} == {"pictures": 1, "missing_chapters": 1}


def _parts(content: bytes, end: str) -> dict[str, str]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {n: archive.read(n).decode() for n in archive.namelist() if n.endswith(end)}


def test_steps_keep_their_numbers_and_items_their_dashes() -> None:
    steps = '<ol start="3"><li><p>Fill it.</p></li><li>Boil it.</li></ol>'
    steps += "<ul><li><p>A lid.</p></li><li><div>A cap.</div></li></ul>"
    found = epub.parse(make_epub("Book", ["<h1>One</h1>" + steps]), BOUNDS)
    assert found.text == "# One\n3. Fill it.\n4. Boil it.\n- A lid.\n- A cap."
