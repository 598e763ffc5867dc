"""What OpenAI's servers say of the sources of a message."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class UrlCitation(BaseModel):
    """The source of `content[start_index:end_index]`."""

    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(BaseModel):
    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation
