"""The text and the bytes that one token stands for, for people who look at single tokens.

A token may be a part of a character, so its text alone cannot always be read; its bytes can always
be joined with those of its neighbours. How a vocabulary spells bytes depends on its kind:

    byte-level (GPT-2, Llama 3, Qwen)      one letter per byte: "Ġ" is the blank
    byte fallback (SentencePiece)          "<0x0A>" where there is no piece, "▁" for the blank
    other                                  what the token adds to a text
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

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
