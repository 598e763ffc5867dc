"""The tokens that every layer holds, computes and has as padding, against sets made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvstitch_methods.samkv.selection import (
    Selection,
    SketchedDocument,
    SparsePlan,
    fixed_tokens,
    make_plan,
    recomputed_ends,
)
from kvstitch_methods.samkv.sketch import BlockGrid, Sketch
from tests_methods.samkv.reference_pass import figure_5_cases

# S is 0 and 1. Document 0: tokens 2–29, blocks 0–6 of 4; document 1: 30–51, blocks 0–5, the last
# of 2 tokens. Middle blocks are 1–4 and 1–3.
S = 2
ENDS = [*range(2, 6), *range(22, 30), *range(30, 34), *range(46, 52)]


def document(start: int, tokens: int, representative: Tensor) -> SketchedDocument:
    layers, blocks = representative.shape
    nothing = torch.zeros(layers, 1, 1)
    return SketchedDocument(
        start,
        BlockGrid(tokens, 4),
        Sketch(
            torch.zeros(layers, blocks, 1, 1),
            nothing,
            nothing,
            representative,
            torch.zeros(layers, blocks),
            torch.zeros(layers, blocks),
        ),
    )


def two_documents(layers: int = 2) -> list[SketchedDocument]:
    """Representative of a block: its second token at layer 0, its third at the others."""
    second = torch.arange(7) * 4 + 1
    rows = torch.stack([second, *[second + 1] * (layers - 1)]).to(torch.int32)
    return [document(2, 28, rows), document(30, 22, rows[:, :6])]


def marks(*layers: list[tuple[int, int]]) -> list[Tensor]:
    """Outlier blocks as (document, block), layer by layer."""
    out = [torch.zeros(len(layers), 7, dtype=torch.bool), torch.zeros(len(layers), 6).bool()]
    for layer, blocks in enumerate(layers):
        for number, block in blocks:
            out[number][layer, block] = True
    return out


def plan(
    blocks: list[list[tuple[int, int]]], outlier: list[Tensor], **options: bool | float
) -> SparsePlan:
    recompute = bool(options.pop("recompute", True))
    return make_plan(
        S,
        two_documents(len(blocks)),
        Selection(blocks, [0.5, 0.5]),
        outlier,
        recompute=recompute,
        **options,
    )


def test_the_four_cases() -> None:
    """Figure 5 by hand. Kept at layer 0: blocks (0, 1), (0, 2), (0, 3); at layer 1: (0, 2), (0, 3),
    (1, 2). Outliers at 0: (0, 1) and (0, 3), at 1: (0, 3) and (1, 2); their tokens at 0: 2+4+1,
    2+12+1, at 1: 2+12+2, 30+8+2."""
    blocks = [[(0, 1), (0, 2), (0, 3)], [(0, 2), (0, 3), (1, 2)]]
    ours = plan(blocks, marks([(0, 1), (0, 3)], [(0, 3), (1, 2)]))
    first, second, third, other = range(6, 10), range(10, 14), range(14, 18), range(38, 42)
    assert ours.kept == [
        sorted([0, 1, *ENDS, *first, *second, *third]),
        sorted([0, 1, *ENDS, *second, *third, *other]),
    ]
    assert ours.fresh == [sorted([*ENDS, 7, 15]), sorted([*ENDS, 16, 40])]
    assert ours.rows == [sorted([*ENDS, 7, 15, 16, 40]), sorted([*ENDS, 16, 40])]
    assert ours.padding == [[40], []]
    assert ours.recomputed == {*ENDS, 7, 15, 16, 40}
    one, two, three, four = figure_5_cases(ours.kept, ours.fresh, 0)
    assert one == {7, 15}  # ① fresh below, nothing above
    assert two == {0, 1, *first, *second, *third, *other} - {7, 15, 16, 40}  # ② nothing
    assert three == {16, 40}  # ③ fresh above: output from stored KV below, 40 only in passing
    assert four == set(ENDS)  # ④ both


def test_the_same_token_at_both_layers() -> None:
    """④ in the middle, where the representatives agree."""
    ours = plan([[(0, 2)], [(0, 2)], [(0, 2)]], marks([], [(0, 2)], [(0, 2)]))
    assert ours.fresh == [ENDS, sorted([*ENDS, 12]), sorted([*ENDS, 12])]
    assert ours.rows == [sorted([*ENDS, 12])] * 3
    assert ours.padding == [[], [], []]
    assert 12 in figure_5_cases(ours.kept, ours.fresh, 0)[2]
    assert 12 in figure_5_cases(ours.kept, ours.fresh, 1)[3]


def test_padding_goes_down_to_the_first_layer() -> None:
    """A token computed at layer 2 alone is a row of layers 0 and 1; where its block is kept it
    needs no padding."""
    ours = plan([[(0, 1)], [(1, 3)], [(1, 3)]], marks([], [], [(1, 3)]))
    token = 30 + 12 + 2
    assert ours.rows == [sorted([*ENDS, token])] * 3
    assert ours.fresh == [ENDS, ENDS, sorted([*ENDS, token])]
    assert ours.padding == [[token], [], []]


def test_outliers_of_blocks_that_are_not_kept() -> None:
    ours = plan([[(0, 1)], [(0, 1)]], marks([(0, 2)], [(1, 1), (0, 0), (0, 6)]))
    assert ours.fresh == ours.rows == [ENDS, ENDS]


def test_without_recomputation() -> None:
    ours = plan([[(0, 1)], [(1, 3)]], marks([(0, 1)], [(1, 3)]), recompute=False)
    assert ours.fresh == ours.rows == ours.padding == [[], []]
    assert ours.recomputed == set()
    assert ours.kept[0] == sorted([0, 1, *ENDS, *range(6, 10)])


def test_fixed_tokens() -> None:
    assert fixed_tokens(two_documents()) == ENDS
    assert fixed_tokens([]) == []


@pytest.mark.parametrize(
    ("tokens", "share", "expected"),
    [
        (28, 0.0, []),
        (28, 0.15, [0, 1, 2, 3]),  # 4.2 of 28
        (28, 0.1, [0, 1]),
        (28, 0.25, [0, 1, 2, 3, 25, 26, 27]),
        (28, 1.0, [0, 1, 2, 3, *range(20, 28)]),
        (22, 0.5, [0, 1, 2, 3, *range(16, 22)]),  # 11 let, 10 there are
        (18, 0.28, [0, 1, 2, 3, 17]),  # 5.04 of 18; the last block has 2
        (20, 0.15, [0, 1, 2]),  # exactly 3, though 0.15 · 20 is not in floating point
        (20, 0.35, [0, 1, 2, 3, 17, 18, 19]),
    ],
)
def test_recomputed_ends(tokens: int, share: float, expected: list[int]) -> None:
    assert recomputed_ends(BlockGrid(tokens, 4), share) == expected


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
def test_recomputed_ends_of_every_length(share: float) -> None:
    """Never more than the share, never a middle token; everything of up to three blocks."""
    for tokens in range(201):
        for block in (16, 64):
            grid = BlockGrid(tokens, block)
            ours = recomputed_ends(grid, share)
            if grid.blocks <= 3:
                assert ours == list(range(tokens))
                continue
            ends = [t for t in range(tokens) if t < block or t // block >= grid.blocks - 2]
            assert set(ours) <= set(ends)
            assert ours == sorted(ours)
            assert len(ours) == min(len(ends), math.floor(share * tokens + 1e-9))


def test_a_share_of_the_ends_is_computed() -> None:
    ours = plan([[(0, 1)], [(0, 1)]], marks([], [(0, 1)]), max_recomputed=0.15)
    anew = [2, 3, 4, 5, 30, 31, 32]
    assert ours.fresh == [anew, sorted([*anew, 8])]
    assert ours.kept[0] == sorted([0, 1, *ENDS, *range(6, 10)])
