"""Notebooks, subtitles, XML and flat OpenDocument."""

from __future__ import annotations

import json

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch_formats import notebooks, subtitles, xml_files
from kvstitch_formats.open_document import parse, parse_flat
from tests.service.plugins.loaded import plugins
from tests_formats.made_files import make_open_document

BOUNDS = Bounds(10, 10_000)


def cell(source: object, **more: object) -> dict[str, object]:
    return {"cell_type": "code", "source": source, **more}


PICTURE = {
    "output_type": "display_data",
    "data": {"image/png": "A" * 300, "text/plain": "<Figure 1>"},
}


@pytest.mark.parametrize(
    ("cells", "text", "codes"),
    [
        ([{"cell_type": "markdown", "source": ["# Catch\n", "\n", "It fell."]}],
         "# Catch\n\nIt fell.", []),
        ([cell("1 + 1", outputs=[{"data": {"text/plain": ["2"]}}])],
         "```\n1 + 1\n```\n\nOutput:\n\n```\n2\n```", []),
        ([cell("plot()", outputs=[PICTURE])], "```\nplot()\n```", ["pictures"]),
        ([cell("x", outputs=[{"output_type": "error", "ename": "NameError", "evalue": "no x"}])],
         "```\nx\n```\n\nOutput:\n\n```\nNameError: no x\n```", []),
        ([cell(["print(1)"], outputs=[{"output_type": "stream", "text": ["1\n", "2\n"]}])],
         "```\nprint(1)\n```\n\nOutput:\n\n```\n1\n2\n```", []),
    ],
)  # fmt: skip
def test_notebooks(cells: list[object], text: str, codes: list[str]) -> None:
    content = json.dumps({"cells": cells, "nbformat": 4}).encode()
    found = notebooks.parse(content, BOUNDS)
    assert found.text == text and [w.code for w in found.warnings] == codes
    assert notebooks.parse(b'{"worksheets": [' + content + b"]}", BOUNDS).text == text


def test_no_notebook() -> None:
    for content in (b'{"cells": [', b'{"cells": [3]}', b"[]"):
        with pytest.raises(InvalidRequest, match="no notebook that can be read"):
            notebooks.parse(content, BOUNDS)


def cues(*lines: str, pause: int = 0) -> bytes:
    times = [
        f"00:{n:02}:{pause * n:02}.000 --> 00:{n:02}:{pause * n + 2:02}.000"
        for n in range(len(lines))
    ]
    steady = [
        f"00:00:{2 * n:02}.000 --> 00:00:{2 * n + 2:02}.000 align:start" for n in range(len(lines))
    ]
    return ("WEBVTT\n\nNOTE no text\n\n" + "\n\n".join(
        f"{time}\n{line}" for time, line in zip(times if pause else steady, lines, strict=True)
    )).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (cues("welcome", "welcome\nto the pier", "to the pier\nof Lorvik"),
         "welcome to the pier of Lorvik"),
        (cues("<v Ada>Is it <i>shut</i>?", "<v Bo>Yes &amp; no."),
         "Ada: Is it shut?\n\nBo: Yes & no."),
        (cues("One.", "Two.", pause=10), "One.\n\nTwo."),
        (b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,000\r\nThe ferry\r\n\r\n2\r\n"
         b"00:00:02,100 --> 00:00:03,000\r\nleaves {\\an8}now.\r\n", "The ferry leaves now."),
        (cues("No", "No", "way"), "No way"),
    ],
)  # fmt: skip
def test_subtitles(content: bytes, text: str) -> None:
    found = subtitles.parse(content, BOUNDS)
    assert found.text == text and found.marks[0][1:] in (("page", "0:00:00"), ("page", "0:00:01"))


@pytest.mark.parametrize(
    ("xml", "text"),
    [
        ("<catalog><product sku='K-1'><name>Kettle</name><price currency='EUR'>20</price></product>"
         "<product sku='K-2'><name>Pot</name></product></catalog>",
         "sku: K-1 | name: Kettle | price: 20 (EUR)\nsku: K-2 | name: Pot"),
        ("<rss><channel><title>News</title><item><title>Crane</title><description>&lt;p&gt;It is "
         "&lt;b&gt;sold&lt;/b&gt;.&lt;/p&gt;</description></item></channel></rss>",
         "# News\n\ntitle: Crane | description: It is sold."),
        ("<article><title>Pier</title><para>The rent is <emphasis>4750</emphasis> crowns.</para>"
         "<section><title>Fees</title><para>Ferry: <b>40</b></para></section></article>",
         "# Pier\n\nThe rent is 4750 crowns.\n\n## Fees\n\nFerry: 40"),
        ("<svg xmlns='http://www.w3.org/2000/svg'><text>Valve K1</text></svg>", "text: Valve K1"),
        ("<a/>", ""),
    ],
)  # fmt: skip
def test_xml(xml: str, text: str) -> None:
    assert xml_files.parse(xml.encode(), BOUNDS).text == text


def test_xml_in_other_charsets_and_with_entities() -> None:
    feed = '<?xml version="1.0" encoding="koi8-r"?>\n<title>Учёт</title>'
    assert xml_files.parse(feed.encode("koi8-r"), BOUNDS).text == "title: Учёт"
    for parser in (xml_files.parse, parse_flat):
        with pytest.raises(InvalidRequest, match="declares entities"):
            parser(b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', BOUNDS)


FLAT = """<?xml version="1.0"?><office:document
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:text><text:h
 text:outline-level="1">Pier</text:h><text:p>It is shut.</text:p></office:text></office:body>
</office:document>"""


def test_flat_open_document_and_what_files_are() -> None:
    assert parse_flat(FLAT.encode(), BOUNDS).text == "# Pier\n\nIt is shut."
    with plugins("kvstitch_formats"):
        assert file_kind("a.xml", "", FLAT.encode()) == "fodt"
        assert file_kind("a.txt", "", cues("x")) == "vtt"
        assert file_kind("a.json", "", b'{"cells": [], "nbformat": 4}') == "ipynb"
        assert file_kind("a.txt", "", b"<?xml version='1.0'?><a/>") == "xml"
        assert file_kind("a.html", "", b"<?xml version='1.0'?>\n<html>") == "html"
        assert file_kind("a.json", "", b'{"metadata": {}}') == "text"


def test_signs_of_open_document() -> None:
    styles = "".join(
        f'<style:style style:name="{name}"><style:text-properties {what}/></style:style>'
        for name, what in (
            ("up", 'style:text-position="super 58%"'),
            ("no", 'style:text-line-through-style="solid"'),
        )
    )
    body = (
        '<text:p>10<text:span text:style-name="up">6</text:span> l, '
        '<text:span text:style-name="no">310'
        '</text:span> 345, <text:a xlink:href="https://a.org/f">form</text:a></text:p>'
    )
    made = make_open_document("text", body, styles=styles)
    assert parse(made, BOUNDS).text == "10^6 l, ~~310~~ 345, form (https://a.org/f)"
