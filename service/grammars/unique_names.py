"""Names in JSON objects, each at most once, which a grammar cannot hold.

A model that must write several properties of an open map writes the same one several times; whoever
reads the JSON then has fewer than there must be.
"""

import copy
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLTokenizer

_QUOTE, _ESCAPE = ord('"'), ord("\\")


@dataclass
class _Container:
    """An object or array that has begun; of an object `names` so far, and whether one follows."""

    names: set[bytes] | None
    name_follows: bool


@dataclass
class _Reader:
    """Reads JSON byte by byte, as far as names go. What stands before it is skipped."""

    inside: list[_Container] = field(default_factory=list)
    string: bytearray | None = None  # that has begun, as it is written
    escaped: bool = False
    doubled: bool = False

    def read(self, data: bytes) -> None:
        for byte in data:
            if self.string is not None:
                self._in_string(byte)
            elif byte == _QUOTE:
                self.string = bytearray()
            elif byte in b"{[":
                names: set[bytes] | None = set() if byte == ord("{") else None
                self.inside.append(_Container(names, names is not None))
            elif byte in b"}]" and self.inside:
                self.inside.pop()
            elif byte == ord(",") and self.inside:
                self.inside[-1].name_follows = self.inside[-1].names is not None

    def _in_string(self, byte: int) -> None:
        assert self.string is not None
        if byte == _QUOTE and not self.escaped:
            self._end_string(bytes(self.string))
            self.string = None
            return
        self.escaped = byte == _ESCAPE and not self.escaped
        self.string.append(byte)

    def _end_string(self, string: bytes) -> None:
        top = self.inside[-1] if self.inside else None
        if top is None or top.names is None or not top.name_follows:
            return
        self.doubled |= string in top.names
        top.names.add(string)
        top.name_follows = False


class Vocabulary:
    """The tokens of a tokenizer, by how they begin and end strings."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self.texts = [tokenizer.decode_bytes([id]) for id in range(tokenizer.vocab_size)]
        self.ending: dict[bytes, list[int]] = {}  # by what stands before the mark
        self.plain: dict[bytes, list[int]] = {}  # tokens without a mark, by their text
        self.opening: dict[bytes, list[int]] = {}  # by what stands behind the last mark
        self.whole: list[int] = []  # that may begin a name and end it
        for id, text in enumerate(self.texts):
            before, mark, rest = text.partition(b'"')
            if mark:
                self.ending.setdefault(before, []).append(id)
                self.opening.setdefault(text.rpartition(b'"')[2], []).append(id)
                if b'"' in rest:
                    self.whole.append(id)
            else:
                self.plain.setdefault(text, []).append(id)


class UniqueNames:
    """Follows one answer, and says which tokens would write a name twice."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._reader = _Reader()

    def __deepcopy__(self, memo: object) -> "UniqueNames":
        made = UniqueNames(self._vocabulary)
        made._reader = copy.deepcopy(self._reader)
        return made

    def follow(self, tokens: list[int]) -> None:
        """Note the answer's next tokens."""
        for token in tokens:
            self._reader.read(self._vocabulary.texts[token])

    def doubles(self, tokens: list[int]) -> bool:
        """Whether these tokens, if they come next, write a name twice."""
        after = copy.deepcopy(self._reader)
        for token in tokens:
            after.read(self._vocabulary.texts[token])
        return after.doubled

    def completing(self) -> list[int]:
        """Return the tokens behind which the name that has begun is one that was written."""
        reader, vocabulary, found = self._reader, self._vocabulary, []
        for name in (reader.inside[-1].names or ()) if reader.inside else ():
            if reader.string is None:
                found += vocabulary.opening.get(name, [])
            elif name.startswith(reader.string) and len(name) > len(reader.string):
                found += vocabulary.plain.get(name[len(reader.string) :], [])
        return found

    def without_doubles(self, allowed: bytes) -> bytes:
        """Return the bits of tokens that may come next, without those that end a name again."""
        reader = self._reader
        top = reader.inside[-1] if reader.inside else None
        if not any(each.names for each in reader.inside):
            return allowed
        words = np.frombuffer(allowed, np.uint8)
        banned: list[int] = []
        if reader.string is not None and top is not None and top.names and top.name_follows:
            so_far = bytes(reader.string)
            for name in top.names:
                if name.startswith(so_far):
                    banned += self._vocabulary.ending.get(name[len(so_far) :], [])
        for id in self._vocabulary.whole:
            if words[id >> 3] >> (id & 7) & 1:
                banned += [id] if self.doubles([id]) else []
        return without(words.tobytes(), banned)


def without(allowed: bytes, tokens: list[int]) -> bytes:
    """Return bits of allowed tokens without those of these."""
    words = np.frombuffer(allowed, np.uint8).copy()
    for id in tokens:
        words[id >> 3] &= ~(1 << (id & 7)) & 0xFF
    return words.tobytes()
