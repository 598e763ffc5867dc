"""SnapKV against the reference (docs/specification.md §2.3 with §1.6): which entries every KV head
keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from service.errors import InvalidRequest
from service.worker.layout import PromptLayout
from service.worker.methods.eviction.snapkv import Method as SnapKV
from service.worker.methods.registry import make_eviction
from tests.references.prefill import snapkv_kept
from tests.service.worker.tiny import prompt_attention

D = 8


def layout_of(system: int, document: int, question: int) -> PromptLayout:
    half = document // 2
    return PromptLayout.of(
        [1] * system,
        [[2] * half, [3] * (document - half)],
        [4] * question,
        uncached=[False, False, False],
    )


def random_qk(n: int, kv_heads: int, group: int, seed: int) -> tuple[Tensor, Tensor]:
    """q `[n, heads, d]`, k `[n, kv_heads, d]`, sharp enough that ranks are far apart."""
    source = torch.Generator().manual_seed(seed)
    q = 1.5 * torch.randn(n, kv_heads * group, D, generator=source)
    return q, 1.5 * torch.randn(n, kv_heads, D, generator=source)


def kept_by(method: SnapKV, layout: PromptLayout, q: Tensor, k: Tensor) -> list[list[int]]:
    """The method on one layer, fed as the engine does: window at most the question."""
    question = layout.tokens - layout.question_start
    window = min(method.window_rows, question)
    prompt = prompt_attention(layout, k.transpose(0, 1), q[-window:])
    return [head.tolist() for head in method.keep(prompt)]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("system", "document", "question", "budget", "window", "kernel"),
    [
        (5, 40, 6, 25, 32, 7),  # window is the whole question
        (5, 40, 6, 12, 32, 7),  # one document token
        (5, 40, 6, 50, 32, 7),  # all but one
        (5, 40, 12, 30, 4, 7),  # question longer than the window
        (5, 40, 12, 30, 4, 1),  # no pooling
        (5, 40, 12, 30, 1, 3),
        (0, 40, 6, 20, 32, 5),  # no system prompt
        (5, 40, 1, 20, 32, 7),  # one question token
        (9, 4, 9, 20, 32, 101),  # kernel wider than the prompt
    ],
)
def test_kept_sets_are_the_references(
    group: int, system: int, document: int, question: int, budget: int, window: int, kernel: int
) -> None:
    """Random attention, six seeds each."""
    layout = layout_of(system, document, question)
    method = SnapKV(budget=budget, window=window, kernel=kernel)
    for seed in range(6):
        q, k = random_qk(layout.tokens, 2, group, seed)
        expected = snapkv_kept(
            q,
            k,
            system=system,
            question=question,
            budget=budget,
            window=window,
            kernel=kernel,
        )
        ours = kept_by(method, layout, q, k)
        assert ours == expected
        assert all(len(head) == budget for head in ours)
        fixed = {*range(system), *range(layout.question_start, layout.tokens)}
        assert all(fixed <= set(head) for head in ours)


def test_window_columns_are_not_pooled_into_the_last_document_tokens() -> None:
    """docs/specification.md §2: candidates come first, then the pool. The question's tokens attend
    to each other most; were their columns in the pool, the last kernel // 2 document tokens would
    always win."""
    layout = layout_of(5, 40, 6)
    n = layout.tokens
    k = torch.zeros(n, 1, D)
    k[layout.question_start :, 0, 0] = 10.0  # the question looks at itself,
    k[20, 0, 1] = 8.0  # then at one token in the middle of the documents
    q = torch.zeros(n, 1, D)
    q[:, 0, :2] = 1.0
    kept = kept_by(SnapKV(budget=5 + 6 + 7), layout, q, k)[0]
    assert kept[5:-6] == list(range(17, 24))


def test_heads_choose_for_themselves() -> None:
    layout = layout_of(4, 60, 5)
    q, k = random_qk(layout.tokens, 3, 2, 1)
    first, second, third = kept_by(SnapKV(budget=25), layout, q, k)
    assert first != second != third


def test_fits_is_identity() -> None:
    """n <= budget: nothing to do; one token less and it applies."""
    layout = layout_of(4, 20, 5)
    assert not SnapKV(budget=29).applies(layout)
    assert not SnapKV(budget=1024).applies(layout)
    assert SnapKV(budget=28).applies(layout)


@pytest.mark.parametrize("budget", [1, 8, 9])
def test_budget_below_system_and_question_keeps_only_those_and_warns(budget: int) -> None:
    layout = layout_of(4, 20, 5)
    q, k = random_qk(layout.tokens, 2, 2, 0)
    method = SnapKV(budget=budget)
    assert kept_by(method, layout, q, k) == [[0, 1, 2, 3, 24, 25, 26, 27, 28]] * 2
    warning = method.warning(layout)
    assert warning is not None
    assert "eviction.budget" in warning and str(budget) in warning and "9" in warning


def test_enough_budget_does_not_warn() -> None:
    assert SnapKV(budget=10).warning(layout_of(4, 20, 5)) is None


def test_nothing_evicted_is_no_warning() -> None:
    """S and Q alone fill the budget exactly and there is no document: nothing is evicted, so no
    document token was."""
    layout = PromptLayout.of([1] * 4, [], [4] * 5, uncached=[False])
    method = SnapKV(budget=9)
    assert not method.applies(layout)
    assert method.warning(layout) is None


def test_ties_are_deterministic_and_go_to_the_lower_index() -> None:
    """Flat attention: every document token scores the same."""
    layout = layout_of(4, 30, 5)
    q, k = torch.zeros(layout.tokens, 2, D), torch.zeros(layout.tokens, 2, D)
    method = SnapKV(budget=4 + 5 + 6, kernel=1)
    expected = [*range(4 + 6), *range(34, 39)]
    for _ in range(3):
        assert kept_by(method, layout, q, k) == [expected] * 2


def test_two_prompts_of_different_length_in_a_row() -> None:
    """No state is left from the first (the AdaKV bug of docs/specification.md §2.4)."""
    method = SnapKV(budget=20)
    for system, document, question in ((5, 80, 6), (3, 25, 4), (5, 80, 6)):
        layout = layout_of(system, document, question)
        q, k = random_qk(layout.tokens, 2, 2, 7)
        expected = snapkv_kept(
            q, k, system=system, question=question, budget=20, window=32, kernel=7
        )
        assert kept_by(method, layout, q, k) == expected


@pytest.mark.parametrize("kernel", [2, 4, 100])
def test_even_kernel_is_refused(kernel: int) -> None:
    """Directly and by name; the message names the field and the value."""
    with pytest.raises(InvalidRequest, match=rf"eviction\.kernel must be odd, not {kernel}") as e:
        make_eviction("snapkv", {"kernel": kernel})
    assert e.value.field == "eviction.kernel"


def test_window_rows_are_the_window() -> None:
    assert SnapKV(window=11).window_rows == 11
