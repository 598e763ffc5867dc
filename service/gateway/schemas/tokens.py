"""What `include_tokens: true` adds to an answer's cache report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Source = Literal["memory", "ssd", "redis", "s3", "recomputed", "cold", "question"]


class TokenRunOut(BaseModel):
    """Neighbouring tokens that fared alike."""

    tokens: int
    source: Source = Field(description="where their KV came from; cold: computed, none was stored")
    computed_layers: int = Field(description="layers at which it was computed with this prompt")
    entries: int = Field(
        description="of layers · kv_heads, those holding it after the first token; 0: evicted"
    )


class SegmentTokens(BaseModel):
    """One segment's tokens. Token i is `text` from `starts[i]` to the next start, or to the end;
    special tokens and parts of a character have no text. scores: by which the fusion method ranked
    them, None where it ranks nothing."""

    text: str
    starts: list[int]
    runs: list[TokenRunOut]
    scores: list[float] | None


class TokenReport(BaseModel):
    """What became of every token of the prompt; `documents` in the order of the prompt."""

    layers: int
    kv_heads: int
    system: SegmentTokens
    documents: list[SegmentTokens]
    question: SegmentTokens
