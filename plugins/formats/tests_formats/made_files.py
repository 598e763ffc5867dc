"""OpenDocument and EPUB, made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.service.gateway.documents.office_files import make_zip

CONTAINER = (
    '<?xml version="1.0"?><container version="1.0" '
    'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>'
    "</rootfiles></container>"
)
OPF = (
    '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
    '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
    "<manifest>{items}</manifest><spine>{spine}</spine></package>"
)


def make_epub(title: str, chapters: Sequence[str], encrypted: str = "") -> bytes:
    """Chapters are the bodies of pages, called "chapter 1.xhtml" and so on."""
    numbers = range(1, len(chapters) + 1)
    items = "".join(
        f'<item id="c{n}" href="text/chapter%20{n}.xhtml" media-type="application/xhtml+xml"/>'
        for n in numbers
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in numbers)
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": OPF.format(title=title, items=items, spine=spine),
    }
    for number, body in zip(numbers, chapters, strict=True):
        page = f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{body}</body></html>'
        files[f"OEBPS/text/chapter {number}.xhtml"] = page
    if encrypted:
        files["META-INF/encryption.xml"] = (
            '<encryption xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:EncryptedData>'
            f'<e:CipherReference URI="{encrypted}"/></e:EncryptedData></encryption>'
        )
    return make_zip(files)


OPEN_DOCUMENT = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{of}:1.0"'
    for name, of in [("office", "office"), ("text", "text"), ("table", "table"), ("style", "style"),
                     ("draw", "drawing"), ("presentation", "presentation")]
)  # fmt: skip
OPEN_DOCUMENT += (
    ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def make_open_document(
    kind: str,
    body: str,
    *,
    styles: str = "",
    encrypted: bool = False,
    files: Mapping[str, str] | None = None,
) -> bytes:
    """A text, spreadsheet or presentation with these elements, and further files by name."""
    content = (
        f"<office:document-content {OPEN_DOCUMENT}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>"
    )
    return make_zip(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}",
            "content.xml": content,
            "META-INF/manifest.xml": "<manifest:encryption-data/>" if encrypted else "<manifest/>",
            **(files or {}),
        }
    )
