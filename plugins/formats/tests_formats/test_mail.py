"""Mail: which of its parts are its text, in which charset, and what its headers say."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile
from kvstitch_formats import mail
from tests.service.plugins.loaded import plugins

BOUNDS = Bounds(50, 100_000)
TEXT_HEAD = "From: Ada <ada@example.org>\nDate: Tue, 4 Mar 2025 10:00:00 +0000\n"
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


def letter(text: str, subject: str = "Re: Key") -> ParsedFile:
    return mail.parse(f"{TEXT_HEAD}Subject: {subject}\n\n{text}".encode(), BOUNDS)


QUOTED = "> Is it 4190?\n>\n>> Yes.\n"


@pytest.mark.parametrize(
    ("text", "kept", "gone"),
    [
        (f"It is 7713.\n\nOn Mon, 3 Mar Tolliver wrote:\n{QUOTED}", "It is 7713.", "wrote"),
        (f"7713.\n\nAm 3. März schrieb\nTolliver <t@a.org>:\n{QUOTED}", "7713.", "schrieb"),
        ("7713.\n\n-----Original Message-----\nFrom: T\nSent: Monday\nTo: Q\n\n4190?",
         "7713.", "4190"),
        ("7713.\n\nVon: T\nGesendet: Montag\nAn: Q\n\n4190?", "7713.", "4190"),
        (f"{QUOTED}No, it is 7713.\n{QUOTED}",
         "> Is it 4190?\n>\n>> Yes.\nNo, it is 7713.", "7713.\n>"),
    ],
)  # fmt: skip
def test_what_a_reply_quotes_below_itself_is_left_out(text: str, kept: str, gone: str) -> None:
    found = letter(text)
    assert kept in found.text and gone not in found.text
    assert [w.code for w in found.warnings] == ["quotes"]


def test_what_is_passed_on_or_all_there_is_stays() -> None:
    passed = "See below.\n\nFrom: T\nSent: Monday\n\nThe code is 4190."
    assert "4190" in letter(passed, "Fwd: Key").text
    assert "4190" in letter(QUOTED).text
    cited = '<p>It is 7713.</p><blockquote type="cite">Is it 4190?</blockquote>'
    head = f"{TEXT_HEAD}Subject: Re: Key\nContent-Type: text/html\n\n"
    assert "4190" not in mail.parse((head + cited).encode(), BOUNDS).text
    assert "4190" in mail.parse((head + cited[22:]).encode(), BOUNDS).text


CALENDAR = """Content-Type: text/calendar; charset=utf-8

BEGIN:VCALENDAR
BEGIN:VTIMEZONE
TZID:Zanska
END:VTIMEZONE
BEGIN:VEVENT
SUMMARY:Board meeting
 on the crane
DTSTART;TZID=Zanska:20250314T090000
DTEND:20250314T103000Z
LOCATION:Town hall\\, room 12
ORGANIZER;CN=Q:mailto:q@a.org
BEGIN:VALARM
DESCRIPTION:Reminder
END:VALARM
END:VEVENT
END:VCALENDAR
"""


def test_invitations() -> None:
    parts = 'Content-Type: multipart/alternative; boundary="b"\n\n'
    parts += f"--b\n\nPlease come.\n--b\n{CALENDAR}--b--\n"
    text = mail.parse((TEXT_HEAD + "Subject: Call\n" + parts).encode(), BOUNDS).text
    assert text.endswith(
        "Please come.\n\nEvent: Board meetingon the crane\nFrom: 2025-03-14 09:00 (Zanska)\n"
        "To: 2025-03-14 10:30 UTC\nPlace: Town hall, room 12\nOrganizer: q@a.org"
    )


def test_mailboxes_and_saved_pages() -> None:
    one = f"From a@b.org Tue Mar  4 10:00:00 2025\n{TEXT_HEAD}Subject: {{}}\n\n{{}}\n\n"
    box = one.format("First", "The pier is shut.") + one.format("Second", "From now on it is open.")
    with plugins("kvstitch_formats"):
        assert file_kind("old", "", box.encode()) == "eml"
        received = b"Received: by x\n\twith y\nFrom: a@b.org\n\nHi"
        assert file_kind("a.txt", "", received) == "eml"
    found = mail.parse(box.encode(), BOUNDS)
    assert [label for _, _, label in found.marks] == ["First", "Second"]
    assert "The pier is shut." in found.text and "From now on it is open." in found.text
    saved_page = (
        "From: <Saved>\nSubject: Fares\nMIME-Version: 1.0\n"
        'Content-Type: multipart/related; boundary="b"\n\n'
        "--b\nContent-Type: text/html; charset=utf-8\n\n<p>It is 12 crowns.</p>\n--b\n"
        "Content-Type: image/png\nContent-Transfer-Encoding: base64\n\nAAEC\n--b--\n"
    )
    with plugins("kvstitch_formats"):
        assert file_kind("a.mht", "", saved_page.encode()) == "eml"
    found = mail.parse(saved_page.encode(), BOUNDS)
    assert (found.text, found.title) == ("It is 12 crowns.", "Fares")
