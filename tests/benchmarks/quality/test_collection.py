"""A made-up collection: its prompts say where their documents come from, and a piece may stand
behind those that precede it in its document."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from benchmarks.quality.behind import Neighbourhood
from benchmarks.quality.collection import Piece, collection, read_pieces, write_pieces
from benchmarks.quality.prompt_file import of_file, write
from benchmarks.quality.suites import Suites
from kvstitch_tune.prompts import Prompt
from retriever import Document
from service.errors import InvalidRequest
from service.gateway.api import PromptBuilder
from service.settings import Settings, demo_model
from tests.fakes.models import HashingEmbedder

TOWNS = ("Alda", "Brin", "Corvo", "Dunmere", "Elst", "Farrow")
SENTENCES = ("The mill of {} has {} wheels.", "The bridge of {} has {} arches.")
CHUNK_TOKENS = 48


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Prompt], list[Piece]]:
    documents = [
        Document(town, "\n\n".join(s.format(town, i) for i in range(12) for s in SENTENCES), town)
        for town in TOWNS
    ]
    settings = Settings.model_validate({"chunk_tokens": CHUNK_TOKENS})
    builder = PromptBuilder(demo_model(), settings)
    with collection(documents, builder, HashingEmbedder()) as found:
        prompts = [found.prompt("docs", f"mill of {town}", ["3"]) for town in TOWNS]
        return prompts, found.pieces()


def neighbourhood(pieces: list[Piece]) -> Neighbourhood:
    suites = Suites(demo_model(), HashingEmbedder().embed)
    pool = list(dict.fromkeys(piece.ids for piece in pieces))
    return Neighbourhood(suites, HashingEmbedder().embed, pool, 0, pieces)


def test_sources_say_which_piece_each_document_is(drawn: tuple[list[Prompt], list[Piece]]) -> None:
    prompts, pieces = drawn
    of = {(piece.document, piece.number): piece.ids for piece in pieces}
    assert len(of) == len(pieces) > 2 * len(TOWNS)
    for prompt, town in zip(prompts, TOWNS, strict=True):
        assert [of[source] for source in prompt.sources] == list(prompt.documents)
        assert town in {document for document, _ in prompt.sources}
        assert all(len(ids) <= CHUNK_TOKENS for ids in prompt.documents)


def test_files_of_prompts_and_of_pieces_lose_nothing(
    drawn: tuple[list[Prompt], list[Piece]], tmp_path: Path
) -> None:
    prompts, pieces = drawn
    write(tmp_path / "prompts.jsonl", prompts)
    again = of_file(demo_model(), tmp_path / "prompts.jsonl")
    assert [p.sources for p in again] == [p.sources for p in prompts]
    assert [p.key for p in again] == [p.key for p in prompts]
    write_pieces(tmp_path / "pieces.jsonl", pieces)
    assert read_pieces(tmp_path / "pieces.jsonl") == pieces
    (tmp_path / "pieces.jsonl").write_text('{"document": "Alda"}\n')
    with pytest.raises(InvalidRequest, match=r"line 1: .*number"):
        read_pieces(tmp_path / "pieces.jsonl")


@pytest.mark.parametrize("tokens", [40, 100, 10_000])
def test_the_pieces_right_before_one_that_fit(
    drawn: tuple[list[Prompt], list[Piece]], tokens: int
) -> None:
    prompts, pieces = drawn
    of = {(piece.document, piece.number): piece.ids for piece in pieces}
    mode = f"primer-d{tokens}"
    lengths = set()
    for prompt in map(lambda p: neighbourhood(pieces).add(p, [mode]), prompts):
        assert prompt.behind[mode][0] == []
        for (document, number), prefixes in list(
            zip(prompt.sources, prompt.behind[mode], strict=True)
        )[1:]:
            [behind] = prefixes or [[]]
            first = number - len(behind)
            assert behind == [of[document, n] for n in range(first, number)]
            taken = sum(map(len, behind))
            assert taken <= tokens
            assert first == 0 or taken + len(of[document, first - 1]) > tokens
            lengths.add(len(behind))
    assert len(lengths) > 1  # some begin their document


def test_a_groups_primer_comes_before_the_documents_own_pieces(
    drawn: tuple[list[Prompt], list[Piece]],
) -> None:
    prompts, pieces = drawn
    modes = ["primer-g2/8", "primer-d60", "primer-g2/8+d60"]
    for prompt in map(lambda p: neighbourhood(pieces).add(p, modes), prompts):
        primer, own, both = (prompt.behind[mode] for mode in modes)
        for number in range(1, len(prompt.documents)):
            [of_both], [of_group], [preceding] = both[number], primer[number], own[number] or [[]]
            assert of_both[len(of_both) - len(preceding) :] == preceding
            rest = of_both[: len(of_both) - len(preceding)]
            assert rest == [ids for ids in of_group if ids not in preceding]
        assert list(chain.from_iterable(primer[1:]))


def test_what_precedes_a_piece_must_be_known(drawn: tuple[list[Prompt], list[Piece]]) -> None:
    prompts, pieces = drawn
    other = [Piece(p.document, p.number, (*p.ids, 1)) for p in pieces]
    with pytest.raises(InvalidRequest, match="--pieces"):
        neighbourhood(other).add(prompts[0], ["primer-d60"])
