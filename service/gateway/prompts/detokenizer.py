"""Turns token ids into text while they come in, and ends an answer at a stop string.

Text and bytes of single tokens are for people who look at them. A token may be a part of a
character, so only its bytes can always be joined with its neighbours'. Vocabularies spell bytes as

    byte-level (GPT-2, Llama 3, Qwen)      one letter per byte: "Ġ" is the blank
    byte fallback (SentencePiece)          "<0x0A>" where there is no piece, "▁" for the blank
    other                                  what the token adds to a text
"""

import json
import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from kvstitch.records.answers import LikelyToken, TokenLogprob
from kvstitch.service.gateway.tool_calls.call_parser import overlap
from kvstitch.service.messages.replies import TokenItem

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenPiece(NamedTuple):
    """One token. bytes: what it adds to an answer; None if it adds nothing, as special tokens.
    text: its bytes as text, with U+FFFD for parts of characters; of special tokens their name."""

    text: str
    bytes: bytes | None


class TokenPieces:
    """Looks single tokens of one vocabulary up."""

    def __init__(self, tokenizer: Tokenizer, content: str) -> None:
        self._tokenizer = tokenizer
        self._added = {
            id: (token.content, bool(token.special))
            for id, token in tokenizer.get_added_tokens_decoder().items()
        }
        kinds = _decoder_kinds(json.loads(content).get("decoder"))
        self._letters = _byte_letters() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        # The first token of a text may lose its blank, so a token is looked at behind this one.
        self._before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]

    def __call__(self, token: int) -> TokenPiece:
        """Return the piece of a token id; an id that the tokenizer does not know is empty."""
        if token in self._added:
            content, special = self._added[token]
            return TokenPiece(content, None if special else content.encode())
        name: str | None = self._tokenizer.id_to_token(token)
        if name is None:
            return TokenPiece("", None)
        data = self._bytes(token, name)
        return TokenPiece(data.decode(errors="replace"), data)

    def _bytes(self, token: int, name: str) -> bytes:
        if self._letters is not None and all(letter in self._letters for letter in name):
            return bytes(self._letters[letter] for letter in name)
        if self._byte_fallback and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        before, both = self._decode(self._before), self._decode([*self._before, token])
        text = both.removeprefix(before) if both.startswith(before) else self._decode([token])
        return text.encode()

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Return the types of a decoder and of those that it is made of."""
    if not decoder:
        return set()
    parts = [_decoder_kinds(part) for part in decoder.get("decoders", [])]
    return {decoder["type"]}.union(*parts)


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, others begin at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(others)}


Decode = Callable[[Sequence[int]], str]

_PARTIAL = "\ufffd"  # what an incomplete character decodes to, and a character by itself
_ITS_BYTES = _PARTIAL.encode()


class Detokenizer:
    """Emits text as soon as it is final: never half a character, never corrected afterwards.

    ids   … [context  | new ......]
             ^ start    ^ read
    Only ids[start:] are decoded. The context is the last piece that ended on a whole character.
    A tokenizer that strips or adds a blank at the beginning of a text then does so in the context
    and not in the new text.

    `skip`: ids that yield no text, e.g. those that end an answer. `before`: ids of the text that
    goes on here; `piece`: what a token is by itself, to tell a U+FFFD that the model has written.
    """

    def __init__(
        self,
        decode: Decode,
        skip: Collection[int] = (),
        before: Sequence[int] = (),
        piece: Callable[[int], TokenPiece] | None = None,
    ) -> None:
        self._decode = decode
        self._piece = piece
        self._skip = skip
        self._ids = list(before)
        self._start = 0
        self._read = len(before)
        self._sent = len(decode(before)) if before else 0  # of decode(ids[start:]), emitted

    def push(self, token: int) -> str:
        """Return the text that is final now that `token` is known; may be empty."""
        if token in self._skip:
            return ""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        whole = text if self._is_written() else text.rstrip(_PARTIAL)
        new = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        if whole == text:
            self._start, self._read = self._read, len(self._ids)
            self._sent = len(self._decode(self._ids[self._start :]))
        return new

    def _is_written(self) -> bool:
        """Return whether the last tokens are U+FFFD itself."""
        if (piece := self._piece) is None:
            return False
        last = self._ids[-len(_ITS_BYTES) :]
        return b"".join(piece(one).bytes or b"" for one in last).endswith(_ITS_BYTES)


class StopStrings:
    """Passes text on until a stop string appears; drops the stop string and everything after it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False
        self.found = ""  # the stop string, once `stopped`
        self.passed = 0

    def push(self, text: str, *, ending: bool = True) -> str:
        """Return the text that may be sent now; empty once `stopped`."""
        if self.stopped:
            return ""
        if ending:
            text, self._held = self._held + text, ""
            found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
            if found:
                at, self.found = min(found)
                self.stopped, text = True, text[:at]
            elif keep := max((overlap(text, stop) for stop in self._stops), default=0):
                text, self._held = text[:-keep], text[-keep:]
        self.passed += len(text)
        return text

    def finish(self) -> str:
        """Return the text held back, for an answer that ended without a stop string."""
        text, self._held = self._held, ""
        self.passed += len(text)
        return text


class AnswerText:
    """Collects an answer: detokenised, cut at stop strings, without leading blanks.

    An answer that the prompt has begun starts with these words: the client reads a whole sentence,
    and sends one back as an earlier turn. They come with the first token, so that the time to the
    first piece of text stays the time to the first token. Stop strings end only what the model
    writes.

    Spans count characters of what the model writes, before anything is dropped:

        blanks | answer ……… | held back or stop string
               └── sent ────┘

    Args:
        decode, skip: As of `Detokenizer`.
        stops: Strings that end an answer.
        prefix: The words with which the prompt has begun the answer.
        min_tokens: Tokens before which no stop string ends the answer.
        before: Last ids of a text that the answer continues, leading blanks and all.
        exact: Whether leading blanks are part of the answer, as where it has a form.
        piece: As of `Detokenizer`.

    Attributes:
        text: The answer so far.
        begun: The words with which the prompt has begun it.
        last_span: What the last token added; empty for a part of a character, which the token that
            completes it adds.
    """

    def __init__(
        self,
        decode: Decode,
        skip: Collection[int],
        stops: Sequence[str],
        *,
        prefix: str = "",
        min_tokens: int = 0,
        before: Sequence[int] = (),
        exact: bool = False,
        piece: Callable[[int], TokenPiece] | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(decode, skip, before, piece)
        self._exact = exact or bool(before)
        self._stops = StopStrings(stops)
        self.begun = self._prefix = prefix.lstrip()
        self._unending = min_tokens
        self._blanks = 0  # characters before the answer, which were dropped
        self.text = ""
        self.last_span = range(0)

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    @property
    def stopped_by(self) -> str:
        return self._stops.found

    def push(self, token: int) -> str:
        prefix, self._prefix = self._prefix, ""
        self.text += prefix
        new = self._detokenizer.push(token)
        self.last_span = range(self.last_span.stop, self.last_span.stop + len(new))
        self._unending -= 1
        return prefix + self._emit(self._stops.push(new, ending=self._unending < 0))

    def finish(self) -> str:
        return self._emit(self._stops.finish())

    @property
    def sent(self) -> range:
        return range(self._blanks, self._stops.passed)

    def offset(self, start: int) -> int:
        """Return the place in `text` of the character at `start` of a span."""
        return len(self.begun) + max(0, start - self._blanks)

    def _emit(self, text: str) -> str:
        if not self.text and not self._exact:
            # Most vocabularies continue "Answer:" with " Paris".
            whole, text = text, text.lstrip()
            self._blanks += len(whole) - len(text)
        self.text += text
        return text


class AnswerLogprobs:
    """Log-probabilities of one answer, released together with the text that they belong to.

    A stop string, blanks before the answer and half a character are not sent, or not yet. Neither
    are the log-probabilities of tokens that wrote nothing else.
    """

    def __init__(self, text: AnswerText, piece: Callable[[int], TokenPiece]) -> None:
        self._text = text
        self._piece = piece
        self._waiting: deque[tuple[TokenItem, range]] = deque()
        self.released: list[TokenLogprob] = []

    def push(self, item: TokenItem) -> None:
        """Take the token that the text got last."""
        if item.logprobs is not None:
            self._waiting.append((item, self._text.last_span))

    def release(self) -> list[TokenLogprob]:
        """Return those of the tokens of which a part was sent since the last call."""
        sent, out = self._text.sent, []
        while self._waiting and self._waiting[0][1].start < sent.stop:
            item, span = self._waiting.popleft()
            # A token without text of its own is a part of the next character.
            if item.logprobs is None or max(span.stop, span.start + 1) <= sent.start:
                continue
            logprob, top = item.logprobs
            likely = [LikelyToken(**self._fields(token, of_it)) for token, of_it in top]
            offset = self._text.offset(span.start)
            fields = self._fields(item.token, logprob)
            out.append(TokenLogprob(**fields, text_offset=offset, top_logprobs=likely))
        self.released += out
        return out

    def _fields(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._piece(token)
        data = None if piece.bytes is None else list(piece.bytes)
        return {"token": piece.text, "logprob": logprob, "bytes": data, "token_id": token}
