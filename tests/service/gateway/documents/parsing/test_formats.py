"""Office's formats, tables and mail: what is kept of each."""

from __future__ import annotations

import zipfile
from datetime import date, datetime
from importlib import import_module
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.file_kinds import format_of
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from tests.service.gateway.documents.office_files import (
    changed_zip,
    make_docx,
    make_eml,
    make_pptx,
    make_xlsx,
    make_zip,
)

LIMITS = FileLimits(pages=10, chars=10_000, cpu_s=10, memory_bytes=512 << 20)
BOUNDS = Bounds(LIMITS.pages, LIMITS.chars)


def parsed(kind: str, content: bytes) -> ParsedFile:
    """By what the parser's process calls; which of its errors are told how is asked of it below."""
    found_format = format_of(kind)
    assert found_format is not None
    module, _, function = found_format.parser.partition(":")
    found: ParsedFile = getattr(import_module(module), function)(content, BOUNDS)
    assert [m[0] for m in found.marks] == sorted(m[0] for m in found.marks)
    return found


def marked(found: ParsedFile) -> list[tuple[str, str, str]]:
    """(kind, label, the word at which it begins) of every mark."""
    return [(kind, label, found.text[at:].split()[0]) for at, kind, label in found.marks]


def test_docx() -> None:
    found = parsed("office", make_docx("The warranty\tis two years."))
    assert found.text == (
        "# Kettle\n\nThe warranty\tis two years.\n\n- boils\n\n## Parts\n\n"
        "Part: lid | Price: 2\nPart: handle | Price: 3"
    )
    assert found.title == "Kettle"
    assert marked(found) == [
        ("page", "1", "#"), ("heading", "Kettle", "#"), ("page", "2", "##"),
        ("heading", "Parts", "##"),
    ]  # fmt: skip


def test_docx_with_changes_and_merged_cells() -> None:
    """Words inserted under review are text, deleted ones are not; a merged cell names its rows."""
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = (
        "<w:p><w:r><w:t>old</w:t></w:r><w:ins><w:r><w:t> new</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText> gone</w:delText></w:r></w:del></w:p>"
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>in a field</w:t></w:r></w:p></w:sdtContent></w:sdt>"
        "<w:tbl>"
        "<w:tr><w:tc><w:p><w:r><w:t>Kind</w:t></w:r></w:p></w:tc>"
        '<w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr><w:p><w:r><w:t>Name</w:t></w:r></w:p></w:tc>'
        "<w:tc><w:p><w:r><w:t>Note</w:t></w:r></w:p></w:tc></w:tr>"
        '<w:tr><w:tc><w:tcPr><w:vMerge w:val="restart"/></w:tcPr>'
        "<w:p><w:r><w:t>big</w:t></w:r></w:p></w:tc>"
        + "".join(f"<w:tc><w:p><w:r><w:t>{x}</w:t></w:r></w:p></w:tc>" for x in "abc")
        + "</w:tr><w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p/></w:tc>"
        + "".join(f"<w:tc><w:p><w:r><w:t>{x}</w:t></w:r></w:p></w:tc>" for x in "def")
        + "</w:tr></w:tbl>"
    )  # fmt: skip
    xml = f'<?xml version="1.0"?><w:document {w}><w:body>{body}</w:body></w:document>'
    found = parsed("office", changed_zip(make_docx("x"), {"word/document.xml": xml}))
    assert found.text.split("\n\n") == [
        "old new",
        "in a field",
        "Kind: big | Name: a | Name: b | Note: c\nKind: big | Name: d | Name: e | Note: f",
    ]
    assert found.marks == [], "without a layout there are no page numbers"


def test_pptx() -> None:
    found = parsed("office", make_pptx("Boils\nquickly."))
    assert found.text == (
        "## Kettle\n\nBoils\nquickly.\n\n## Parts\n\nPart: lid | Price: 2\n\nNotes: say it slowly"
    )
    assert found.title == "Kettle"
    assert marked(found) == [
        ("slide", "1", "##"), ("heading", "Kettle", "##"), ("slide", "3", "##"),
        ("heading", "Parts", "##"),
    ]  # fmt: skip


def test_xlsx() -> None:
    rows: list[list[object]] = [
        ["Product", None, 2024, "Since"],
        ["Kettle", None, 19.5, date(2024, 5, 1)],
        [None, None, None, None],
        ["Toaster", "new", 1 / 3, datetime(2024, 5, 1, 12, 30)],
        ["Mixer", "", True, 7.0],
    ]
    sheets: dict[str, Any] = {"Prices": rows, "Old": [["a", "b"]], "Empty": [], "One": [[1, 2]]}
    found = parsed("office", make_xlsx(sheets, hidden="Old"))
    assert found.text == (
        "## Prices\n\n"
        "Product: Kettle | 2024: 19.5 | Since: 2024-05-01\n"
        "Product: Toaster | new | 2024: 0.333333333333333 | Since: 2024-05-01 12:30:00\n"
        "Product: Mixer | 2024: TRUE | Since: 7\n\n"
        "## Empty\n\n(no rows)\n\n## One\n\n1 | 2"
    )
    assert [mark[1:] for mark in found.marks] == [
        ("sheet", "Prices"), ("sheet", "Empty"), ("sheet", "One"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"Name;Price\nKettle;1,5\n", "Name: Kettle | Price: 1,5"),
        (b"\xef\xbb\xbfName\tPrice\nA\t20\nMug\t5", "Name: A | Price: 20\nName: Mug | Price: 5"),
        ('Name,Note\n"Kettle","a\nb, ""c"""\n'.encode("utf-16"), 'Name: Kettle | Note: a b, "c"'),
        (b"1,2\n3,4", "1 | 2\n3 | 4"),
        (b"Name,Price", "Name | Price"),
        (b"a,b\n1,2,3", "a | b\n1 | 2 | 3"),
        (b"just one line", "just one line"),
    ],
)  # fmt: skip
def test_tables_of_text(content: bytes, text: str) -> None:
    assert parsed("csv", content).text == text


@pytest.mark.parametrize("content", [make_eml("Grüße\n"), make_eml("", html="<p>Grüße</p>")])
def test_eml(content: bytes) -> None:
    found = parsed("eml", content)
    assert found.title == "The kettle 🫖"
    assert found.text == (
        "From: Ada <ada@example.org>\nTo: bob@example.org\n"
        "Date: Wed, 01 May 2024 12:00:00 -0000\nSubject: The kettle 🫖\n\n"
        "Grüße\n\nAttachments: bill.pdf"
    )


def test_eml_in_an_unknown_charset() -> None:
    content = b"From: a@b\nContent-Type: text/plain; charset=martian\n\nhello"
    assert "hello" in parsed("eml", content).text


DOCX, XLSX = make_docx("x"), make_xlsx({"S": [[1]]})
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512)
ENTITY = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>'
BIG_SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><dimension '
    'ref="A1:XFD1048576"/><sheetData><row r="{row}"><c r="A{row}"><v>7</v></c></row></sheetData>'
    "</worksheet>"
)


def encrypted_zip() -> bytes:
    """The flag of the first entry says that it is encrypted."""
    content = bytearray(make_zip({"word/document.xml": "x"}))
    at = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[at + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        ("office", b"plain words", "no such file|damaged"),
        ("office", DOCX[: len(DOCX) // 2], "damaged"),
        ("office", DOCX[:2000] + bytes(2000) + DOCX[4000:], "not readable|damaged"),
        ("office", make_zip({"a.txt": "x"}), "an archive, but no .docx.*kvstitch-formats"),
        ("office", OLE, "old Office"),
        ("office", OLE + "__substg1.0_001A001E".encode("utf-16-le"), "save it as .eml"),
        ("office", OLE + "EncryptedPackage".encode("utf-16-le"), "remove the password"),
        ("office", encrypted_zip(), "remove the password"),
        ("office", changed_zip(DOCX, {"word/bomb.xml": b" " * (129 << 20)}), "unpacks to more"),
        ("office", make_zip({f"{n}.xml": "" for n in range(20_001)}), "unpacks to more"),
        ("office", changed_zip(DOCX, {"word/document.xml": ENTITY}), "declares entities"),
        ("office", changed_zip(DOCX, {"word/document.xml": ENTITY.encode("utf-16")}), "entities"),
        ("office", changed_zip(DOCX, {"word/document.xml": "<x/>"}), "not readable"),
        ("office", make_docx("x" * 10_001), "more than 10000 characters"),
        ("office", make_xlsx({"S": [["x" * 100] * 3] * 400}), "more than 10000 characters"),
        ("office", make_xlsx({f"S{n}": [[n]] for n in range(11)}), "11 sheets, the limit is 10"),
        ("csv", b"a,b\n\xff\xfe", "not valid UTF-8"),
        ("csv", b"a,b\n\0", "NUL"),
        ("eml", b"just words", "is it an e-mail"),
        ("nothing", b"", "cannot be read"),
        ("image", b"\x89PNG\r\n\x1a\n", "install kvstitch-ocr"),
    ],
)  # fmt: skip
async def test_files_that_are_refused(kind: str, content: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await parse_file(kind, content, LIMITS)


@pytest.mark.parametrize("row", [1, 1_048_576, 10**12])
def test_a_sheet_that_says_it_is_huge(row: int) -> None:
    sheet = {"xl/worksheets/sheet1.xml": BIG_SHEET.format(row=row)}
    content = changed_zip(XLSX, sheet)
    if row > 1_048_576:
        assert "(no rows)" in parsed("office", content).text
    else:
        assert parsed("office", content).text == "## S\n\n7"


WHOLE = [DOCX, XLSX, make_pptx("x")]


@settings(max_examples=16, deadline=None)
@given(whole=st.sampled_from(WHOLE), data=st.data())
async def test_damaged_archives(whole: bytes, data: st.DataObject) -> None:
    """Read all the same, or refused with words; in any case this process is well."""
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        await parse_file("office", bytes(content), LIMITS)
    except InvalidRequest as error:
        assert error.message


PARTS = {"docx": "word/document.xml", "xlsx": "xl/worksheets/sheet1.xml"}


@settings(max_examples=8, deadline=None)
@given(kind=st.sampled_from(sorted(PARTS)), data=st.data())
async def test_damaged_xml(kind: str, data: st.DataObject) -> None:
    """The archive is whole, so that the damage reaches the format's library."""
    whole = {"docx": DOCX, "xlsx": XLSX}[kind]
    with zipfile.ZipFile(BytesIO(whole)) as archive:
        xml = archive.read(PARTS[kind])
    at = data.draw(st.integers(0, len(xml) - 1))
    end = data.draw(st.integers(at, min(len(xml), at + 40)))
    spoiled = xml[:at] + data.draw(st.sampled_from([b"", b"<", b"9" * 30, b"\xff"])) + xml[end:]
    try:
        await parse_file("office", changed_zip(whole, {PARTS[kind]: spoiled}), LIMITS)
    except InvalidRequest as error:
        assert error.message
