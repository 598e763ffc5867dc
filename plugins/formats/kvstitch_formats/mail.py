"""E-mails, mailboxes and saved pages (MHTML): sender, recipients, date, subject and all texts.

Attachments are named, not read. What a reply quotes below its text is left out: it is a mail, too.
"""

from __future__ import annotations

import email
import re
from email.header import decode_header
from email.policy import default
from itertools import pairwise
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing import charsets
from kvstitch.service.gateway.documents.parsing.markup import html
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    MAX_PLACES,
    Bounds,
    ParsedFile,
    ParseWarning,
    TextBuilder,
    left_out_warnings,
    one_line,
)

MAX_HEADER_CHARS = 4000  # of the recipients, mostly
MAX_FORWARDED = 5  # mails within mails
SAME_TEXT = 0.6  # of a page's words are in the plain text: it says the same
_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_WORD = re.compile(r"\w+")
_BETWEEN_MAILS = re.compile(
    rb"(?:\A|(?<=\n\r\n)|(?<=\n\n))From \S+ [^\n]*\d\d:\d\d[^\n]*\n(?=[\w-]+:)"
)
# What programs write above a reply's quotation: a sentence before lines with ">", or headers.
_WROTE = re.compile(r"\S.{0,300}:\s*|(?:On|Am|Le|El|Il) .{0,200}")
_OLD_HEADERS = re.compile(
    r"^(?:[-_ ]{5,}.*\n\s*)?\*?(?:From|Von|De|Da|Van)\*?: .+\n(?:.+\n)?"
    r"\*?(?:Sent|Date|Gesendet|Datum|Envoy\S+|Enviad\S+|Inviato|Verzonden)\*?: ",
    re.M,
)
_PASSED_ON = re.compile(r"\s*(?:fwd?|wg|tr|i|rv|enc)\s*:", re.I)
_QUOTES = "blockquote[type=cite], .gmail_quote blockquote, .yahoo_quoted, .moz-cite-prefix"


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a message, whose title is the subject; the mails of a mailbox; a saved page."""
    starts = [found.span() for found in _BETWEEN_MAILS.finditer(content)]
    if starts and starts[0][0] == 0:
        box = _Mail(bounds)
        bounds.check_pages(len(starts), "mails")
        for (_, begin), (end, _) in pairwise([*starts, (len(content), 0)]):
            box.message(email.message_from_bytes(content[begin:end], policy=default), boxed=True)
        return box.finish("")
    message = email.message_from_bytes(content, policy=default)
    mail = _Mail(bounds)
    if message.get_content_type() == "multipart/related" and not message.get("To"):
        mail.part(message)
        return mail.finish(_header(message, "Subject"))
    subject = mail.message(message)
    return mail.finish(subject)


class _Mail:
    """Collects the texts of a mail and of those that it forwards."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._out = TextBuilder(bounds)
        self._names: list[str] = []
        self._warnings: dict[str, ParseWarning] = {}
        self._depth = 0
        self._passed_on = False

    def message(self, message: Any, *, boxed: bool = False) -> str:
        """Add a mail; returns its subject. Those of a box have headings."""
        headers = {name: _header(message, name) for name in _HEADERS}
        if not any(headers.values()) and not self._depth:
            raise InvalidRequest("it has no sender, subject or date: is it an e-mail?")
        self._passed_on = bool(_PASSED_ON.match(headers["Subject"]))
        if boxed:
            self._out.heading(1, headers["Subject"] or headers["Date"])
        for name, value in headers.items():
            if len(value) > MAX_HEADER_CHARS:
                value = value[:MAX_HEADER_CHARS] + "…"
                self._warn("recipients_cut", f"of the recipients only the first are kept ({name})")
            self._out.line(f"{name}: {value}" if value else "")
        self._out.gap()
        self.part(message)
        return headers["Subject"]

    def finish(self, subject: str) -> ParsedFile:
        if self._names:
            self._out.block("Attachments: " + ", ".join(self._names))
            self._warnings["attachments"] = ParseWarning(
                "attachments",
                f"attachments are named, not read ({len(self._names)}): ingest them by themselves",
                tuple(self._names[:MAX_PLACES]),
                len(self._names),
            )
        return self._out.finish(subject, self._warnings.values())

    def part(self, part: Any) -> None:
        """Add the texts of a part."""
        kind = part.get_content_type()
        if kind == "multipart/alternative":
            self._alternative(list(part.iter_parts()))
        elif kind == "multipart/encrypted" or ("pkcs7-mime" in kind and not _is_signed(part)):
            raise InvalidRequest("it is encrypted: save it decrypted")
        elif kind == "multipart/related":
            first, *others = list(part.iter_parts()) or [None]
            if first is not None:
                self.part(first)
            for other in others:  # pictures of the page, which the page shows
                if not other.get_content_type().startswith("image/"):
                    self.part(other)
        elif part.is_multipart() and kind != "message/rfc822":
            for child in part.iter_parts() if kind.startswith("multipart/") else part.get_payload():
                self.part(child)
        elif kind == "message/rfc822" and self._depth < MAX_FORWARDED and part.is_multipart():
            self._depth += 1
            self._out.block("Forwarded message:")
            for child in part.get_payload():
                self.message(child)
            self._depth -= 1
        elif kind == "text/calendar":
            self._out.block(_invitation(_decoded(part.get_payload(decode=True) or b"", "")[0]))
        elif kind.startswith("text/") and not part.is_attachment():
            self._add(self._read(part))
        elif kind not in ("application/pgp-signature", "application/pkcs7-signature"):
            self._names.append(one_line(_file_name(part) or kind))

    def _alternative(self, parts: list[Any]) -> None:
        """Add the plain text, unless it is empty or says less than the page does."""
        texts = [part for part in parts if part.get_content_type() == "text/plain"]
        others = [part for part in parts if part.get_content_type() != "text/plain"]
        plain = [self._read(part) for part in texts]
        before = len(self._names)
        page = _Mail(self._bounds)
        page._depth, page._passed_on = self._depth, self._passed_on
        calls = [other for other in others if other.get_content_type() == "text/calendar"]
        for other in others:
            if other not in calls:
                page.part(other)
        seen = page._out.finish()
        said = {word.lower() for one in plain for word in _WORD.findall(one.text)}
        wanted = {word.lower() for word in _WORD.findall(seen.text)}
        if wanted and len(said & wanted) < SAME_TEXT * len(wanted):
            self._add(seen)
        else:
            for one in plain:
                self._add(one)
        self._warnings |= page._warnings
        self._names[before:] = page._names
        for call in calls:
            self.part(call)

    def _add(self, parsed: ParsedFile) -> None:
        for warning in parsed.warnings:
            self._warnings[warning.code] = warning
        if parsed.marks:
            self._out.file(parsed)
        else:
            self._out.block(parsed.text)

    def _read(self, part: Any) -> ParsedFile:
        payload = part.get_payload(decode=True)
        payload = payload if isinstance(payload, bytes) else b""
        label = part.get_content_charset() or ""
        if part.get_content_type() == "text/html":
            text, warnings = _decoded(payload, label or html.label_of(payload))
            if not self._passed_on and (own := _without_cited(text)) != text:
                text, warnings = own, (*warnings, *left_out_warnings({"quotes": 1}))
            parsed = html.parse(text.encode("utf-8-sig", "replace"), self._bounds)
            return ParsedFile(parsed.text, "", parsed.marks, (*warnings, *parsed.warnings))
        text, warnings = _decoded(payload, label)
        if str(part.get_param("format", "")).lower() == "flowed":
            text = _unfolded(text, str(part.get_param("delsp", "")).lower() == "yes")
        if not self._passed_on and (own := _without_quotes(text)) != text:
            text, warnings = own, (*warnings, *left_out_warnings({"quotes": 1}))
        return ParsedFile(text, warnings=warnings)

    def _warn(self, code: str, message: str) -> None:
        self._warnings[code] = ParseWarning(code, message)


def _header(message: Any, name: str) -> str:
    """Return a header as people read it, also one that breaks the rules."""
    found = next((v for key, v in message.raw_items() if key.lower() == name.lower()), "")
    raw = str(found)
    if not raw.isascii():  # bytes beyond ASCII are half surrogates
        raw = _decoded(raw.encode("utf-8", "surrogateescape"), "")[0]
    # Blanks between encoded words are none; where a line ends is no matter.
    raw = re.sub(r"[\r\n]+[ \t]*", " ", raw)
    try:
        parts = decode_header(raw)
    except Exception:  # malformed base64
        return one_line(raw)
    return one_line("".join(_word(word, charset) for word, charset in parts))


def _word(word: bytes | str, charset: str | None) -> str:
    if isinstance(word, str):
        return word
    if not charset:
        return word.decode("latin-1" if not word.isascii() else "ascii")
    return _decoded(word, charset)[0]


def _decoded(content: bytes, label: str) -> tuple[str, tuple[ParseWarning, ...]]:
    try:
        decoded = charsets.decode(content, label)
    except InvalidRequest:  # a part that is wrong does not make the mail unreadable
        message = "some of its text is in a charset that cannot be told: it stands with \ufffd"
        text = content.decode("utf-8", "replace")
        return text, (ParseWarning("undecodable_bytes", message, count=text.count("\ufffd")),)
    return decoded.text, decoded.warnings


def _unfolded(text: str, delete_space: bool) -> str:
    """Join lines that end in a blank with the next, as `format=flowed` says."""
    out: list[str] = []
    goes_on = False
    for line in text.splitlines():
        if goes_on:
            out[-1] += line
        else:
            out.append(line)
        goes_on = line.endswith(" ") and line != "-- " and not line.startswith(">")
        if goes_on and delete_space:
            out[-1] = out[-1][:-1]
    return "\n".join(out)


def _without_quotes(text: str) -> str:
    """Return a reply without what it quotes below all that is new; quotations between stay."""
    headers = _OLD_HEADERS.search(text)
    if headers and text[: headers.start()].strip():
        text = text[: headers.start()].rstrip() + "\n"
    lines = text.splitlines()
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith(">")):
        end -= 1
    if not any(line.lstrip().startswith(">") for line in lines[end:]):
        return text
    # The sentence that says who wrote it, which may go on in a second line.
    if end > 1 and lines[end - 1].rstrip().endswith(":") and _WROTE.fullmatch(lines[end - 1]):
        end -= 1
        if lines[end - 1].strip() and not lines[end - 1].rstrip().endswith((".", "!", "?")):
            end -= bool(re.match(r"(?:On|Am|Le|El|Il|Op|Em) ", lines[end - 1]))
    own = "\n".join(lines[:end]).rstrip()
    return own + "\n" if own else text


def _without_cited(page: str) -> str:
    """Return a reply's page without what it quotes, unless that is all there is."""
    tree = LexborHTMLParser(page)
    cited = tree.css(_QUOTES)
    for node in cited:
        node.decompose()
    return (tree.html or "") if cited and tree.body and tree.body.text().strip() else page


_CALLED = {"SUMMARY": "Event", "DTSTART": "From", "DTEND": "To", "DURATION": "Lasts",
           "RRULE": "Again", "LOCATION": "Place", "ORGANIZER": "Organizer",
           "ATTENDEE": "Attendee", "STATUS": "Status", "DESCRIPTION": "Description"}  # fmt: skip
_DATE_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?")


def _invitation(calendar: str) -> str:
    """Return what an invitation says, a line for each of its properties."""
    lines: list[str] = []
    inside = False  # an event or a task, and no time zone or alarm
    for line in re.sub(r"\r?\n[ \t]", "", calendar).splitlines():
        name, _, value = line.partition(":")
        name, *settings = name.split(";")
        name = name.upper()
        if name in ("BEGIN", "END"):
            inside = (name == "BEGIN") is (value.strip().upper() in ("VEVENT", "VTODO"))
        elif inside and (called := _CALLED.get(name)) and value.strip():
            zone = next((f" ({s[5:]})" for s in settings if s.startswith("TZID=")), "")
            if name.startswith("DT"):
                value = _DATE_TIME.sub(_date, value) + zone
            value = re.sub(r"\\([nN,;\\])", lambda m: "\n" if m[1] in "nN" else m[1], value)
            lines.append(f"{called}: {value.removeprefix('mailto:').removeprefix('MAILTO:')}")
    return "\n".join(lines)


def _date(found: re.Match[str]) -> str:
    day = f"{found[1]}-{found[2]}-{found[3]}"
    return f"{day} {found[4]}:{found[5]}{' UTC' if found[7] else ''}" if found[4] else day


def _is_signed(part: Any) -> bool:
    return str(part.get_param("smime-type", "")).lower() in ("signed-data", "certs-only")


def _file_name(part: Any) -> str:
    try:
        return str(part.get_filename() or "")
    except Exception:  # the standard library fails on some malformed headers
        return ""
