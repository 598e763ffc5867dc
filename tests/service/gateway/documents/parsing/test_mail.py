"""Mail: which of its parts are its text, in which charset, and what its headers say."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing import mail
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile

BOUNDS = Bounds(50, 100_000)
HEAD = b"From: Ada <ada@example.org>\nSubject: Pumps\nMIME-Version: 1.0\n"


def multi(kind: str, *parts: bytes, boundary: bytes = b"b") -> bytes:
    head = b'Content-Type: multipart/%s; boundary="%s"\n\n' % (kind.encode(), boundary)
    return head + b"".join(b"--%s\n%s\n" % (boundary, p) for p in parts) + b"--%s--\n" % boundary


def part(kind: str, body: str, more: str = "") -> bytes:
    return f'Content-Type: {kind}; charset="utf-8"\n{more}\n{body}\n'.encode()


def read(content: bytes) -> ParsedFile:
    return mail.parse(HEAD + content, BOUNDS)


def body(content: bytes) -> list[str]:
    return read(content).text.split("\n\n")[1:]


PAGE = "<h1>Prices</h1><p>The Kestrel pump costs 480 crowns until April.</p>"
IMAGE = part("image/png", "AAAA", "Content-Disposition: inline; filename=plan.png\n")


@pytest.mark.parametrize(
    ("plain", "stored"),
    [
        ("", "480 crowns"),
        ("\n \n", "480 crowns"),
        ("Your program cannot show HTML. Open it in a browser.", "480 crowns"),
        ("Prices\n\nThe Kestrel pump costs 480 crowns until April. Bye!", "Bye!"),
    ],
)
def test_of_two_versions_the_one_that_says_all(plain: str, stored: str) -> None:
    page = multi("related", part("text/html", PAGE), IMAGE, boundary=b"c")
    found = read(multi("alternative", part("text/plain", plain), page))
    assert stored in found.text and "plan.png" not in found.text
    assert found.text.count("480 crowns") == 1


def test_texts_before_between_and_behind_attachments() -> None:
    note = part("text/plain", "named only", "Content-Disposition: attachment; filename=note.txt\n")
    nested = multi("alternative", part("text/plain", ""), part("text/html", PAGE), boundary=b"n")
    found = read(multi("mixed", part("text/plain", "First."), IMAGE, nested, note,
                       part("text/html", "<p>Last.</p>")))  # fmt: skip
    assert [text for text in found.text.split("\n\n")[1:]] == [
        "First.", "# Prices\nThe Kestrel pump costs 480 crowns until April.", "Last.",
        "Attachments: plan.png, note.txt",
    ]  # fmt: skip
    (warning,) = found.warnings
    assert (warning.code, warning.count) == ("attachments", 2)


def test_a_forwarded_mail_is_read_with_its_headers() -> None:
    inner = (
        b"Content-Type: message/rfc822\n\nFrom: Bob <b@example.org>\nSubject: Leak\n\nIt drips.\n"
    )
    assert body(multi("mixed", part("text/plain", "See below."), inner)) == [
        "See below.", "Forwarded message:", "From: Bob <b@example.org>\nSubject: Leak", "It drips.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("", "utf-8", "Größe der Küche"),
        ('; charset="us-ascii"', "utf-8", "Größe der Küche"),
        ('; charset="iso-8859-1"', "cp1252", "20 € – “sofort”"),
        ('; charset="ks_c_5601-1987"', "cp949", "뷁어를 읽는다"),
        ('; charset="shift_jis"', "cp932", "①番窓口は㈱ヘロン"),
    ],
)
def test_charsets_of_texts(label: str, codec: str, text: str) -> None:
    head = f"Content-Type: text/plain{label}\nContent-Transfer-Encoding: 8bit\n\n".encode()
    assert body(head + text.encode(codec)) == [text]


def test_lines_that_flow_are_joined() -> None:
    text = "The pump is oiled \nevery month.\n> quoted \n-- \nAda"
    content = b"Content-Type: text/plain; format=flowed\n\n" + text.encode()
    assert body(content) == ["The pump is oiled every month.\n> quoted \n-- \nAda"]


def encoded(text: str) -> str:
    return f"=?utf-8?B?{b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("raw", "subject"),
    [
        ("\n ".join(encoded(f"Größe {n} ") for n in range(200)),
         " ".join(f"Größe {n}" for n in range(200))),
        ("=?utf-8?B?R3LDvMOf?= =?utf-8?Q?e_aus_K=C3=B6ln?=", "Grüße aus Köln"),
        ("=?gb2312?B?1uzpRg==?=", "朱镕"),
        ("Re: =?martian?Q?a?= =?utf-8?B?!!!?=", "Re:"),
    ],
    ids=["many words", "cut in two", "GBK", "broken"],
)  # fmt: skip
def test_subjects(raw: str, subject: str) -> None:
    found = mail.parse(f"From: a@b.example\nSubject: {raw}\n\nx".encode(), BOUNDS)
    assert found.title.startswith(subject)
    assert len(found.title) == len(subject) or subject == "Re:"


def test_many_recipients_are_cut_and_said_to_be() -> None:
    to = ",\n ".join(f"Person {n} <p{n}@example.org>" for n in range(20_000))
    found = mail.parse(f"From: a@b.example\nTo: {to}\n\nHello.".encode(), BOUNDS)
    assert "Hello." in found.text and len(found.text) < 5000
    assert [warning.code for warning in found.warnings] == ["recipients_cut"]


def test_encrypted_mail_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="encrypted"):
        read(multi("encrypted", part("application/pgp-encrypted", "Version: 1")))
