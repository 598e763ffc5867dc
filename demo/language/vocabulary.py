"""The demo model's tokenizer: byte-level BPE in which every closed-list word is one token.

The vocabulary is built, not learnt: known words are whole tokens (`ignore_merges`), open names are
two syllables ("Vel" + "en") through ranked merges, numbers are pairs of digits, and anything else
is spelled in bytes. New words are always appended, so that trained embedding rows keep their ids.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from demo.language import wording, words
from demo.language.kinds import KINDS

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
SIZE = 1536
"""Rows of the embedding; the vocabulary has slightly fewer tokens."""

SYSTEM = "Answer the question from the documents.\n"
DOCUMENT = "{title}\n{text}\n"
QUESTION = "Question: {question}\nAnswer:"
SPACE = "Ġ"
"""How the byte-level alphabet writes a blank before a word."""


def build_tokenizer() -> Tokenizer:
    """Builds the tokenizer; nothing is random, so it is the same at every call.

    Raises:
        ValueError: The vocabulary has outgrown the embedding.
    """
    vocabulary: dict[str, int] = {PAD: PAD_ID, BOS: BOS_ID, EOS: EOS_ID}
    merges: list[tuple[str, str]] = []

    def add(token: str) -> None:
        vocabulary.setdefault(token, len(vocabulary))

    def merge_chain(token: str) -> None:
        for end in range(2, len(token) + 1):
            pair = (token[: end - 1], token[end - 1])
            if pair not in merges:
                merges.append(pair)
            add(token[:end])

    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        add(letter)
    for word in _known_words():
        add(SPACE + word)
    for word in _line_starts():
        add(word)
    # First syllables rank above everything else, so that no merge crosses a syllable border.
    for first in sorted(words.SYLLABLES_FIRST, key=len, reverse=True):
        merge_chain(SPACE + first)
    for first in sorted(words.SYLLABLES_FIRST, key=len, reverse=True):
        merge_chain(first)
    for last in sorted(words.SYLLABLES_LAST, key=len, reverse=True):
        merge_chain(last)
    _add_later_words(add, merges)
    if len(vocabulary) > SIZE:
        raise ValueError(f"{len(vocabulary)} tokens do not fit {SIZE}")

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, BOS, EOS])
    return tokenizer


def _add_later_words(add: Callable[[str], None], merges: list[tuple[str, str]]) -> None:
    """Appends the words of the tasks, and pairs of digits."""
    for word in sorted({w for text in wording.TEXTS for w in _bare(text).split()}):
        add(SPACE + word)
    for word in ("Record", "VAR", "One"):
        add(word)
    for digit in string.digits:
        merges.append((SPACE, digit))
        add(SPACE + digit)
    # The first two digits of a number are one token, so that the first token already tells a key's
    # value from the values of other keys. These merges rank above the pairs of digits below, but
    # their ids come later, because they were added later.
    opening = [(SPACE + a, b) for a in string.digits[1:] for b in string.digits]
    merges += opening
    for first in string.digits:
        for second in string.digits:
            merges.append((first, second))
            add(first + second)
    for text in wording.CONTINUED_TEXTS:
        for word in _bare(text).split():
            add(SPACE + word)
    for blank_digit, digit in opening:
        add(blank_digit + digit)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json and Hugging Face's tokenizer_config.json into a folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _known_words() -> list[str]:
    known = set(words.CLOSED) | {"She", "He", "It", "The", "the", "and"}
    for text in [*_templates(), SYSTEM, QUESTION]:
        known |= set(_bare(text).split())
    return sorted(known)


def _line_starts() -> list[str]:
    """Words that may begin a title, a body or a prompt segment, where no blank precedes them."""
    starts = set(words.GIVEN) | set(words.TOWN_PREFIX) | {"The", "Question", "Answer"}
    starts |= {text.split()[0] for text in _templates() if not text.startswith("{")}
    return sorted(starts)


def _templates() -> list[str]:
    relations = [relation for kind in KINDS.values() for relation in kind]
    return [text for r in relations for text in r.sentences + r.questions]


def _bare(text: str) -> str:
    for mark in ("{n}", "{v}", "{a}", "{b}", "{question}", ".", "?", ":", ","):
        text = text.replace(mark, " ")
    return text
