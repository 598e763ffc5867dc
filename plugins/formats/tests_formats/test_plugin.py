"""Which files are known and refused, in the process that parses them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    file_kind,
    is_binary,
    media_type_of_suffix,
)
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from tests.service.gateway.documents.office_files import changed_zip, make_docx, make_zip
from tests.service.plugins.loaded import plugins
from tests_formats.made_files import make_epub, make_open_document

LIMITS = FileLimits(pages=10, chars=10_000, cpu_s=10, memory_bytes=512 << 20)
ODT = make_open_document("text", "<text:h>One</text:h><text:p>heron</text:p>")
EPUB = make_epub("Book", ["<h1>One</h1><p>heron</p>"])
FILES = {
    ".odt": ODT,
    ".ods": make_open_document("spreadsheet", "<table:table table:name='heron'/>"),
    ".odp": make_open_document("presentation", "<draw:page><text:p>heron</text:p></draw:page>"),
    ".epub": EPUB,
    ".rst": b"A heron\n=======\n",
    ".adoc": b"= A heron\n",
}


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    with plugins("kvstitch_formats"):
        yield


@pytest.mark.parametrize("suffix", FILES)
async def test_each_kind_is_found_and_read(suffix: str) -> None:
    content = FILES[suffix]
    media_type = media_type_of_suffix()[suffix]
    kind = file_kind("", media_type, content)
    assert kind == file_kind(f"a{suffix}", "", content)
    assert is_binary(kind) == content.startswith(b"PK")
    assert "heron" in (await parse_file(kind, content, LIMITS)).text


async def test_what_an_archive_holds_decides_not_its_name() -> None:
    assert file_kind("a.odt", "", make_docx("tern")) == file_kind("a.docx", "", ODT) == "office"
    assert (await parse_file("office", make_docx("tern"), LIMITS)).text.startswith("# Kettle")
    moved = make_zip({"content.xml": "x", "MIMETYPE": "application/vnd.oasis.opendocument.text"})
    with pytest.raises(InvalidRequest, match="not readable"):
        await parse_file("office", moved, LIMITS)
    with pytest.raises(InvalidRequest, match="an archive, but no"):
        await parse_file("office", make_zip({"mimetype": "application/zip"}), LIMITS)


@pytest.mark.parametrize("kind", ["rst", "adoc"])
async def test_charsets_of_texts(kind: str) -> None:
    said = "Каждая чашка стоит на полке у окна и утром её освещает солнце."
    found = await parse_file(kind, said.encode("cp1251"), LIMITS)
    assert "чашка" in found.text
    assert [warning.code for warning in found.warnings] == ["charset_guessed"]
    assert (await parse_file(kind, "grün".encode("latin-1"), LIMITS, "latin-1")).text == "grün"


LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "' + "&a;" * 1000 + '"><!ENTITY c "'
    + "&b;" * 1000 + '">]><p>&c;</p>'
)  # fmt: skip
PROTECTED = make_epub("B", ["x"], encrypted="OEBPS/text/chapter%201.xhtml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (changed_zip(ODT, {"content.xml": "x"}), "not readable|damaged"),
        (make_open_document("text", "", encrypted=True), "remove the password"),
        (make_epub("B", ["x"] * 11), "11 chapters, the limit is 10"),
        (PROTECTED, "protection"),
        (make_epub("B", []), "no chapters"),
        (changed_zip(EPUB, {"OEBPS/book.opf": "<"}), "not readable"),
        (changed_zip(EPUB, {"OEBPS/book.opf": LAUGHS}), "no chapters"),
    ],
)
async def test_files_that_are_refused(content: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await parse_file("office", content, LIMITS)


@settings(max_examples=8, deadline=None)
@given(whole=st.sampled_from([ODT, EPUB]), data=st.data())
async def test_damaged_archives(whole: bytes, data: st.DataObject) -> None:
    """Read all the same, or refused with words; in any case this process is well."""
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        await parse_file("office", bytes(content), LIMITS)
    except InvalidRequest as error:
        assert error.message
