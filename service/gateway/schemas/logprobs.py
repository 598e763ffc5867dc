"""Log-probabilities of an answer's tokens: OpenAI's fields, and those that tell tokens apart."""

from __future__ import annotations

from pydantic import BaseModel, Field

# As OpenAI has it, on the chat route and here.
MAX_LOGPROBS = 20


class LikelyToken(BaseModel):
    """A token, and the natural logarithm of its probability before temperature and top_p. bytes:
    None of a token without text; a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    token_id: int


class TokenLogprob(LikelyToken):
    """A token of the answer, and the most likely tokens in its place."""

    text_offset: int = Field(description="where it begins in the answer's text, in characters")
    top_logprobs: list[LikelyToken]
