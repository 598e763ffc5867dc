"""Words of full-text search that say nothing: each is replaced by a keyed hash of itself.

Equal words have equal hashes, so an index counts and scores them as before. What stays visible is
how often which hash occurs, and where. Hashes begin with that of the word's first character, for
scripts in which a query may ask for words that start with a character: two words with one first
character then look alike at the start.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

_WORD_HEX = 20
_START_HEX = 8


class BlindWords:
    """Hashes of words under the key of one owner.

    Args:
        secret: 32 bytes.
        starts: whether a query may ask for words that start as this one does.
    """

    def __init__(self, secret: bytes, starts: Callable[[str], bool]) -> None:
        self._secret = secret
        self._starts = starts

    def word(self, word: str) -> str:
        """Return what stands for a word in the index: lower-case letters and digits."""
        whole = self._hash("w", word, _WORD_HEX)
        return self.start(word) + whole if self._starts(word) else f"w{whole}"

    def start(self, word: str) -> str:
        """Return what words start with that have the first character of this one."""
        return f"s{self._hash('s', word[0], _START_HEX)}"

    def _hash(self, kind: str, text: str, length: int) -> str:
        return hmac.digest(self._secret, f"{kind}\0{text}".encode(), "sha256").hex()[:length]
