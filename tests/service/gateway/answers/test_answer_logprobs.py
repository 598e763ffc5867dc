"""Log-probabilities come with the text that they belong to, and never without."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.records.answers import TokenLogprob
from kvstitch.service.gateway.prompts.detokenizer import AnswerLogprobs, AnswerText, TokenPieces
from kvstitch.service.messages.replies import TokenItem, TokenLogprobs
from tests.service.gateway.model_folders import byte_tokenizer

TOKENIZER = byte_tokenizer()
PIECES = TokenPieces(TOKENIZER, TOKENIZER.to_str())


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def stream(
    ids: Sequence[int], stops: Sequence[str] = (), prefix: str = ""
) -> tuple[list[tuple[str, list[TokenLogprob]]], str]:
    """What is sent, piece by piece, as `AnswerStream` does it; and the whole answer."""
    text = AnswerText(lambda ids: str(TOKENIZER.decode(list(ids))), {1}, stops, prefix=prefix)
    logprobs = AnswerLogprobs(text, PIECES)
    sent = []
    for number, id in enumerate(ids):
        piece = text.push(id)
        logprobs.push(TokenItem("a", id, TokenLogprobs(-float(number), [(id, -float(number))])))
        if piece:
            sent.append((piece, logprobs.release()))
        if text.stopped:
            break
    if piece := text.finish():
        sent.append((piece, logprobs.release()))
    assert logprobs.released == [one for _, some in sent for one in some]
    return sent, text.text


def joined(sent: list[tuple[str, list[TokenLogprob]]]) -> bytes:
    return b"".join(bytes(one.bytes or []) for _, some in sent for one in some)


@pytest.mark.parametrize(
    ("text", "stops", "told"),
    [
        ("Oslo", [], b"Oslo"),
        ("  Oslo", [], b"Oslo"),  # blanks before the answer are not sent
        ("Oslo.\nNo", ["\n"], b"Oslo."),
        ("one STOP two", ["STOP"], b"one "),
        ("one STOX", ["STOP"], b"one STOX"),  # held back, then sent
        ("one STO", ["STOP"], b"one STO"),  # held back until the end
        ("\nOslo", ["\n"], b""),
        ("a🎉b", ["b"], "a🎉".encode()),
        ("   ", [], b""),
    ],
)
def test_tokens_whose_text_is_sent_and_no_others(text: str, stops: list[str], told: bytes) -> None:
    sent, answer = stream(encode(text), stops)
    assert joined(sent) == told == answer.encode()


def test_a_character_in_parts_comes_as_a_whole() -> None:
    sent, _ = stream(encode("a🎉"))
    assert [(piece, len(some)) for piece, some in sent] == [("a", 1), ("🎉", 4)]
    assert [one.text_offset for one in sent[1][1]] == [1] * 4
    cut, answer = stream(encode("a🎉")[:-1])
    assert answer == "a" and joined(cut) == b"a"


def test_a_token_that_is_sent_in_part_is_told_once() -> None:
    sent, answer = stream(encode("that"), ["hat"])  # tokens: th a t
    assert answer == "t" and [one.token for _, some in sent for one in some] == ["th"]


def test_the_words_that_begin_an_answer_were_not_sampled() -> None:
    sent, answer = stream(encode(" Oslo"), prefix="It is")
    assert answer == "It is Oslo" and joined(sent) == b" Oslo"
    first = sent[0][1][0]
    assert sent[0][0] == "It is " and first.token == " " and first.text_offset == 5


@settings(deadline=None)
@given(
    st.text("ab 🎉é\n", max_size=20),
    st.lists(st.text("ab 🎉\n", min_size=1, max_size=3), max_size=2),
    st.sampled_from(["", "So: "]),
)
def test_they_are_those_of_the_answer(text: str, stops: list[str], prefix: str) -> None:
    sent, answer = stream(encode(text), stops, prefix)
    told = [one for _, some in sent for one in some]
    assert [-one.logprob for one in told] == sorted({-one.logprob for one in told})
    # This vocabulary has one token for each byte, so no token is sent in part.
    assert joined(sent).decode() == answer[len(prefix.lstrip()) :] or not sent
    for one in told:
        assert one.text_offset < len(answer)
        if one.bytes and "\ufffd" not in one.token:
            assert answer[one.text_offset :].startswith(one.token)
    so_far = ""
    for piece, some in sent:  # a token comes with its first character
        assert all(len(so_far) <= one.text_offset < len(so_far) + len(piece) for one in some)
        so_far += piece
