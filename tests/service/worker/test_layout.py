"""Index ranges of S ‖ D_1..D_k ‖ Q."""

from __future__ import annotations

import torch

from kvstitch.service.worker.layout import Prefix, PromptLayout, union


def test_ranges() -> None:
    layout = PromptLayout.of(
        [1, 2],
        [[3, 4, 5], [], [6]],
        [7, 8],
        uncached=[False, True, False, False],
        prefixes=[Prefix([1, 2]), Prefix([1, 2]), Prefix([1, 2, 9])],
    )
    assert layout.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert layout.ids.dtype == torch.long
    assert [(s.start, s.end, s.tokens) for s in layout.segments] == [
        (0, 2, 2),
        (2, 5, 3),
        (5, 5, 0),
        (5, 6, 1),
    ]
    assert [s.offset for s in layout.segments] == [0, 2, 2, 3]
    assert layout.documents == layout.segments[1:]
    assert layout.tokens == 8
    assert layout.question_start == 6
    assert layout.question_rows.tolist() == [6, 7]
    assert layout.all_rows.tolist() == list(range(8))
    assert layout.forced_rows.tolist() == [2, 3, 4, 6, 7]
    assert layout.cached_document_rows.tolist() == [5]


def test_uncached_system_is_forced_but_no_candidate() -> None:
    layout = PromptLayout.of([1, 2], [[3]], [4], uncached=[True, False])
    assert layout.forced_rows.tolist() == [0, 1, 3]
    assert layout.cached_document_rows.tolist() == [2]


def test_nothing_but_a_question() -> None:
    layout = PromptLayout.of([], [], [4, 5], uncached=[True])
    assert layout.forced_rows.tolist() == [0, 1]
    assert layout.cached_document_rows.tolist() == []
    assert layout.cached_document_rows.dtype == torch.long


def test_union_is_ascending_without_repeats() -> None:
    merged = union(torch.tensor([5, 1]), torch.tensor([3, 5]), torch.empty(0, dtype=torch.long))
    assert merged.tolist() == [1, 3, 5]
