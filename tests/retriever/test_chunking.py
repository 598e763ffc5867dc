from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from kvstitch.retriever import boundaries
from kvstitch.retriever.boundaries import WINDOW, TokenCounter, is_inside_character
from kvstitch.retriever.chunking import ChunkSettings, ChunkSpan
from kvstitch.retriever.errors import InvalidDocument, SplitStopped
from tests.fakes.models import TokenizerCounter, WordCounter

COUNTERS = ("bytes", "word_pieces", "words")
PIECES = [
    "word", " the", "Sentence ends here. ", "\n\n", "\r\n", "\r\n\r\n", "\n# Heading\n",
    "\n## Two\n", "漢字仮名交じり文。", "中文字符", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "e\u0301\u0323", "👍🏽",
    "x" * 40, "\t", "    ", "\x00", "\u00a0", "؟ العربية ", "क्षि", "...!?", "\u2028", "[SEP]",
]  # fmt: skip


def titled(title: str, text: str) -> str:
    return f"{title}\n{text}\n"


def words(text: str, max_tokens: int) -> list[str]:
    spans = ChunkSettings(WordCounter(), max_tokens).split(text)
    return [text[span.start : span.end] for span in spans]


def assert_covers(text: str, spans: list[ChunkSpan]) -> None:
    assert spans[0].start == 0 and spans[-1].end == len(text)
    assert all(left.end == right.start for left, right in pairwise(spans))
    assert all(span.start < span.end for span in spans)


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("seed", range(16))
def test_any_text_is_covered_within_the_limit(
    counters: dict[str, TokenCounter], counter: str, seed: int
) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices(PIECES, k=rng.randrange(1, 300)))
    title = "".join(rng.choices(PIECES, k=rng.randrange(0, 3)))
    # The longest title takes some 100 tokens; above it any character fits.
    max_tokens = rng.choice([150, 256, 512])
    tokenizer = counters[counter]
    spans = ChunkSettings(tokenizer, max_tokens, titled).split(text, title)
    if not text.strip():
        assert spans == []
        return
    assert_covers(text, spans)
    for span in spans:
        rendered = titled(title, text[span.start : span.end])
        assert span.tokens == len(tokenizer.encode_offsets(rendered)) <= max_tokens


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("seed", range(8))
def test_small_limits_hold_too(counters: dict[str, TokenCounter], counter: str, seed: int) -> None:
    rng = random.Random(1000 + seed)
    text = "a" + "".join(rng.choices(PIECES, k=60))
    spans = ChunkSettings(counters[counter], rng.randrange(4, 24)).split(text)
    assert_covers(text, spans)


class PieceCounter(WordCounter):
    """A piece of the text has one token more than it had within the text."""

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        found = super().encode_offsets(text)
        return [*found, (len(text), len(text))] if 0 < len(found) < 100 else found


def test_a_piece_with_more_tokens_than_within_the_text_still_fits() -> None:
    spans = ChunkSettings(PieceCounter(), 10).split("word " * 100)
    assert max(span.tokens for span in spans) == 10


@pytest.mark.parametrize("text", ["", " ", "\n\r\n\t \u3000"])
def test_nothing_to_read_gives_no_chunks(text: str) -> None:
    assert ChunkSettings(WordCounter()).split(text) == []


def test_work_for_nobody_ends_before_the_next_chunk() -> None:
    asked = []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) > 2

    with pytest.raises(SplitStopped):
        ChunkSettings(WordCounter(), 2).split("a b c d e f g h", stopped=stopped)
    assert len(asked) == 3


def test_what_fits_is_one_chunk() -> None:
    assert words("# A\n\nOne. Two.\n\n# B\n\nThree.", 100) == ["# A\n\nOne. Two.\n\n# B\n\nThree."]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a b c d e. f\n\ng h\n# i j k l m n o p", "a b c d e. f\n\ng h\n"),
        ("a b c d e\n\nf g. h i j k l m n o p", "a b c d e\n\n"),
        ("a b c d e\r\n\r\nf g. h i j k l m n o p", "a b c d e\r\n\r\n"),
        ("a b c d e f. g h\ni j k l m n o p", "a b c d e f. "),
        ('a b c d "e f." g h i j k l m n o p', 'a b c d "e f." '),
        ("a b c d e f\ng h i j k l m n o p", "a b c d e f\n"),
        ("a b c d e f g h i j  k l m n o p", "a b c d e f g h i j  "),
    ],
)
def test_best_border_of_the_second_half_wins(text: str, first: str) -> None:
    assert words(text, 10)[0] == first


def test_border_in_the_first_half_does_not_leave_a_small_chunk() -> None:
    assert words("a.\n\nb c d e f g h i j k l m n", 10)[0] == "a.\n\nb c d e f g h i "


def test_cjk_is_cut_after_its_full_stop(counters: dict[str, TokenCounter]) -> None:
    text = "これは文です。" * 50
    spans = ChunkSettings(counters["bytes"], 100).split(text)
    assert len(spans) > 5
    assert all(text[span.end - 1] == "。" for span in spans)


def test_huge_word_is_cut_into_full_chunks(counters: dict[str, TokenCounter]) -> None:
    spans = ChunkSettings(counters["bytes"], 64).split("q" * 10_000)
    assert_covers("q" * 10_000, spans)
    assert all(span.tokens > 50 for span in spans[:-1])


@pytest.mark.parametrize(
    "unit", ["👨‍👩‍👧‍👦", "🇩🇪", "e\u0301", "👍🏽", "\r\n", "🏴\U000e0067\U000e0062\U000e007f"]
)
def test_what_is_seen_as_one_character_stays_whole(
    counters: dict[str, TokenCounter], unit: str
) -> None:
    text = "a" + unit * 200
    spans = ChunkSettings(counters["bytes"], 96).split(text)
    assert len(spans) > 1
    assert not any(is_inside_character(text, span.start) for span in spans)


def test_whitespace_ahead_of_a_word_does_not_count_as_a_chunk_of_its_own() -> None:
    assert words("a b c d" + " " * 1000 + "e f g h", 4) == ["a b c d" + " " * 1000, "e f g h"]


def test_limit_counts_title_and_frame() -> None:
    text = "a b c d e f g h i j k l"
    spans = ChunkSettings(WordCounter(), 6, titled).split(text, "x y")
    assert [span.tokens for span in spans] == [6, 6, 6]


def test_title_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="title"):
        ChunkSettings(WordCounter(), 4, titled).split("a b c", "a b c d e")


def test_character_that_does_not_fit_is_refused(counters: dict[str, TokenCounter]) -> None:
    with pytest.raises(InvalidDocument, match="character at 0"):
        ChunkSettings(counters["bytes"], 2).split("👍👍")


def test_counter_ignores_truncation_and_special_tokens(byte_tokenizer: Tokenizer) -> None:
    truncating = Tokenizer.from_str(byte_tokenizer.to_str())
    truncating.enable_truncation(4)
    counter = TokenizerCounter(truncating)
    assert len(counter.encode_offsets("q z " * 50)) >= 100
    assert len(counter.encode_offsets("<|end|>")) > 1
    assert truncating.truncation is not None


def test_fingerprint_follows_limit_tokenizer_and_template(
    counters: dict[str, TokenCounter],
) -> None:
    settings = [
        ChunkSettings(WordCounter(), 64),
        ChunkSettings(WordCounter(), 65),
        ChunkSettings(WordCounter(), 64, titled),
        ChunkSettings(counters["bytes"], 64),
        ChunkSettings(counters["word_pieces"], 64),
    ]
    assert len({setting.fingerprint for setting in settings}) == len(settings)
    assert settings[0].fingerprint == ChunkSettings(WordCounter(), 64).fingerprint


@pytest.mark.parametrize("unit", ["a", ".", '."', "\n", "\n   ", "# x\n", "🇩", "ab\r\n", "。"])
def test_time_is_linear(unit: str) -> None:
    def seconds(size: int) -> float:
        text = (unit * size)[:size] + "x"
        start = time.process_time()
        ChunkSettings(WordCounter(), 512, titled).split(text)
        return time.process_time() - start

    seconds(1000)
    # Quadratic time would be 64 times as long; the constant forgives a noisy machine.
    assert seconds(160_000) < 24 * seconds(20_000) + 0.2


def test_a_row_of_a_table_that_fits_is_not_divided() -> None:
    """Not even where a sentence ends in a cell, or where half a chunk stays empty."""
    long = "Isle: Vik | Note: It is cold. Goats live there. Nobody else does. | Ports: 3"
    text = "Goats of the isles are few\n" + "\n".join([long] * 4) + "\nend"
    pieces = words(text, 30)
    rows = [line for piece in pieces for line in piece.split("\n") if "|" in line]
    assert rows == [long] * 4
    # One that is longer than a chunk is cut where a sentence ends.
    assert words(long, 12)[0].endswith("cold. ")


class CharCounter:
    """Counts every character, as byte-level tokenizers do of scripts that they do not know."""

    revision = "characters-1"

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        return [(place, place + 1) for place in range(len(text))]

    def count_tokens(self, text: str) -> int:
        return len(self.encode_offsets(text))


@pytest.mark.parametrize("counter", [WordCounter(), CharCounter()])
@pytest.mark.parametrize("title", ["kettle " * 99, "k" * 999, "漢字" * 400, "a, " * 50])
def test_a_title_takes_a_fourth_of_a_chunk_at_most(counter: TokenCounter, title: str) -> None:
    settings = ChunkSettings(counter, max_tokens=64, render=titled)
    short = settings.short_title(title)
    if len(counter.encode_offsets(title)) <= 16:
        assert short == title
        return
    first, _, end = short.partition("…")
    assert title.startswith(first.strip()) and title.endswith(end.removeprefix(" "))
    assert end.strip()
    assert 4 < len(counter.encode_offsets(short)) <= 17
    assert settings.short_title("A kettle") == "A kettle"


class Asked(WordCounter):
    """Notes how long the texts are that it is asked for."""

    def __init__(self) -> None:
        self.longest = 0

    def encode_offsets(self, text: str) -> list[tuple[int, int]]:
        self.longest = max(self.longest, len(text))
        return super().encode_offsets(text)


@pytest.mark.parametrize("piece", ["a line of seven words, two commas,\n", "word ", "字", "x"])
def test_a_long_text_is_made_tokens_a_part_at_a_time(piece: str) -> None:
    text = piece * (3 * WINDOW // len(piece))
    counter = Asked()
    spans = ChunkSettings(counter, 64).split(text)
    assert_covers(text, spans)
    assert counter.longest <= max(WINDOW, max(span.end - span.start for span in spans))


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_text_divided_where_lines_begin_has_the_tokens_of_the_whole(
    counters: dict[str, TokenCounter], counter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    lines = ["".join(rng.choices(PIECES, k=rng.randrange(1, 9))) for _ in range(400)]
    text = "".join(f"{line.strip()}\n" for line in lines)
    whole = ChunkSettings(counters[counter], 100).split(text)
    monkeypatch.setattr(boundaries, "WINDOW", 1000)
    assert ChunkSettings(counters[counter], 100).split(text) == whole
