"""The joined question, and the fusion of two rankings."""

from __future__ import annotations

from dataclasses import replace

from kvstitch.retriever import Chunk, Passage
from kvstitch.service.gateway.answers.question_rewriting import QUESTION_CHARS, joined_query
from kvstitch.service.gateway.search.passage_search import adds_something, fuse
from kvstitch.service.prompt import Turn


def passages(*ids: int) -> list[Passage]:
    return [Passage(Chunk(i, f"d{i}", 0, "t", "", 0, 1, 1, ""), 0.5, dense_rank=n, dense_score=0.5)
            for n, i in enumerate(ids, 1)]  # fmt: skip


def turns(*texts: str) -> list[Turn]:
    return [Turn("user" if number % 2 == 0 else "assistant", t) for number, t in enumerate(texts)]


def test_the_question_stands_first_and_the_latest_of_the_earlier_ones_next() -> None:
    assert joined_query(turns("only")) is None
    assert joined_query([Turn("system", "Be brief."), *turns("only")]) is None
    assert joined_query(turns("a", "A", "b", "B", "c")) == "c b a"
    assert joined_query(turns("a", "A", "b", "B", "c", "C", "d", "D", "e")) == "e d c b"
    long = "x" * 10_000
    assert joined_query(turns(long, "A", "b")) == "b " + "x" * QUESTION_CHARS


def test_what_either_ranking_puts_first_is_among_the_first() -> None:
    assert [p.chunk.chunk_id for p in fuse(passages(1, 2), passages(3, 4))] == [1, 3, 2, 4]
    # What both find goes before what one of them finds.
    assert [p.chunk.chunk_id for p in fuse(passages(1, 2), passages(2, 3))] == [2, 1, 3]
    fused = fuse(passages(1, 2), passages(2))
    assert fused[0].score == 1 / 62 + 1 / 61 and fused[0].dense_rank == 2
    assert fuse([], passages(5)) == [replace(passages(5)[0], score=1 / 61)]
    assert fuse([], []) == []


def test_a_question_that_is_as_near_by_itself_is_not_joined() -> None:
    near, far = passages(1), [replace(passages(2)[0], dense_score=0.4)]
    assert adds_something(far, near) and not adds_something(near, far)
    assert not adds_something(near, near)
    by_words = [replace(passages(1)[0], dense_score=None)]
    assert adds_something(by_words, by_words) and adds_something([], [])
    assert adds_something(by_words, near) and not adds_something(near, by_words)
