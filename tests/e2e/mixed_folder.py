"""A folder of a thousand files of all kinds: sound ones, broken ones, and such as are no documents.

`write` returns what has to become of every one of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from kvstitch.service.plugins import hooks
from tests.service.gateway.documents.office_files import (
    make_docx,
    make_eml,
    make_pptx,
    make_xlsx,
    make_zip,
)
from tests.service.gateway.documents.pdfs import make_pdf
from tests_formats.made_files import make_epub

FILES = 1000
INGESTED = "ingested"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512)
WORDS = [
    "amber", "birch", "cedar", "dune", "ember", "fjord", "grove", "heath", "islet", "jetty",
    "knoll", "larch",
]  # fmt: skip


def words(number: int) -> str:
    """A sentence that no other number has."""
    return f"Note {number} is about {WORDS[number % 12]} and {WORDS[number // 12 % 12]}."


SOUND: dict[str, Callable[[str], bytes]] = {
    "a.pdf": lambda text: make_pdf([text]),
    "a.docx": make_docx,
    "a.pptx": make_pptx,
    "a.xlsx": lambda text: make_xlsx({"Notes": [["Kind", "Note"], ["x", text]]}),
    "a.epub": lambda text: make_epub("Book", [f"<h1>One</h1><p>{text}</p>"]),
    "a.eml": make_eml,
    "a.csv": lambda text: f"Kind,Note\nx,{text}\n".encode(),
    "a.tsv": lambda text: f"Kind\tNote\nx\t{text}\n".encode(),
    "a.rst": lambda text: f"Title\n=====\n\n{text}\n".encode(),
    "a.html": lambda text: f"<h1>Note</h1><p>{text}".encode(),
    "a.md": lambda text: f"# Note\n\n{text}\n".encode(),
    # Its name says something else; what it is decides.
    "pdf.docx": lambda text: make_pdf([text]),
    "docx.pdf": make_docx,
    "xlsx.docx": lambda text: make_xlsx({"Notes": [[text]]}),
}
# Pictures are read where a plugin for that is installed, and can work.
READS_PICTURES = hooks().picture_reader() is not None
BROKEN: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "cut.pdf": (b"%PDF-1.4 and no more", "not readable pdf"),
    "cut.docx": (make_docx("x")[:900], "damaged"),
    "words.xlsx": (b"just words", "damaged, or no such file"),
    "archive.docx": (make_zip({"a.txt": "x"}), "unpack it"),
    "old.pptx": (OLE, "old Office"),
    "locked.docx": (OLE + "EncryptedPackage".encode("utf-16-le"), "remove the password"),
    "bomb.xlsx": (lambda: make_zip({"xl/workbook.xml": b" " * (129 << 20)}), "unpacks to more"),
    "picture.pdf": (make_pdf([""]), "nothing on its pages" if READS_PICTURES else "OCR"),
    "latin.csv": (b"Name,Note\ncaf\xe9,x\n", "not valid UTF-8"),
    "latin.txt": (b"caf\xe9", "not valid UTF-8"),
    "image.txt": (b"\x89PNG\r\n\x1a\n\xff\xff",
                  "it is damaged" if READS_PICTURES else "not valid UTF-8"),
    "words.eml": (b"just words", "is it an e-mail"),
    "no-words.html": (b"<script>x()</script>", "no text"),
    'quote".txt': (b"words", "quotes"),
}  # fmt: skip
OTHERS = ("png", "jpg", "bin", "exe", "zip", "py", "doc", "mp3", "log", "")


def write(root: Path) -> dict[str, str]:
    """Fill an empty folder.

    Returns:
        What must become of every entry by its path: INGESTED, or a part of what is said of it.
        Lines of .jsonl are named by their doc_id.
    """
    expected: dict[str, str] = {}

    def put(name: str, content: bytes, becomes: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        expected[name] = becomes

    for number, (name, make) in enumerate(SOUND.items()):
        for copy in range(3 if number < 9 else 2):
            unique = words(100_000 + 10 * number + copy)
            put(f"formats/{copy}/{name}", make(unique), INGESTED)
    for name, (made, says) in BROKEN.items():
        content = made() if callable(made) else made
        put(f"broken/{name}", content, says)
        if number := len(content) % 2:
            put(f"broken/again/{number}/{name}", content, says)
    for number in range(100):
        suffix = OTHERS[number % len(OTHERS)]
        name = f"others/{number}" + (f".{suffix}" if suffix else "")
        put(name, b"\x00\x01%d" % number, "of another kind")
    for number in range(30):
        put(f"empty/{number}.{('txt', 'md', 'pdf', 'docx', 'jsonl')[number % 5]}", b"", "empty")
    for number in range(20):
        put(f"a/.git/objects/{number}.txt", b"hidden", "in a hidden folder")
    for number in range(25):  # the same text under several names is as many documents
        put(f"same/{number}/copy.txt", b"The same words everywhere.", INGESTED)
    rows = [json.dumps({"doc_id": f"row-{n}", "text": words(n)}) for n in range(40)]
    (root / "rows.jsonl").write_text("\n".join([*rows, "{", "[]"]) + "\n")
    expected |= {f"row-{n}": INGESTED for n in range(40)}
    expected |= {f"{root}/rows.jsonl, line {n}": "expected an object" for n in (41, 42)}
    links = {"file": "../same/0/copy.txt", "folder": "../same", "nothing": "gone", "self": "self"}
    (root / "links").mkdir()
    for name, target in links.items():
        (root / "links" / f"{name}.txt").symlink_to(f"{target}.txt" if name == "self" else target)
    expected |= {
        "links/file.txt": INGESTED,  # what it leads to comes later, and is the same file
        "same/0/copy.txt": "the same file as another",
        "links/folder.txt": "a link to a folder",
        "links/nothing.txt": "a link to nothing",
        "links/self.txt": "cannot be read",
    }
    os.mkfifo(root / "links" / "pipe.txt")
    expected["links/pipe.txt"] = "no regular file"
    for number in range(3):
        put(f"secret/{number}.txt", b"words", "Permission denied")
        (root / f"secret/{number}.txt").chmod(0)
    (root / "locked").mkdir()
    (root / "locked" / "inside.txt").write_text("words")
    (root / "locked").chmod(0)
    expected[str(root / "locked")] = "Permission denied"
    for number in range(FILES - len(expected)):
        put(
            f"texts/{number % 7}/{number % 3}/{number}.txt", words(1000 + number).encode(), INGESTED
        )
    return expected
