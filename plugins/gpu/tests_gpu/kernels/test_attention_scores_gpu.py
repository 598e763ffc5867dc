"""Scores of keys by the Triton kernels against the CPU's."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.worker.model.attention import attend_with_scores
from kvstitch_gpu import attention_scores_gpu
from tests.service.worker.tiny import assert_close
from tests_gpu.kernels.interpreter import needs_gpu, shapes

CASES = [
    # rows' indices, keys, heads, KV heads, head dim
    (list(range(118, 150)), 150, 4, 2, 32),
    ([0], 5, 2, 1, 64),
    (list(range(40, 110)), 130, 4, 1, 32),  # two blocks of rows, and keys that none of them sees
    ([3, 64, 65, 127, 128, 199], 200, 14, 2, 64),
]


def compare(device: str) -> None:
    """Raises AssertionError where the kernels and the CPU differ."""
    for rows, n, heads, kv_heads, d in shapes(CASES, 3):
        random = torch.Generator().manual_seed(n)
        q = torch.randn(len(rows), heads, d, generator=random)
        # A pool's heads are further apart than the prompt is long.
        k, v = torch.randn(2, kv_heads, n + 9, d, generator=random)[:, :, :n]
        index, weights = torch.tensor(rows), torch.rand(len(rows), generator=random)
        attended, scores = attend_with_scores(q, k, v, index, weights, d**-0.5)
        on = [t.bfloat16() if device == "cuda" else t for t in (q, k, v)]
        q, k, v = (t.to(device) for t in on)
        ours, found = attention_scores_gpu.attend_with_scores(
            q, k, v, index.to(device), weights.to(device), d**-0.5
        )
        allowed = 2**-5 if device == "cuda" else 1e-5
        assert_close("attention", ours.float().cpu(), attended, allowed)
        assert found.shape == (n,) and not found[rows[-1] + 1 :].any()
        assert_close("scores", found.cpu(), scores, allowed * float(scores.max()))
        assert abs(float(found.sum()) - heads * float(weights.sum())) < allowed * heads * len(rows)


def placed(device: str) -> None:
    """Raises AssertionError where a prompt in a pool, with padding rows, is computed otherwise."""
    for rows, n, heads, kv_heads, d in shapes(CASES, 3):
        random = torch.Generator().manual_seed(n)
        dtype, capacity, start = torch.float16, n + 7, 3
        pool = torch.randn(2, start + kv_heads * capacity, d, generator=random).to(device, dtype)
        given, padded = len(rows), len(rows) + 40
        q = torch.randn(padded, heads, d, generator=random).to(device, dtype)
        index = torch.tensor(rows + [0] * 40, device=device)
        weights = torch.rand(padded, generator=random).to(device)
        k_all, v_all = (x[start:].view(kv_heads, capacity, d)[:, :n] for x in pool)
        attended, scores = attention_scores_gpu.attend_with_scores(
            q[:given], k_all, v_all, index[:given], weights[:given], d**-0.5
        )
        found = torch.full((kv_heads, n + 100), float("nan"), device=device)
        extent = torch.tensor([start * d, capacity * d, n, given], device=device)
        k, v = (x[:1].expand(kv_heads, -1, -1) for x in pool)
        ours = attention_scores_gpu.fill_scores(
            q, k, v, index, weights, d**-0.5, found, extent=extent
        )
        # A pool's prompt may be cut into other spans of keys, which are joined in another order.
        allowed = 2**-8 if device == "cuda" else 0.0
        assert_close("attention", ours[:given], attended, allowed)
        assert_close("scores", found[:, :n].sum(0), scores, allowed * float(scores.max()))
        assert not ours[given:].any() and not found[:, n:].any()


CHECKS = [compare, placed]


@pytest.mark.gpu
@needs_gpu
def test_on_the_gpu() -> None:
    assert attention_scores_gpu.is_verified(torch.device("cuda"), 64)
    for check in CHECKS:
        check("cuda")
