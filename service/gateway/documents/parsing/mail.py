"""E-mails: sender, recipients, date, subject and text. Attachments are named, not read."""

from __future__ import annotations

import email
from email.message import EmailMessage, MIMEPart
from email.policy import default

from service.errors import InvalidRequest
from service.gateway.documents.parsing import html
from service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile, TextBuilder, one_line

_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a message; its title is the subject.

    Raises:
        InvalidRequest: It is no message, or exceeds a limit.
    """
    message = email.message_from_bytes(content, policy=default)
    headers = {name: _header(message, name) for name in _HEADERS}
    if not any(headers.values()):
        raise InvalidRequest("it has no sender, subject or date: is it an e-mail?")
    out = TextBuilder(bounds)
    for name, value in headers.items():
        out.line(f"{name}: {value}" if value else "")
    out.gap()
    body = message.get_body(("plain", "html"))
    if body is not None:
        if body.get_content_subtype() == "html":
            out.file(html.parse(_text(body).encode("utf-8-sig", "replace"), bounds))
        else:
            out.block(_text(body))
    names = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    if names:
        out.block("Attachments: " + ", ".join(one_line(name) for name in names))
    return out.finish(headers["Subject"])


def _header(message: EmailMessage, name: str) -> str:
    try:
        return one_line(str(message.get(name, "")))
    except Exception:  # the standard library's parsers fail on some malformed headers
        return ""


def _text(part: MIMEPart) -> str:
    try:
        return str(part.get_content())
    except (LookupError, ValueError):  # an unknown charset or encoding
        payload = part.get_payload(decode=True)
        return payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
