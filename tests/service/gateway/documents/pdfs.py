"""PDF files by hand: a page per text, Helvetica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def make_pdf(pages: Sequence[str], *, title: str = "") -> bytes:
    """A valid file whose pages show these ASCII texts."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        content = f"BT /F1 12 Tf 72 720 Td ({escaped}) Tj ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * index} 0 R >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    out = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    info = len(objects)
    trailer = f"<< /Size {info + 1} /Root 1 0 R /Info {info} 0 R >>"
    return out + f"trailer\n{trailer}\nstartxref\n{table}\n%%EOF\n".encode()


_TURNED = ("1 0 0 1", "0 1 -1 0", "-1 0 0 -1", "0 -1 1 0")


@dataclass(frozen=True)
class Drawn:
    """A text on a page, which begins at (x, y) in points.

    `turn` are the quarters by which it is turned: 1 runs up the page, 3 down.
    """

    x: float
    y: float
    text: str
    size: float = 11
    turn: int = 0


def draw_pdf(
    pages: Sequence[Sequence[Drawn]],
    *,
    annotations: Sequence[str] = (),
    pictures: Sequence[int] = (),
    unicode: bool = True,
    title: str = "",
) -> bytes:
    """A file whose pages show these texts, of at most 200 different characters.

    Args:
        pages: What each page draws, in this order.
        annotations: Dictionaries of the first page's annotations; form fields are among them.
        pictures: Numbers of pages, from 0, that a picture covers.
        unicode: Whether the font says which characters it shows.
        title: In the file's properties.
    """
    alphabet = sorted({char for page in pages for drawn in page for char in drawn.text})
    first = 32 if unicode else 161
    codes = {char: number for number, char in enumerate(alphabet, first)}
    pairs = "".join(f"<{n:02X}> <{c.encode('utf-16-be').hex()}>\n" for c, n in codes.items())
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def "
        "1 begincodespacerange <00> <FF> endcodespacerange\n"
        f"{len(codes)} beginbfchar\n{pairs}endbfchar endcmap end end"
    )
    widths = " ".join("1000" if ord(char) > 0x2E7F else "500" for char in alphabet)
    body: list[str] = []

    def add(content: str) -> int:
        body.append(content)
        return len(body)

    def stream(content: str, head: str = "") -> int:
        return add(f"<< {head} /Length {len(content)} >>\nstream\n{content}\nendstream")

    add("")  # the catalog
    add("")  # the pages
    to_unicode = f"/ToUnicode {stream(cmap)} 0 R" if unicode else ""
    descriptor = add(
        "<< /Type /FontDescriptor /FontName /ABCDEF+Sub /Flags 4 /FontBBox [0 -200 1000 800] "
        "/ItalicAngle 0 /Ascent 800 /Descent -200 /CapHeight 700 /StemV 80 >>"
    )
    font = add(
        f"<< /Type /Font /Subtype /TrueType /BaseFont /ABCDEF+Sub /FirstChar {first} "
        f"/LastChar {first + len(codes) - 1} /Widths [{widths}] /FontDescriptor {descriptor} 0 R "
        f"{to_unicode} >>"
    )
    image = stream(
        "0" * 64,
        "/Type /XObject /Subtype /Image /Width 8 /Height 8 /ColorSpace /DeviceGray "
        "/BitsPerComponent 8",
    )
    notes = [add(annotation) for annotation in annotations]
    kids = []
    for number, page in enumerate(pages):
        texts = [
            f"BT /F1 {d.size} Tf {_TURNED[d.turn]} {d.x} {d.y} Tm "
            f"<{''.join(f'{codes[char]:02X}' for char in d.text)}> Tj ET"
            for d in page
        ]
        if number in pictures:
            texts.append("q 600 0 0 780 0 0 cm /Im0 Do Q")
        named = f"/Annots [{' '.join(f'{n} 0 R' for n in notes)}]" if notes and not number else ""
        content = stream("\n".join(texts))
        kids.append(
            add(
                "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
                f"/Resources << /Font << /F1 {font} 0 R >> /XObject << /Im0 {image} 0 R >> >> "
                f"/Contents {content} 0 R {named} >>"
            )
        )
    fields = " ".join(
        f"{n} 0 R" for n, text in zip(notes, annotations, strict=True) if "/FT" in text
    )
    body[0] = f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [{fields}] >> >>"
    body[1] = f"<< /Type /Pages /Kids [{' '.join(f'{k} 0 R' for k in kids)}] /Count {len(kids)} >>"
    info = add(f"<< /Title ({title}) >>")
    out = b"%PDF-1.7\n"
    offsets = []
    for number, text in enumerate(body, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    table = len(out)
    out += f"xref\n0 {len(body) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = f"<< /Size {len(body) + 1} /Root 1 0 R /Info {info} 0 R >>"
    return out + f"trailer\n{trailer}\nstartxref\n{table}\n%%EOF\n".encode()
