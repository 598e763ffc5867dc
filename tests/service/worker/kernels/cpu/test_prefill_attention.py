"""The kernel for a prompt's rows at any indices against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import native, prefill_attention
from kvstitch.service.worker.kernels.cpu.prefill_attention import KEYS, QUERIES
from kvstitch.service.worker.model.attention import attend_rows, attend_with_scores
from tests.service.worker.tiny import assert_close

SCALE = 0.2
BF16 = 2**-8  # of values up to 4: half a unit in the last place is 2^-7 of 4
# rows, keys, KV heads, query heads to each, head_dim: broken and whole tiles of queries and blocks
# of keys, head sizes of one, two and four strips of columns.
SHAPES = [
    (1, 1, 1, 1, 32),
    (2, 40, 2, 1, 64),
    (7, 2 * KEYS, 2, 7, 64),
    (QUERIES, KEYS, 2, 4, 128),
    (50, 300, 1, 3, 96),
    (130, 500, 2, 7, 64),
    (QUERIES + 1, KEYS + 1, 1, 1, 256),
]


pytestmark = pytest.mark.usefixtures("bf16_dot")


def drawn(
    shape: tuple[int, int, int, int, int], size: float = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as part of longer tensors, and ascending indices of the rows."""
    m, n, kv_heads, group, d = shape
    random = torch.Generator().manual_seed(sum(shape))

    def some(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=random) * size).bfloat16()

    rows = torch.randperm(n, generator=random)[:m].sort()[0]
    q = some(m, kv_heads * group + 2, d)[:, : kv_heads * group]
    return q, some(kv_heads, n + 5, d)[:, :n], some(kv_heads, n + 9, d)[:, :n], rows


def exact(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    m, heads, d = q.shape
    keys, values = (x.double().repeat_interleave(heads // len(k), 0) for x in (k, v))
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * SCALE
    scores.masked_fill_(torch.arange(k.shape[1]) >= seen[:, None], float("-inf"))
    return (scores.softmax(-1) @ values).transpose(0, 1).reshape(m, heads * d)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_at_scattered_indices(shape: tuple[int, int, int, int, int]) -> None:
    q, k, v, rows = drawn(shape)
    assert prefill_attention.supports(q, k, v)
    ours = prefill_attention.attend(q, k, v, rows + 1, SCALE)
    assert ours.dtype == torch.bfloat16
    assert_close("attention of a prompt's rows", ours.double(), exact(q, k, v, rows + 1), 4 * BF16)


def exact_key_scores(q: Tensor, k: Tensor, seen: Tensor, share: Tensor) -> Tensor:
    heads = q.shape[1]
    scores = q.double().transpose(0, 1) @ k.double().repeat_interleave(heads // len(k), 0).mT
    scores = (scores * SCALE).masked_fill(torch.arange(k.shape[1]) >= seen[:, None], -torch.inf)
    return torch.einsum("hmn,m->n", scores.softmax(-1), share.double())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 16])
def test_attention_that_each_key_gets(shape: tuple[int, int, int, int, int], size) -> None:
    """Softmax weights times their row's weight, summed by key; attention is as without scores."""
    q, k, v, rows = drawn(shape, size)
    share = torch.rand(len(rows), generator=torch.Generator().manual_seed(1)) + 0.1
    attended, scores = prefill_attention.attend_with_scores(
        q, k, v, rows + 1, row_weights=share, scale=SCALE
    )
    assert attended.equal(prefill_attention.attend(q, k, v, rows + 1, SCALE))
    expected = exact_key_scores(q, k, rows + 1, share)
    assert scores.dtype == torch.float32 and not scores[int(rows[-1]) + 1 :].any()
    # Large scores lose digits in fp32 before they are exponents.
    assert_close("attention by key", scores.double(), expected, 1e-5 if size == 1 else 1e-2)


def test_row_weights_of_any_dtype_but_not_of_any_number() -> None:
    """They come from methods, which may be plugins."""
    q, k, v, rows = drawn(SHAPES[4])
    share = torch.arange(len(rows)) * 2

    def scores(row_weights: Tensor) -> Tensor:
        return prefill_attention.attend_with_scores(
            q, k, v, rows + 1, row_weights=row_weights, scale=SCALE
        )[1]

    expected = scores(share.float())
    for other in (share, share.double(), share.float().repeat_interleave(2)[::2]):
        assert scores(other).equal(expected)
    with pytest.raises(ValueError, match="give one each"):
        scores(share[1:].float())


def test_attention_that_each_key_gets_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over keys at indices of their own, in any number of threads."""
    q, k, v, rows = drawn(SHAPES[5])
    share, key_rows = torch.linspace(0, 1, len(rows)), torch.arange(0, 500, 2)
    q, rows, share = q[2:], rows[2:], share[2:]
    keys, values = k[:, key_rows].contiguous(), v[:, key_rows].contiguous()
    given = (q, keys, values, rows, share, SCALE)
    with monkeypatch.context() as without:
        without.setattr(native, "module", lambda: None)
        attended, scores = attend_with_scores(*given, key_rows=key_rows)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(attend_with_scores(*given, key_rows=key_rows))
    finally:
        torch.set_num_threads(before)
    assert results[0][1].equal(results[1][1])
    assert_close("torch's", results[0][1].double(), scores.double(), 1e-5)
    assert_close("torch's", results[0][0].double(), attended.double(), 8 * BF16)


def test_large_scores() -> None:
    """In the thousands: nothing overflows, and the weights are those of the largest."""
    q, k, v, rows = drawn(SHAPES[5], size=16)
    ours = prefill_attention.attend(q, k, v, rows + 1, SCALE)
    assert_close("of large scores", ours.double(), exact(q, k, v, rows + 1), 64 * BF16)


def test_what_is_not_a_number_stays_so() -> None:
    q, k, v, rows = drawn(SHAPES[5])
    k[0, int(rows[60])] = float("nan")
    ours = prefill_attention.attend(q, k, v, rows + 1, SCALE).view(len(rows), 2, -1)
    assert ours[:60].isfinite().all()
    assert ours[60:, 0].isnan().all()
    assert ours[60:, 1].isfinite().all()


def test_a_row_does_not_depend_on_others_nor_on_threads() -> None:
    q, k, v, rows = drawn(SHAPES[5])
    together = prefill_attention.attend(q, k, v, rows + 1, SCALE)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert prefill_attention.attend(q, k, v, rows + 1, SCALE).equal(together)
    finally:
        torch.set_num_threads(before)
    some = torch.tensor([3, 40, 41, 129])
    assert prefill_attention.attend(q[some], k, v, rows[some] + 1, SCALE).equal(together[some])


def test_keys_at_indices_of_their_own() -> None:
    """As a pass over part of the cache sees them."""
    q, k, v, rows = drawn(SHAPES[5])
    q, rows = q[2:], rows[2:]
    key_rows = torch.cat([torch.arange(0, int(rows[0]) + 1), rows[1:]]).unique()
    k, v = (x[:, key_rows].contiguous() for x in (k, v))
    ours = attend_rows(q, k, v, rows, SCALE, key_rows=key_rows)
    seen = (key_rows <= rows[:, None]).sum(1)
    assert_close("over keys at other indices", ours.double(), exact(q, k, v, seen), 4 * BF16)


def test_others_are_left_to_torch() -> None:
    q, k, v, _ = drawn(SHAPES[5])
    assert not prefill_attention.supports(q.float(), k.float(), v.float())
    assert not prefill_attention.supports(q[..., :40], k[..., :40], v[..., :40])
    assert not prefill_attention.supports(q, k.transpose(0, 1).contiguous().transpose(0, 1), v)
