"""What tokenizers remember of the words that they have met, in every thread anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def keep_no_words(tokenizer: Tokenizer) -> None:
    """Have a tokenizer compute the tokens of a word whenever it comes. Before it is first used.

    BPE and Unigram keep the tokens of the first ten thousand words that a thread meets, as long as
    the thread lives. They may be a hostile document's words: of 250 letters each they take 8 KiB,
    which is 80 MB for each thread. Computing them always takes a third more time, half a
    microsecond a character.
    """
    if hasattr(tokenizer.model, "_resize_cache"):
        tokenizer.model._resize_cache(0)
