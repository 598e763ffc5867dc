"""Log-probabilities as OpenAI's two routes write them: objects for chats, lists for texts."""

from __future__ import annotations

from collections.abc import Sequence

from service.gateway.schemas.answer import LikelyToken, TokenLogprob
from service.gateway.schemas.openai.chat import ChatLogprobs, TextLogprobs


def chat_logprobs(logprobs: list[TokenLogprob] | None) -> ChatLogprobs | None:
    return None if logprobs is None else ChatLogprobs(content=logprobs)


def text_logprobs(logprobs: Sequence[TokenLogprob] | None) -> TextLogprobs | None:
    if logprobs is None:
        return None
    return TextLogprobs(
        tokens=[_name(one) for one in logprobs],
        token_logprobs=[one.logprob for one in logprobs],
        top_logprobs=[_top(one) for one in logprobs],
        text_offset=[one.text_offset for one in logprobs],
    )


def _top(token: TokenLogprob) -> dict[str, float]:
    """By name, likeliest first; of tokens with one name the likeliest."""
    found: dict[str, float] = {}
    for one in [*token.top_logprobs, token]:
        found.setdefault(_name(one), one.logprob)
    return found


def _name(token: LikelyToken) -> str:
    """Its text, or its bytes if these are not a text: so two parts of characters stay two."""
    if token.bytes is None:
        return token.token
    data = bytes(token.bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
