"""The Triton kernel for scattered rows against the CPU's attention."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.worker.model.attention import attend_rows
from kvstitch_gpu import index_causal_attention
from kvstitch_gpu.index_causal_attention import FEW_ROWS, MANY_ROWS, Form, plan
from tests.service.worker.tiny import assert_close
from tests_gpu.kernels.interpreter import needs_gpu, shapes

BF16 = 2**-6
# Each form and each number of spans, with one span and several of the smallest rows.
FORMS = [
    *((Form(128, 64, 8, 2), 2), (Form(64, 32, 4, 1), 1)),
    *((Form(16, 32, 4, 1), 1), (Form(16, 32, 4, 1), 5)),
]
CASES = [
    # rows' indices, keys, heads, KV heads, head dim
    (list(range(40, 75)), 80, 4, 2, 32),  # rows that all see the first keys
    ([0], 5, 2, 1, 64),
    (list(range(0, 150, 7)), 150, 4, 2, 32),
    (list(range(130)), 130, 4, 1, 32),
    ([3, 64, 65, 127, 128, 199], 200, 14, 2, 64),
]


def compare(device: str) -> None:
    """Raises AssertionError where the kernel and the CPU's attention differ."""
    for rows, n, heads, kv_heads, d in shapes(CASES, 2):
        random = torch.Generator().manual_seed(n)
        q = torch.randn(len(rows), heads, d, generator=random)
        # A pool's heads are further apart than the prompt is long.
        k, v = torch.randn(2, kv_heads, n + 9, d, generator=random)[:, :, :n]
        index = torch.tensor(rows)
        expected = attend_rows(q, k, v, index, d**-0.5)
        on = [t.bfloat16() if device == "cuda" else t for t in (q, k, v)]
        q, k, v = (t.to(device) for t in on)
        ours = index_causal_attention.attend(q, k, v, index.to(device), d**-0.5)
        assert_close("scattered rows", ours.float().cpu(), expected, BF16 * 2)
        scores = (q.view(len(rows), kv_heads, -1, d).permute(1, 2, 0, 3) @ k[:, None].mT).float()
        hidden = torch.arange(n, device=device) > index.to(device)[:, None]
        scores = (scores * d**-0.5).masked_fill(hidden, float("-inf"))
        sums = scores.logsumexp(-1).flatten(0, 1).cpu()
        for form, spans in FORMS:
            logsums = torch.full((heads, len(rows)), float("nan"), device=device)
            ours = index_causal_attention._attend(
                q, k, v, index.to(device), d**-0.5, form, spans, n, logsums
            )
            what = f"{form}, {spans} spans"
            assert_close(what, ours.float().cpu(), expected, BF16 * 2)
            assert_close(f"sums of {what}", logsums.cpu(), sums, BF16 * 2)


def placed(device: str) -> None:
    """Raises AssertionError where the kernel finds a prompt in a pool otherwise, looks at keys
    behind it, or at rows that are not given."""
    heads, kv_heads, d, tokens, start, capacity, given = 6, 2, 32, 150, 40, 170, 11
    random = torch.Generator().manual_seed(1)
    pool = torch.randn(2, start + 2 * capacity, d, generator=random)
    index = torch.arange(0, tokens, 7)[:16]
    index[given - 1 :] = tokens - 1  # what an earlier prompt may have left behind the last
    q = torch.randn(16, heads, d, generator=random)
    k, v = (of[start:].view(kv_heads, capacity, d).clone() for of in pool)
    pool[:, start + tokens : start + capacity] = float("nan")
    pool[:, start + capacity + tokens :] = float("nan")
    expected = attend_rows(q[:given], k[:, :tokens], v[:, :tokens], index[:given], d**-0.5)
    extent = torch.tensor([start * d, capacity * d, tokens, given], device=device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (x.to(device, dtype) for x in (q, *pool))
    everywhere = (x[None].expand(kv_heads, -1, -1) for x in (k, v))
    k, v = everywhere
    for form in (Form(128, 64, 8, 2), Form(16, 32, 4, 1)):
        for spans in (1, 4):
            ours = index_causal_attention._attend(
                q, k, v, index.to(device), d**-0.5, form, spans, 256, extent=extent
            )
            what = f"{form}, {spans} spans"
            assert_close(what, ours[:given].float().cpu(), expected, BF16 * 2)
            assert ours[given:].count_nonzero() == 0, what


@pytest.mark.parametrize(
    ("tall", "n", "form", "spans"),
    [
        (128, 2096, FEW_ROWS, 9),
        (1440, 2096, FEW_ROWS, 1),
        (5100, 8192, MANY_ROWS, 1),
        (32, 32768, FEW_ROWS, 32),
        (32, 100, FEW_ROWS, 1),
    ],
)
def test_a_gpu_is_filled(
    monkeypatch: pytest.MonkeyPatch, tall: int, n: int, form: Form, spans: int
) -> None:
    monkeypatch.setattr(index_causal_attention, "_processors", lambda _: 132)
    assert plan(tall, 8, n, 128, torch.device("cpu")) == (form, spans)


CHECKS = [compare, placed]


@pytest.mark.gpu
@needs_gpu
def test_on_the_gpu() -> None:
    assert index_causal_attention.is_verified(torch.device("cuda"), 64)
    compare("cuda")
    placed("cuda")
