"""Formats of strings that are held, as regular expressions.

JSON Schema takes a format for an annotation. These are what most programs that read an answer
parse, so they are held, and a little narrower than the standards: no leap seconds, no 29 February,
no year before 1000, fractions of at most six digits. Other formats are not held.
"""

from __future__ import annotations

_YEAR = r"[1-9][0-9]{3}"
_DATE = (
    rf"{_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-](0[0-9]|1[0-2]):[0-5][0-9])"
)
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_WORD = r"[0-9a-fA-F]{1,4}"
_IPV6 = rf"({_WORD}(:{_WORD}){{7}}|{_WORD}(:{_WORD}){{0,2}}::({_WORD}(:{_WORD}){{0,3}})?|::1)"
_HEX = "[0-9a-fA-F]"
_UNRESERVED = r"[a-zA-Z0-9._~-]"
_PATH = rf"(/{_UNRESERVED}*)*"
_VALUE = rf"{_UNRESERVED}+(=({_UNRESERVED}|%[0-9A-F]{{2}})*)?"
_QUERY = rf"(\?{_VALUE}(&{_VALUE})*)?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL}){{0,4}}\.[a-z]{{2,6}}"
_AUTHORITY = rf"({_DOMAIN}|localhost)(:[1-9][0-9]{{0,3}})?"
_MAILBOX = r"[a-zA-Z0-9_+-]{1,20}(\.[a-zA-Z0-9_+-]{1,20}){0,2}"

HELD = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "time": _TIME,
    "duration": r"P([1-9][0-9]{0,3}W|([1-9][0-9]{0,3}D)(T[1-9][0-9]{0,3}[HMS])?"
    r"|T([1-9][0-9]{0,3}H)?([1-9][0-9]{0,3}M)?[1-9][0-9]{0,3}S|T[1-9][0-9]{0,3}[HM])",
    "email": rf"{_MAILBOX}@{_DOMAIN}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": rf"[a-z][a-z0-9+]{{1,14}}://{_AUTHORITY}{_PATH}{_QUERY}(#{_UNRESERVED}*)?",
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-[1-5]{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}",
}
