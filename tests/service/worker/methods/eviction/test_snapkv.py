"""SnapKV against the reference (docs/specification.md §2.3 with §1.6): which entries every KV head
keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.registry import make_eviction
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


@pytest.mark.parametrize("kernel", [2, 4, 100])
def test_even_kernel_is_refused(kernel: int) -> None:
    """Directly and by name; the message names the field and the value."""
    with pytest.raises(InvalidRequest, match=rf"eviction\.kernel must be odd, not {kernel}") as e:
        make_eviction("snapkv", {"kernel": kernel})
    assert e.value.field == "eviction.kernel"
