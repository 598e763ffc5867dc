"""Files that are hard to read, or lie about what they are; no two alike."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

File = tuple[str, bytes]
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships'
    '/officeDocument" Target="word/document.xml"/></Relationships>'
)
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _zip(parts: dict[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            entry = zipfile.ZipInfo(name)  # of 1980, so that a seed makes the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return out.getvalue()


def _word(document: bytes | str, **more: bytes | str) -> bytes:
    head: dict[str, bytes | str] = {"[Content_Types].xml": _TYPES, "_rels/.rels": _RELATIONS}
    return _zip({**head, "word/document.xml": document, **more})


def _paragraphs(source: random.Random) -> File:
    words = f"<w:p><w:r><w:t>{source.random()}</w:t></w:r></w:p>" * source.randint(1, 600_000)
    return "many.docx", _word(f"<w:document {_W}><w:body>{words}</w:body></w:document>")


def _zip_bomb(source: random.Random) -> File:
    zeros = bytes(source.randint(50, 300) << 20)
    return "bomb.docx", _word(b"<a>" + zeros, **{"word/media/a.png": zeros})


def _laughs(source: random.Random) -> File:
    lines = "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, source.randint(8, 12))
    )
    return "laughs.docx", _word(
        f'<!DOCTYPE w [<!ENTITY l0 "ha{source.random()}">{lines}]>'
        f"<w:document {_W}><w:body><w:p><w:r><w:t>&l7;"
        "</w:t></w:r></w:p></w:body></w:document>"
    )


def _outside_entity(source: random.Random) -> File:
    file = source.choice(["file:///etc/passwd", "http://127.0.0.1:1/x", "file:///dev/zero"])
    return "outside.docx", _word(
        f'<!DOCTYPE w [<!ENTITY x SYSTEM "{file}">]><!--{source.random()}-->'
        f"<w:document {_W}><w:body><w:p><w:r><w:t>&x;"
        "</w:t></w:r></w:p></w:body></w:document>"
    )


def _traversal(source: random.Random) -> File:
    up = "../" * source.randint(1, 20)
    parts: dict[str, bytes | str] = {"mimetype": "application/epub+zip"}
    parts["META-INF/container.xml"] = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        f'<rootfile full-path="{up}etc/passwd"/></rootfiles></container>'
    )
    return "up.epub", _zip({**parts, f"{up}etc/passwd": "x", f"{up}tmp/x.opf": "<package/>"})


def _broken_office(source: random.Random) -> File:
    whole = bytearray(_word(f"<w:document {_W}><w:body/></w:document>", more="x" * 5000))
    for _ in range(source.randint(1, 50)):
        whole[source.randrange(len(whole))] = source.randrange(256)
    end = source.randint(len(whole) // 2, len(whole))
    return f"broken.{source.choice(['docx', 'xlsx', 'pptx', 'epub'])}", bytes(whole[:end])


def _deep_html(source: random.Random) -> File:
    depth = source.randint(10_000, 500_000)
    tag = source.choice(["div", "table><tr><td", "b", "ul><li", "span"])
    return "deep.html", (f"<{tag}>" * depth + "end").encode()


def _wide_spans(source: random.Random) -> File:
    cell = f'<td colspan="{10 ** source.randint(5, 12)}" rowspan="{10**9}">x</td>'
    rows = "<tr>" + cell * source.randint(1, 50) + "</tr>"
    return "spans.html", f"<table>{rows * 100}</table>".encode()


def _recipients(source: random.Random) -> File:
    to = ",\n ".join(f"u{n}@x{source.randrange(999)}.example" for n in range(200_000))
    return "all.eml", f"From: a@b.example\nTo: {to}\nSubject: x\n\nhello\n".encode()


def _parts_in_parts(source: random.Random) -> File:
    depth = source.randint(100, 3000)
    lines = [f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(depth)]
    return "parts.eml", ("Subject: x\n" + "".join(lines) + "\nhello\n").encode()


def _million_columns(source: random.Random) -> File:
    columns = source.randint(100_000, 1_000_000)
    head = ",".join(f"c{n}" for n in range(columns))
    return "wide.csv", f"{head}\n{'1,' * columns}\n".encode()


def _open_quote(source: random.Random) -> File:
    return "quote.csv", ('a,b\n"' + "x,y\n" * source.randint(100_000, 1_000_000)).encode()


def _far_cell(source: random.Random) -> File:
    row = source.randint(900_000, 1_048_576)
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        f'<dimension ref="A1:XFD{row}"/><sheetData><row r="{row}"><c r="XFD{row}"><v>1</v></c>'
        "</row>"
        "</sheetData></worksheet>"
    )
    return "far.xlsx", _zip({
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/'
        'content-types"><Override PartName="/xl/workbook.xml" ContentType="application/vnd.'
        'openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>',
        "_rels/.rels": _RELATIONS.replace("word/document.xml", "xl/workbook.xml"),
        "xl/workbook.xml": '<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/'
        'main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships">'
        '<sheets><sheet name="a" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _RELATIONS.replace("word/document.xml", "worksheets/a.xml")
        .replace('"r"', '"r1"').replace("/officeDocument\"", "/worksheet\""),
        "xl/worksheets/a.xml": sheet,
    })  # fmt: skip


def _endless_pages(source: random.Random) -> File:
    kids = " ".join(f"{source.randint(2, 5)} 0 R" for _ in range(source.randint(2, 200)))
    body = "1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n" + "".join(
        f"{n} 0 obj<</Type/Pages/Kids[{kids}]/Count {10**9}>>endobj\n" for n in range(2, 6)
    )
    return "endless.pdf", f"%PDF-1.4\n{body}trailer<</Root 1 0 R>>\n".encode()


def _unpacking_page(source: random.Random) -> File:
    text = b"BT /F 9 Tf (a) Tj ET\n" * source.randint(100_000, 5_000_000)
    stream = zlib.compress(text, 9)
    head = (
        "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]"
        "/Count 1>>endobj\n3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 1e9 1e9]/Contents 4 0 R"
        "/Resources<</Font<</F 5 0 R>>>>>>endobj\n5 0 obj<</Type/Font/Subtype/Type1/BaseFont"
        f"/Helvetica>>endobj\n4 0 obj<</Length {len(stream)}/Filter/FlateDecode>>stream\n"
    )
    return "page.pdf", head.encode() + stream + b"\nendstream endobj\ntrailer<</Root 1 0 R>>\n"


def _huge_image(source: random.Random) -> File:
    size = source.randint(60_000, 200_000)
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(head)) + b"IHDR" + head
    image = b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    if source.random() < 0.5:
        return "image.png", image
    return "image.docx", _word(f"<w:document {_W}><w:body/></w:document>", **{"word/a.png": image})


def _one_word(source: random.Random) -> File:
    return "word.txt", bytes(source.choices(b"abcdef", k=source.randint(100_000, 2_000_000)))


def _noise(source: random.Random) -> File:
    kind = source.choice(["md", "html", "rst", "txt", "csv", "eml", "pdf"])
    return f"noise.{kind}", source.randbytes(source.randint(10, 200_000))


def _markdown_table(source: random.Random) -> File:
    width = source.randint(1_000, 20_000)
    return "table.md", ("|a" * width + "|\n" + "|-" * width + "|\n" + "|1" * width + "|\n").encode()


KINDS: tuple[Callable[[random.Random], File], ...] = (
    *(_paragraphs, _zip_bomb, _laughs, _outside_entity, _traversal, _broken_office, _deep_html),
    *(_wide_spans, _recipients, _parts_in_parts, _million_columns, _open_quote, _far_cell),
    *(_endless_pages, _unpacking_page, _huge_image, _one_word, _noise, _markdown_table),
)


def write(folder: Path, number: int, seed: int) -> Path:
    """Write the file of a number: kinds take turns."""
    name, content = KINDS[number % len(KINDS)](random.Random(f"{seed} {number}"))
    file = folder / f"{number}-{name}"
    file.write_bytes(content)
    return file
