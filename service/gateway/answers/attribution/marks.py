"""Marks in an answer's text that name passages: [1], [2, 3].

The model is asked for them in Q: S and the documents are the same for every question, so that their
stored KV serves all of them. Documents carry no numbers of their own, so the request lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from service.prompt import Turn

_MARK = re.compile(r"\s?\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\]")
_CLOSING = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)]*$")


def marks_in(text: str) -> list[int]:
    """Return the numbers of all marks, each once, in the order of the text."""
    found = (int(number) for mark in _MARK.finditer(text) for number in mark[1].split(","))
    return list(dict.fromkeys(found))


def without_marks(text: str) -> str:
    return _MARK.sub("", text)


def with_marks(
    text: str, sentences: Sequence[tuple[range, Sequence[int]]]
) -> tuple[str, list[range]]:
    """Put a mark at the end of every sentence that has citations, before its full stop."""
    out, done = "", 0
    spans: list[range] = []
    for span, citations in sentences:
        out += text[done : span.start]
        sentence, done = text[span.start : span.stop], span.stop
        if citations:
            closing = _CLOSING.search(sentence)
            end = len(sentence) if closing is None else closing.start()
            mark = f" [{', '.join(map(str, citations))}]"
            sentence = f"{sentence[:end]}{mark}{sentence[end:]}"
        spans.append(range(len(out), len(out) + len(sentence)))
        out += sentence
    return out + text[done:], spans


TITLE_CHARS = 80


def asking_for_marks(turns: Sequence[Turn], titles: Sequence[str]) -> list[Turn]:
    """Return the conversation with the request for marks at the end of the user's last text.

    Args:
        turns: A normalised conversation.
        titles: Of the passages, in the order of the prompt.
    """
    out = list(turns)
    last = max(number for number, turn in enumerate(out) if turn.role == "user")
    if titles:
        out[last] = replace(out[last], text=f"{out[last].text}\n\n{_request(titles)}")
    return out


def _request(titles: Sequence[str]) -> str:
    listed = "\n".join(
        f"[{number}] {title[:TITLE_CHARS]}" for number, title in enumerate(titles, 1)
    )
    return (
        f"These are the documents above, in their order:\n{listed}\n"
        "End every sentence of your answer with the number of the document that it is from, "
        "written like this: [1]."
    )
