"""Log-probabilities of an answer, released together with the text that they belong to.

A stop string, the beginning of one, blanks before the answer and half a character are not sent, or
not yet. Neither are the log-probabilities of tokens that wrote nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstitch.records.answers import LikelyToken, TokenLogprob
from service.gateway.prompts.detokenizer import AnswerText, TokenPiece
from service.messages.replies import TokenItem


@dataclass(frozen=True)
class _Waiting:
    item: TokenItem
    span: range


class AnswerLogprobs:
    """Log-probabilities of one answer, held back until their text is sent."""

    def __init__(self, text: AnswerText, piece: Callable[[int], TokenPiece]) -> None:
        self._text = text
        self._piece = piece
        self._waiting: deque[_Waiting] = deque()
        self.released: list[TokenLogprob] = []

    def push(self, item: TokenItem) -> None:
        """Take the token that the text got last."""
        if item.logprobs is not None:
            self._waiting.append(_Waiting(item, self._text.last_span))

    def release(self) -> list[TokenLogprob]:
        """Return those of the tokens of which a part was sent since the last call."""
        sent, out = self._text.sent, []
        while self._waiting and self._waiting[0].span.start < sent.stop:
            waiting = self._waiting.popleft()
            # A token without text of its own is a part of the next character.
            if max(waiting.span.stop, waiting.span.start + 1) > sent.start:
                out.append(self._described(waiting))
        self.released += out
        return out

    def _described(self, waiting: _Waiting) -> TokenLogprob:
        assert waiting.item.logprobs is not None
        logprob, top = waiting.item.logprobs
        return TokenLogprob(
            **self._fields(waiting.item.token, logprob),
            text_offset=self._text.offset(waiting.span.start),
            top_logprobs=[LikelyToken(**self._fields(token, of_it)) for token, of_it in top],
        )

    def _fields(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._piece(token)
        data = None if piece.bytes is None else list(piece.bytes)
        return {"token": piece.text, "logprob": logprob, "bytes": data, "token_id": token}
