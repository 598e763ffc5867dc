"""Asks the model to write marks that name passages.

The request stands in Q: S and the documents are the same for every question, so that their stored
KV serves all of them. Documents carry no numbers of their own, so the request lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.prompt import Turn

TITLE_CHARS = 80


def asking_for_marks(turns: Sequence[Turn], titles: Sequence[str]) -> list[Turn]:
    """The conversation with the request behind the user's last text; as it is without passages.

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
