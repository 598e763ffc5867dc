"""Detokenisation and stop strings, alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from kvstitch.service.gateway.prompts.detokenizer import (
    AnswerText,
    Detokenizer,
    StopStrings,
    TokenPieces,
)
from tests.service.gateway.model_folders import byte_tokenizer

TOKENIZER = byte_tokenizer()
PIECES = TokenPieces(TOKENIZER, TOKENIZER.to_str())


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids)))


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


@settings(deadline=None)
@given(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.just("\ufffd")), max_size=40))
def test_pieces_add_up_and_no_character_is_cut(text: str) -> None:
    detokenizer = Detokenizer(decode, piece=PIECES)
    pieces = [detokenizer.push(token) for token in encode(text)]
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_incomplete_character_at_the_end_is_not_emitted() -> None:
    detokenizer = Detokenizer(decode, piece=PIECES)
    assert "".join(detokenizer.push(token) for token in encode("a\ufffd🎉")[:-1]) == "a\ufffd"


def test_text_that_is_certain_does_not_wait_for_the_next_character() -> None:
    """Ids whose borders never fall between characters: a, then half of é, and so on."""
    parts = [b"a\xc3", b"\xa9\xc3", b"\xa9\xc3", b"\xa9z"]

    def joined(ids: Sequence[int]) -> str:
        return b"".join(parts[i] for i in ids).decode("utf-8", "replace")

    detokenizer = Detokenizer(joined)
    assert [detokenizer.push(i) for i in range(4)] == ["a", "é", "é", "éz"]


def test_replacement_character_in_the_text_itself_comes_through() -> None:
    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(token) for token in encode("a\ufffdb")) == "a\ufffdb"


def test_blanks_of_a_sentencepiece_vocabulary() -> None:
    vocabulary = {"▁Hello": 0, "▁world": 1, "!": 2, "▁": 3, "<unk>": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    detokenizer = Detokenizer(lambda ids: str(tokenizer.decode(list(ids))))
    assert [detokenizer.push(token) for token in (0, 1, 2, 1)] == ["Hello", " world", "!", " world"]


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        (["STOP"], ["one S", "TO", "P two"], "one ", True),
        (["STOP"], ["one S", "TO", "X two"], "one STOX two", False),
        (["STOP"], ["one STO"], "one STO", False),
        (["aab"], ["a", "a", "a", "b", "c"], "a", True),
        (["\n\n", "\n"], ["a\n", "\nb"], "a", True),
        (["ab", "b"], ["xa", "b"], "x", True),
        (["end"], ["the end"], "the ", True),
        ([], ["a", "b"], "ab", False),
        (["x"], [""], "", False),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], out: str, stopped: bool) -> None:
    watch = StopStrings(stops)
    text = "".join(watch.push(piece) for piece in pieces)
    assert text + watch.finish() == out and watch.stopped is stopped


@settings(deadline=None)
@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.data(),
)
def test_stop_strings_do_not_depend_on_the_pieces(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    whole = StopStrings(stops)
    expected = whole.push(text) + whole.finish()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    borders = [0, *cuts, len(text)]
    watch = StopStrings(stops)
    pieces = [text[a:b] for a, b in pairwise(borders)]
    got = "".join(watch.push(piece) for piece in pieces) + watch.finish()
    # Two stop strings may overlap: the one that is complete first wins, so cuts may shorten.
    assert expected.startswith(got) or got == expected or got.startswith(expected)
    if len(stops) <= 1:
        assert got == expected and watch.stopped is whole.stopped


def test_answer_text_drops_leading_blanks_and_end_tokens() -> None:
    answer = AnswerText(decode, skip={1}, stops=["."])
    out = "".join(answer.push(token) for token in [*encode("  Oslo"), 1, *encode(" yes. no")])
    assert out + answer.finish() == answer.text == "Oslo yes"


def test_an_answer_that_the_prompt_has_begun_reads_as_a_whole() -> None:
    answer = AnswerText(decode, skip={1}, stops=["."], prefix=" No. 1:")
    pieces = [answer.push(token) for token in encode(" Oslo. no")]
    assert pieces[0] == "No. 1: "  # with the first token, blank and stop string kept
    assert "".join(pieces) + answer.finish() == answer.text == "No. 1: Oslo"


def test_an_answer_without_tokens_has_no_text() -> None:
    answer = AnswerText(decode, skip={1}, stops=[], prefix="The answer is")
    assert answer.finish() == answer.text == ""
