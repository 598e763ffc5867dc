"""Limits of calls that bring many texts."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest
from service.settings import Settings


def check_texts(texts: Sequence[str], field: str, settings: Settings) -> None:
    """Raise InvalidRequest if there are too many texts, or one is empty, or all are too long."""
    if len(texts) > settings.max_texts:
        raise InvalidRequest(
            f"{field} has {len(texts)} texts, the limit is {settings.max_texts}: send them in "
            "several calls",
            field=field,
        )
    chars = sum(map(len, texts))
    if chars > settings.max_texts_chars:
        raise InvalidRequest(
            f"{field} has {chars} characters, the limit is {settings.max_texts_chars}: send it in "
            "several calls",
            field=field,
        )
    for number, text in enumerate(texts):
        if not text:
            where = f"{field}[{number}]"
            raise InvalidRequest(f"{where} is empty: send a text, or leave it out", field=where)
