"""Names made of digits: part numbers, versions, dates, addresses, paragraphs of laws.

Cut into words they are all alike (2024-05-03 has the words of 2024-03-05), so each also gets a
token of its own. What is between letters and digits does not count, what is between digits counts
as one sign:

    PPR-9087, PPR 9087, ppr9087 -> ppr9087    2024/05/03 -> 2024·05·03    § 12a -> §12a
"""

from __future__ import annotations

import re

SEPARATOR = "\u00b7"
_ALNUM = r"[^\W_]"
# What joins the parts of a name; brackets count where they close again, as in 6(1)(f).
_JOIN = r"(?:[-._/:+#\u2010-\u2015\u2212]|(?=\(\w{1,4}\))\(|\)(?=[-._/:(]|\w)|\)\()"
_NAME = re.compile(rf"{_ALNUM}+(?:{_JOIN}{_ALNUM}+)*+")
_PARAGRAPH = re.compile(r"\u00a7+\s*(\d+[a-z]?)\b")
# 第12条, 제12조: an article, chapter, item, number, … of a law.
_ARTICLE = re.compile(
    r"[\u7b2c\uc81c]\s*\d+\s*"
    r"[\u6761\u689d\u7ae0\u9805\u9879\u53f7\u865f\u7bc0\u8282\u6b3e\uc870\ud56d]"
)
# Chinese, Japanese, Korean, Thai, … follow a name without a blank.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)
_BETWEEN = re.compile(r"(?<=\d)[^a-z0-9]+(?=\d)")
_SIGNS = re.compile(r"[^\w\u00b7]|_")
_QUANTITY = re.compile(r"\d+[a-z]{1,3}")  # 5th, 20kg, 1990s
_SHORT = re.compile(r"[^\W\d_]+\d")  # u2, ww1, mp3: words of their own
_WITH_A_WORD = re.compile(r"\d.*\W[^\W\d_]{3,}")  # 19-year-old, 12-inch
_WORD_BEHIND = re.compile(r"(.*\d)[^\w/][^\W\d_]{4,}")  # PPR-9087-Ventil
_VERSION = re.compile(r"v(?=\d+\.)")
# Capitals before a number, as in PPR 9087 or ISO 9001. This is asked of the query's own spelling.
_APART = re.compile(r"\b([A-Z]{2,6}) (\d[\w.-]*\w|\d)\b")
LEAST_DIGITS = 5
MOST_CHARS = 64  # what is longer is no name: Base64, hashes in a row


def identifiers(folded: str) -> list[str]:
    """The tokens of the identifiers in a folded text, in order."""
    if not any(map(str.isdigit, folded)):
        return []
    found = [f"\u00a7{match[1]}" for match in _PARAGRAPH.finditer(folded)]
    found += (re.sub(r"\s", "", match[0]) for match in _ARTICLE.finditer(folded))
    for match in _NAME.finditer(_UNSPACED.sub(" ", folded)):
        name = match[0]
        alternatives = name.split("/")
        if len(alternatives) > 1 and all(map(_is_mixed, alternatives)):
            found += map(_token, alternatives)
        elif len(name) <= MOST_CHARS and _is_identifier(name):
            found.append(_token(name))
            if behind := _WORD_BEHIND.fullmatch(name):
                found.append(_token(behind[1]))
    return found


def _token(name: str) -> str:
    return _SIGNS.sub("", _BETWEEN.sub(SEPARATOR, _VERSION.sub("", name, count=1)))


def _is_mixed(name: str) -> bool:
    """Whether it has digits and letters."""
    return any(map(str.isdigit, name)) and any(map(str.isalpha, name))


def written_apart(query: str) -> list[tuple[str, str]]:
    """Capitals and the number behind them, of a query that is not folded: PPR 9087."""
    return [(match[1], match[2]) for match in _APART.finditer(query)]


def _is_identifier(name: str) -> bool:
    if not any(map(str.isdigit, name)):
        return False
    if name.isdigit():
        return len(name) >= LEAST_DIGITS or (name[0] == "0" and len(name) > 1)
    none = (_QUANTITY, _SHORT, _WITH_A_WORD)
    return not any(pattern.fullmatch(name) for pattern in none)
