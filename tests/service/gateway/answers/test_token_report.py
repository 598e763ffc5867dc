"""The worker's trace as the API tells it: sources by name, text by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvstitch.service.gateway.answers.response import NOT_ASKED, token_report
from kvstitch.service.messages.reports import (
    Report,
    SegmentReport,
    SegmentTrace,
    TokenRun,
    TokenTrace,
)
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method

LETTERS = {1: "a", 2: "bc", 3: "", 4: "\N{EURO SIGN}"}


def decode(ids: Sequence[int]) -> str:
    """Id 3 is special; 5 and 6 are the two halves of one character."""
    text = ""
    for at, token in enumerate(ids):
        if token == 5:
            text += "" if ids[at + 1 : at + 2] == [6] else "\ufffd"
        elif token == 6:
            text += "é" if at and ids[at - 1] == 5 else "\ufffd"
        else:
            text += LETTERS[token]
    return text


def segment(tokens: int, tier: str) -> SegmentReport:
    return SegmentReport(
        chunk_id=7,
        tokens=tokens,
        tier=tier,
        bytes=0,
        stored_bytes=0,
        load_s=0.0,
        rows_recomputed=0,
        problems=[],
        plan="",
        why="",
    )


def report(system: SegmentReport, *documents: SegmentReport) -> Report:
    return replace(NOT_ASKED, system=system, documents=list(documents))


GENERATE = Generate("x", [3, 1], [ChunkTokens(7, [1, 2, 5, 6, 1])], [2, 2], Method("a3"))
FATES = TokenTrace(
    3,
    2,
    SegmentTrace([TokenRun(2, False, 0, 6)]),
    [SegmentTrace([TokenRun(2, False, 1, 6), TokenRun(3, True, 3, 0)], [0.5, 0.25, 1, 2, 3])],
    SegmentTrace([TokenRun(2, True, 3, 6)]),
)


@pytest.mark.parametrize("tier", ["memory", "ssd", "redis"])
def test_recomputed_tokens_stand_out_of_their_tier(tier: str) -> None:
    told = token_report(FATES, report(segment(2, "memory"), segment(5, tier)), GENERATE, decode)
    (document,) = told.documents
    assert [(run.tokens, run.source) for run in document.runs] == [(2, tier), (3, "recomputed")]
    assert [run.entries for run in document.runs] == [6, 0]
    assert [run.computed_layers for run in document.runs] == [1, 3]
    assert document.scores == [0.5, 0.25, 1, 2, 3]
    assert (told.layers, told.kv_heads) == (3, 2)
    assert {run.source for run in told.system.runs} == {"memory"}
    assert {run.source for run in told.question.runs} == {"question"}


def test_a_cold_segment_is_cold_however_it_was_computed() -> None:
    told = token_report(FATES, report(segment(2, "cold"), segment(5, "cold")), GENERATE, decode)
    assert {run.source for s in (told.system, *told.documents) for run in s.runs} == {"cold"}


def test_every_token_has_its_text() -> None:
    """A special token none; of a character in two tokens the second has it."""
    told = token_report(FATES, report(segment(2, "memory"), segment(5, "ssd")), GENERATE, decode)
    document = told.documents[0]
    ends = [*document.starts[1:], len(document.text)]
    pieces = [document.text[a:b] for a, b in zip(document.starts, ends, strict=True)]
    assert pieces == ["a", "bc", "", "é", "a"]
    assert (told.system.text, told.system.starts) == ("a", [0, 0])
    assert (told.question.text, told.question.starts) == ("bcbc", [0, 2])


def test_a_chunk_that_ends_within_a_character() -> None:
    cut = replace_document([1, 2, 1, 1, 5])
    told = token_report(FATES, report(segment(2, "memory"), segment(5, "ssd")), cut, decode)
    assert told.documents[0].text == "abcaa"
    assert told.documents[0].starts == [0, 1, 3, 4, 5]


def replace_document(ids: list[int]) -> Generate:
    fields = {name: getattr(GENERATE, name) for name in GENERATE.__struct_fields__}
    return Generate(**{**fields, "documents": [replace(GENERATE.documents[0], ids=ids)]})
