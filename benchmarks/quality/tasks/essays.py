"""Long English text to hide needles in: a folder of essays, or the built-in text.

The published figures use Paul Graham's essays, which we may not redistribute: to use them, give a
folder with them as .txt files. The built-in text, `data/essays.txt`, was written for this project.
It has some 3,000 words of plain prose and is repeated for longer haystacks, so a model may see a
sentence many times.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path

from service.errors import InvalidRequest

BUILT_IN = Path(__file__).parent / "data" / "essays.txt"
_CLOSES = re.compile(r"[.!?][\"'”’)\]]*$")
_ABBREVIATION = re.compile(r"[\"'“‘(\[]*(?:\w|mrs?|ms|dr|st|vs|e\.g|i\.e|prof)\.", re.IGNORECASE)


@dataclass(frozen=True)
class Haystack:
    """Endless text: `text` repeated. `name` says in figures which text it is."""

    name: str
    text: str

    @classmethod
    def read(cls, path: Path) -> Haystack:
        """Reads a folder of .txt files, sorted by name, or a JSONL file whose rows have `passages`.

        Raises:
            InvalidRequest: there is no text.
        """
        if path.is_dir():
            texts = [file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt"))]
        else:
            try:
                rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
                texts = list(dict.fromkeys(text for row in rows for text in row["passages"]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InvalidRequest(
                    f"{path} is neither a folder of .txt files nor JSONL with `passages` "
                    f"({type(error).__name__}: {error})",
                    field="haystack",
                ) from error
        text = "\n".join(text.strip() for text in texts)
        if not text.split():
            raise InvalidRequest(f"there is no text in {path}", field="haystack")
        return cls(path.name, text)

    def prefix(self, words: int) -> str:
        """The first `words` words as written, with line breaks."""
        rounds, rest = divmod(words, len(self._word_ends))
        partial = self.text[: self._word_ends[rest - 1]] if rest else ""
        return ((self.text + "\n") * rounds + partial).rstrip()

    def sentences(self, words: int) -> list[str]:
        """The first `words` words, each sentence on its own line; the last may be cut off."""
        rounds, rest = divmod(words, self._sentence_ends[-1])
        whole = bisect_right(self._sentence_ends, rest)
        cut = rest - (self._sentence_ends[whole - 1] if whole else 0)
        partial = [" ".join(self._sentences[whole].split()[:cut])] if cut else []
        return [*self._sentences * rounds, *self._sentences[:whole], *partial]

    @cached_property
    def _word_ends(self) -> list[int]:
        return [word.end() for word in re.finditer(r"\S+", self.text)]

    @cached_property
    def _sentences(self) -> list[str]:
        sentences, start, words = list[str](), 0, self.text.split()
        for end, word in enumerate(words, 1):
            closes = _CLOSES.search(word) and not _ABBREVIATION.fullmatch(word)
            if closes or end == len(words):
                sentences.append(" ".join(words[start:end]))
                start = end
        return sentences

    @cached_property
    def _sentence_ends(self) -> list[int]:
        """Number of words up to the end of each sentence."""
        return list(accumulate(len(sentence.split()) for sentence in self._sentences))


@cache
def built_in() -> Haystack:
    return Haystack("built-in", BUILT_IN.read_text(encoding="utf-8").strip())
