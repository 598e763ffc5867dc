"""Regular expressions of schemas, as far as llguidance can hold them, and formats as expressions.

There is no look-around. A condition at the beginning, as people write them for passwords and
pydantic for decimals, is the same as a second expression that must match, too:

    ^(?=.*[A-Z]).{8,}$      ^.*[A-Z]    and  ^.{8,}$
    ^(?![-+.]*$)[-+]?…      [^-+.]      and  ^[-+]?…

JSON Schema takes a format for an annotation. Those that most programs parse are held, a little
narrower than the standards: no leap seconds, no 29 February, no year before 1000, fractions of at
most six digits.
"""

import json
import re

from llguidance import LLMatcher

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
_POINTER = r"(/([a-zA-Z0-9._-]|~[01]){1,40}){0,8}"
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
HELD |= {
    **dict.fromkeys(("iri", "uri-reference", "iri-reference", "uri-template"), HELD["uri"]),
    **{"idn-email": HELD["email"], "idn-hostname": HELD["hostname"]},
    **{"json-pointer": _POINTER, "relative-json-pointer": rf"(0|[1-9][0-9]?)(#|{_POINTER})"},
}


_CONDITION = re.compile(r"\(\?([=!])")
_LOOK_AROUND = re.compile(r"(?<!\\)\(\?<?[=!]")
_ALL_OF_A_CLASS = re.compile(r"\^?\[((?:[^\]\\^]|\\.)(?:[^\]\\]|\\.)*)\][*+]\$")


def holdable(pattern: str) -> tuple[list[str], bool]:
    """Return expressions that must all match instead, and whether they say the same."""
    conditions, rest, exact = _without_conditions(pattern)
    if not _is_supported(rest) and (rest := _without_look_around(rest)):
        exact = False
    held = [each for each in [*conditions, rest] if _is_supported(each)]
    return held, exact and len(held) == len(conditions) + 1


def _is_supported(pattern: str) -> bool:
    schema = json.dumps({"type": "string", "pattern": pattern})
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))


def _without_conditions(pattern: str) -> tuple[list[str], str, bool]:
    anchored = pattern.startswith("^")
    conditions: list[str] = []
    rest, exact = pattern[1:] if anchored else pattern, True
    while anchored and (found := _CONDITION.match(rest)):
        end = _closing(rest)
        inner, rest = rest[found.end() : end], rest[end + 1 :]
        if found[1] == "=":
            conditions.append(f"^(?:{inner})")
        elif chars := _ALL_OF_A_CLASS.fullmatch(inner):
            conditions.append(f"[^{chars[1]}]")
        else:
            exact = False
    return conditions, ("^" if anchored else "") + rest, exact


def _without_look_around(text: str) -> str:
    """Return the expression without what looks around, wherever it stands: more matches it."""
    while found := _LOOK_AROUND.search(text):
        text = text[: found.start()] + text[found.start() + _closing(text[found.start() :]) + 1 :]
    return text


def _closing(text: str) -> int:
    """Return where the group that begins `text` ends."""
    depth, in_class, at = 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
        at += 1
    raise ValueError(f"the pattern {text[:80]!r} has a group without an end")
