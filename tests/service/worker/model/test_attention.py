"""attend_rows, attend_last and attention_probabilities against three nested loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import measured, prefill_attention
from kvstitch.service.worker.model import attention
from kvstitch.service.worker.model.attention import (
    ROW_TILE,
    attend_rows,
    attend_with_scores,
    attention_probabilities,
)
from kvstitch.service.worker.model.model_facts import AttentionRule
from tests.service.worker.tiny import assert_close, difference

pytestmark = pytest.mark.exhaustive


def naive(q: Tensor, k: Tensor, v: Tensor, rows: list[int], scale: float) -> tuple[Tensor, Tensor]:
    """Outputs `[m, heads · d]` and weights `[heads, m, n]`, one row and head at a time."""
    m, heads, d = q.shape
    kv_heads, n, _ = k.shape
    out = torch.zeros(m, heads, d)
    weights = torch.zeros(heads, m, n)
    for i, t in enumerate(rows):
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores = (k[g, : t + 1].float() @ q[i, h].float()) * scale
            w = torch.exp(scores - scores.max())
            weights[h, i, : t + 1] = w / w.sum()
            out[i, h] = weights[h, i, : t + 1] @ v[g, : t + 1].float()
    return out.reshape(m, heads * d), weights


def row_sets(n: int, seed: int) -> dict[str, list[int]]:
    source = torch.Generator().manual_seed(seed)

    def pick(m: int) -> list[int]:
        return sorted(torch.randperm(n, generator=source)[:m].tolist())

    sets = {
        "first": [0],
        "single": [n // 2],
        "last": [n - 1],
        "all": list(range(n)),
        "all but the last": list(range(n - 1)),
        "contiguous tail": list(range(n - n // 3, n)),
        "contiguous middle": list(range(n // 4, n // 2)),
        "head and tail": [0, 1, n - 2, n - 1],
        "half": pick(n // 2),
    }
    for m in (2, ROW_TILE - 1, ROW_TILE, ROW_TILE + 1, 2 * ROW_TILE, 2 * ROW_TILE + 1):
        if m < n:
            sets[f"{m} of {n}"] = pick(m)
    return sets


def tensors(n: int, m: int, kv_heads: int, group: int, d: int, seed: int) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(m, kv_heads * group, d, generator=source)
    k = torch.randn(kv_heads, n, d, generator=source)
    v = torch.randn(kv_heads, n, d, generator=source)
    return q, k, v


RULES = {
    "a window": AttentionRule(window=7),
    "a window of one": AttentionRule(window=1),
    "a soft cap": AttentionRule(soft_cap=1.5),
    "sinks": AttentionRule(sinks=torch.tensor([0.3, -1.0, 2.0, 0.0])),
    "everything": AttentionRule(7, 1.5, torch.tensor([0.3, -1.0, 2.0, 0.0])),
}


def naive_by_rule(
    q: Tensor, k: Tensor, rows: list[int], keys: list[int], rule: AttentionRule
) -> Tensor:
    """Weights `[heads, m, n]`, one row, head and key at a time; the scale is 0.5."""
    weights = torch.zeros(q.shape[1], len(rows), len(keys))
    for i, t in enumerate(rows):
        for h in range(q.shape[1]):
            powers = torch.zeros(len(keys))
            for place, j in enumerate(keys):
                if j <= t and (rule.window is None or j > t - rule.window):
                    score = float(q[i, h] @ k[h // 2, place]) * 0.5
                    if rule.soft_cap is not None:
                        score = rule.soft_cap * math.tanh(score / rule.soft_cap)
                    powers[place] = math.exp(score)
            sink = 0.0 if rule.sinks is None else math.exp(float(rule.sinks[h]))
            total = float(powers.sum()) + sink
            weights[h, i] = powers / total if total else powers
    return weights


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    """Windows by position, where keys are missing too; a row that sees none attends to nothing."""
    rule = RULES[name]
    for number, (rows, keys) in enumerate(
        [
            (list(range(80)), list(range(80))),
            ([3, 4, 20, 79], list(range(80))),
            ([40], list(range(80))),
            ([11, 12, 50, 79], [0, 5, 10, 11, 12, 40, 41, 44, 50, 60, 70, 79]),
            ([30, 70], [0, 1, 2, 66]),
        ]
    ):
        q, k, v = tensors(len(keys), len(rows), 2, 2, 8, seed=number)
        expected = naive_by_rule(q, k, rows, keys, rule)
        at, index = torch.tensor(rows), torch.tensor(keys)
        given: dict[str, Any] = {"rule": rule}
        given["key_rows"] = None if keys == list(range(len(keys))) else index
        ours = attention_probabilities(q, k, at, 0.5, **given)
        assert_close("weights by a rule", ours, expected, 2e-6)
        mixed = torch.einsum("hmn,hnd->mhd", expected, v.repeat_interleave(2, 0)).flatten(1)
        assert_close("attention by a rule", attend_rows(q, k, v, at, 0.5, **given), mixed, 2e-5)
        share = torch.rand(len(rows))
        attended, scores = attend_with_scores(q, k, v, at, share, 0.5, **given)
        assert_close("attention by a rule", attended, mixed, 2e-5)
        expected_scores = torch.einsum("hmn,m->n", expected, share)
        assert_close("scores by a rule", scores, expected_scores, 2e-5)
        low = attend_rows(q.bfloat16(), k.bfloat16(), v.bfloat16(), at, 0.5, **given)
        assert_close("attention by a rule in bf16", low.float(), mixed, 6e-2)


def test_tiles_by_a_rule_are_as_small_as_memory_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(50, 50, 2, 2, 8, seed=0)
    rows, rule = torch.arange(50), RULES["everything"]
    whole = attend_rows(q, k, v, rows, 0.5, rule=rule)
    for most in (1, 4 * 50 * 3):  # a row, three rows
        monkeypatch.setattr(attention, "RULE_SCORES", most)
        ours = attend_rows(q, k, v, rows, 0.5, rule=rule)
        assert_close("attention by a rule in tiles", ours, whole, 2e-6)


def test_a_window_that_no_key_leaves_is_the_plain_attention() -> None:
    """Bit for bit, by the same kernel."""
    q, k, v = tensors(30, 30, 2, 2, 8, seed=0)
    rows = torch.arange(30)
    wide = AttentionRule(window=30)
    plain = attend_rows(q, k, v, rows, 0.5)
    assert attend_rows(q, k, v, rows, 0.5, rule=wide).equal(plain)
    narrow = AttentionRule(window=29)
    assert difference(attend_rows(q, k, v, rows, 0.5, rule=narrow), plain) > 1e-4


@pytest.mark.parametrize("group", [1, 2, 7])
@pytest.mark.parametrize("n", [2, 5, 63, 64, 65, 200])
def test_rows_are_the_naive_ones(group: int, n: int) -> None:
    """Random, contiguous, single and all rows, counts around the tile size, GQA groups 1, 2, 7."""
    for number, rows in enumerate(row_sets(n, seed=n).values()):
        if not rows:
            continue
        q, k, v = tensors(n, len(rows), 2, group, 8, seed=number)
        expected, weights = naive(q, k, v, rows, 8**-0.5)
        index = torch.tensor(rows)
        claim = "attend_rows is naive"
        assert_close(claim, attend_rows(q, k, v, index, 8**-0.5), expected, 2e-5)
        ours = attention_probabilities(q, k, index, 8**-0.5)
        assert_close("attention_probabilities is naive", ours, weights, 2e-6)


def test_many_random_row_sets() -> None:
    """Sixty shapes and row sets drawn at random, keys strided as they lie in the pool."""
    for seed in range(60):
        source = torch.Generator().manual_seed(1000 + seed)
        n = int(torch.randint(1, 180, (1,), generator=source))
        m = int(torch.randint(1, n + 1, (1,), generator=source))
        group = (1, 2, 3, 7)[seed % 4]
        rows = torch.randperm(n, generator=source)[:m].sort().values
        q, k, v = tensors(n + 5, m, 2, group, 16, seed)
        expected, _ = naive(q, k, v, rows.tolist(), 0.3)
        ours = attend_rows(q, k[:, :n], v[:, :n], rows, 0.3)
        assert_close("attend_rows is naive", ours, expected, 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles_with_many_keys_before_them(dtype: torch.dtype) -> None:
    """Rows far behind the first keys, and far from one another. Large values, so that the keys'
    halves weigh very differently."""
    n = 662
    sets = {
        "scattered": list(range(3, n, 4)),
        "contiguous tail": list(range(n - 70, n)),
        "around the border": list(range(226, 316)),
        "far apart": [5, 256, n - 2, n - 1],
    }
    for seed, rows in enumerate(sets.values()):
        q, k, v = (t.to(dtype) for t in tensors(n, len(rows), 2, 3, 16, seed))
        q[:, :, 0] *= 4
        k[:, : n // 2, 0] += 2
        expected, _ = naive(q, k, v, rows, 0.5)
        ours = attend_rows(q, k, v, torch.tensor(rows), 0.5)
        assert ours.dtype == dtype
        claim, bound = "attend_rows far behind", 2e-5 if dtype == torch.float32 else 3e-2
        assert_close(f"{claim}, {dtype}", ours.float(), expected, bound)
        index = torch.arange(n)[torch.arange(n) % 3 != 1]
        seen = [t for t in rows if t % 3 != 1]
        at = torch.tensor([rows.index(t) for t in seen])
        held = attend_rows(q[at], k[:, index], v[:, index], torch.tensor(seen), 0.5, key_rows=index)
        assert held.shape == (len(seen), 6 * 16)
        for i in (0, len(seen) // 2, len(seen) - 1):
            visible = index[index <= seen[i]]
            part, _ = naive(q[at][i : i + 1], k[:, visible], v[:, visible], [len(visible) - 1], 0.5)
            assert_close(f"{claim}, some keys, {dtype}", held[i].float(), part[0], bound)


def test_unseen_keys_are_not_read() -> None:
    """Keys and values after a row may be anything, even NaN: they have no part in it. With all rows
    given nothing is after the last."""
    n = 150
    for rows in ([3], [3, 80], list(range(0, 100, 2)), list(range(140))):
        q, k, v = tensors(n, len(rows), 2, 2, 8, seed=1)
        index = torch.tensor(rows)
        clean = attend_rows(q, k, v, index, 0.5)
        k[:, rows[-1] + 1 :] = math.nan
        v[:, rows[-1] + 1 :] = math.nan
        assert attend_rows(q, k, v, index, 0.5).equal(clean)


@pytest.mark.parametrize("group", [1, 2, 7])
def test_bfloat16_within_its_rounding(group: int) -> None:
    """bf16 inputs, naive in fp32 on the same rounded inputs: 2^-8 of values of size about 1."""
    for name, rows in row_sets(140, seed=9).items():
        q, k, v = (t.bfloat16() for t in tensors(140, len(rows), 2, group, 16, seed=4))
        expected, weights = naive(q, k, v, rows, 0.25)
        ours = attend_rows(q, k, v, torch.tensor(rows), 0.25)
        assert ours.dtype == torch.bfloat16, name
        assert_close("attend_rows in bf16", ours.float(), expected, 3e-2)
        probabilities = attention_probabilities(q, k, torch.tensor(rows), 0.25)
        assert probabilities.dtype == torch.float32
        assert_close("probabilities of bf16", probabilities, weights, 2e-6)


def test_probabilities_sum_to_one_and_hide_the_future() -> None:
    rows = torch.tensor([0, 4, 9])
    q, k, _ = tensors(10, 3, 2, 3, 8, seed=5)
    weights = attention_probabilities(q, k, rows, 0.5)
    assert_close("weights sum to 1", weights.sum(-1), torch.ones(6, 3), 1e-6)
    for i, t in enumerate(rows.tolist()):
        assert bool((weights[:, i, t + 1 :] == 0).all())


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("ours", "torchs", "taken"), [(1.1, 1.0, True), (1.3, 1.0, False)])
def test_where_torch_has_tiles_the_faster_way_is_measured_for_some_and_many_rows(
    monkeypatch: pytest.MonkeyPatch, many: bool, ours: float, torchs: float, taken: bool
) -> None:
    m = attention.MANY_ROWS if many else 3
    q, k, v = torch.randn(m, 4, 16), torch.randn(2, m + 1, 16), torch.randn(2, m + 1, 16)
    names = dict.fromkeys((f"attention of {n} rows to 1024 keys" for n in (1024, 147)), (9.0, 9.0))
    names[f"attention of {1024 if many else 147} rows to 1024 keys"] = ours, torchs
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(measured, "measured", names)
    monkeypatch.setattr(prefill_attention, "supports", lambda *_: True)
    monkeypatch.setattr(prefill_attention, "attend", lambda q, *_: q.new_zeros(len(q), 64))
    attention.kernel_is_fast.cache_clear()
    try:
        rows = torch.arange(1, m + 1)
        got = attend_rows(q, k, v, rows, 0.25)
    finally:
        attention.kernel_is_fast.cache_clear()
    expected = naive(q[:3], k, v, [1, 2, 3], 0.25)[0]
    assert_close(
        "attention where torch has tiles", got[:3], torch.zeros(3, 64) if taken else expected
    )
