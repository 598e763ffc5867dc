"""The reference of Multi-InfLLM: docs/specification.md §1.8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.references.infllm import (
    InfLLM,
    attend,
    block_key,
    candidate_blocks,
    default_topk,
    infllm,
    memory_blocks,
    relevance,
    visible_keys,
)
from tests.references.samkv_pass import sparse_pass
from tests.references.samkv_toys import LONG, Documents, noise, prompt_of
from tests.service.worker.tiny import (
    Q,
    S,
    Tiny,
    assert_close,
    difference,
    random_model,
    tiny_config,
    tiny_of,
)

pytestmark = pytest.mark.exhaustive

TOKENS = [5, 60, 7]
N = len(S) + sum(len(d) for d in LONG) + len(Q)
SMALL: dict[str, Any] = {"block": 4, "init": 4, "local": 12, "topk": 3, "representatives": 2}


@cache
def without_positions() -> Tiny:
    """Positions divided by 10^9: RoPE turns nothing, so near and far are the same."""
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1e9}
    return tiny_of(random_model(tiny_config("llama", rope)))


def same_logits(claim: str, ours: InfLLM, expected: Sequence[Tensor]) -> None:
    for a, b in zip(ours.logits, expected, strict=True):
        assert_close(claim, a, b)


def pie_logits(model: Tiny, documents: Documents, prefix: Sequence[int] = ()) -> list[Tensor]:
    """After the question and after each of TOKENS."""
    trace = model.reference.pie(prompt_of(model.reference, documents, prefix))
    return [trace.logits[-1], *model.reference.decode(trace, TOKENS)]


# -- pieces ---------------------------------------------------------------------------------------


def test_default_topk() -> None:
    """round((0.15 n − 192) / 64), at least one block; 1.5 and 4.5 blocks go to the even number."""
    assert [default_topk(n) for n in (0, 100, 1280, 6000)] == [1, 1, 1, 11]
    assert [default_topk(n) for n in (1920, 3200)] == [2, 4]
    assert default_topk(100, block=4, init=4, local=8) == 1
    assert default_topk(200, block=4, init=4, local=8) == 4


def test_memory_blocks() -> None:
    assert memory_blocks(3, 12, 4) == [range(3, 7), range(7, 11), range(11, 12)]
    assert memory_blocks(12, 12, 4) == []


def test_relevance() -> None:
    """Sum over the next queries, own excluded, at most to the end."""
    attention = noise(2, 6, 6).softmax(-1)
    ours = relevance(attention, 2)
    assert_close("relevance", ours[:, 1], attention[:, 2, 1] + attention[:, 3, 1])
    assert_close("relevance, end", ours[:, 4], attention[:, 5, 4])
    assert ours[:, 5].eq(0).all()


def test_block_key() -> None:
    """Per query head the mean of its own best tokens, keys of its KV head."""
    k = noise(6, 2, 3)
    scores = torch.tensor(
        [
            [9.0, 0, 1, 2, 0, 9],
            [9, 1, 1, 1, 1, 9],
            [9, 0, 0, 0, 5, 9],
            [9, 3, 2, 1, 0, 9],
        ]
    )
    ours = block_key(k, scores, range(1, 5), 2)
    best = [(3, 2), (1, 2), (4, 1), (1, 2)]
    for h, (a, b) in enumerate(best):
        assert_close("block key", ours[h], (k[a, h // 2] + k[b, h // 2]) / 2)
    assert_close("short block", block_key(k, scores, range(4, 5))[2], k[4, 1])


def test_candidates() -> None:
    """Window of row 20 with 8 tokens: 13–20."""
    blocks = [range(4, 8), range(8, 12), range(12, 16), range(16, 18)]
    assert candidate_blocks(blocks, 20, 8, "outside") == [0, 1]
    assert candidate_blocks(blocks, 20, 8, "touching") == [0, 1, 2]
    assert candidate_blocks(blocks, 19, 8, "outside") == [0, 1]
    assert candidate_blocks(blocks, 18, 8, "outside") == [0]
    assert candidate_blocks(blocks, 20, 20, "outside") == []


def test_visible_keys() -> None:
    """Row 20, window 13–20, init 0–3, blocks of 4, the second one picked; 12 is in no candidate."""
    blocks = [range(4, 8), range(8, 12), range(12, 16), range(16, 18)]
    near, far = visible_keys(20, 4, blocks, [0, 1], [1], 8)
    assert near == list(range(13, 21)) and far == [0, 1, 2, 3, 8, 9, 10, 11, 12]
    assert visible_keys(20, 4, blocks, [0, 1], [1], 8, remainder=False)[1] == far[:-1]
    near, far = visible_keys(20, 4, blocks, [0, 1, 2], [2], 8)
    assert near == list(range(13, 21)) and far == [0, 1, 2, 3, 12]
    near, far = visible_keys(24, 4, blocks, [0, 1], [1], 4)
    assert near == [21, 22, 23, 24] and far == [0, 1, 2, 3, *range(8, 21)]
    assert visible_keys(3, 4, blocks, [], [], 8) == ([0, 1, 2, 3], [])
    assert visible_keys(3, 4, blocks, [], [], 2) == ([2, 3], [0, 1])


def test_one_softmax_over_both_kinds(any_model: Tiny) -> None:
    """Number by number; far keys are `local` away wherever they are put."""
    reference, local = any_model.reference, 6
    heads, kv_heads, d = reference.heads, reference.kv_heads, reference.d
    query, k, v = noise(heads, d), noise(20, kv_heads, d, seed=1), noise(20, kv_heads, d, seed=2)
    near, far = [14, 15, 16], [0, 3, 9]
    turned = reference.rotate(k[near], near), reference.rotate(k[far], [0] * len(far))
    ours = attend(reference, query, (19, local), turned, v[[*near, *far]])
    for h in range(heads):
        g = h // (heads // kv_heads)
        weights = []
        for j in near:
            q_turned, k_turned = reference.rotation(19) @ query[h], reference.rotation(j) @ k[j, g]
            weights.append(math.exp(float(q_turned @ k_turned) / math.sqrt(d)))
        for j in far:
            q_turned = reference.rotation(j + local) @ query[h]
            k_turned = reference.rotation(j) @ k[j, g]
            weights.append(math.exp(float(q_turned @ k_turned) / math.sqrt(d)))
        values = v[[*near, *far], g]
        mixed = (torch.tensor(weights)[:, None] * values).sum(0) / sum(weights)
        assert_close("infllm attention", ours[h * d : (h + 1) * d], mixed)


# -- the whole ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "chunk"), [((), 512), (S, 2)])
def test_a_window_over_everything_is_pie(
    any_family: Tiny, prefix: Sequence[int], chunk: int
) -> None:
    for documents in (LONG, [LONG[0], [], LONG[0]], []):
        ours = infllm(
            any_family.reference,
            S,
            documents,
            Q,
            TOKENS,
            prefix=prefix,
            block=4,
            init=4,
            local=N + len(TOKENS),
            chunk=chunk,
        )
        same_logits("infllm all near is pie", ours, pie_logits(any_family, documents, prefix))
        assert all(among == [] for among in ours.candidates)


def test_all_blocks_without_positions_are_pie() -> None:
    """Every token is near, init, picked or remainder, whatever the geometry."""
    model = without_positions()
    expected = pie_logits(model, LONG)
    variants: list[dict[str, Any]] = [
        {},
        {"candidates": "touching"},
        {"keep_system": False},
        {"chunk": 2},
    ]
    for changes in variants:
        ours = infllm(model.reference, S, LONG, Q, TOKENS, **{**SMALL, "topk": 99, **changes})
        same_logits("infllm of all blocks", ours, expected)
    fewer = infllm(model.reference, S, LONG, Q, TOKENS, **SMALL)
    assert difference(fewer.logits[0], expected[0]) > 1e-3


@pytest.mark.parametrize("candidates", ["outside", "touching"])
@pytest.mark.parametrize("remainder", [True, False])
def test_unpicked_blocks_are_masked(candidates: str, remainder: bool) -> None:
    """Without positions and with a question of one token: PIE over each layer's visible keys."""
    model = without_positions()
    reference = model.reference
    ours = infllm(reference, S, LONG, Q[:1], **SMALL, candidates=candidates, remainder=remainder)
    prompt = prompt_of(reference, LONG)
    prompt.question = Q[:1]
    row = len(prompt.ids) - 1
    keys = []
    for picked in ours.picked[0]:
        near, far = visible_keys(
            row, len(S) + 4, ours.blocks, ours.candidates[0], picked, 12, remainder=remainder
        )
        keys.append(sorted([*near, *far]))
        assert len(picked) == 3
    rows = [[row]] * reference.layers
    masked = sparse_pass(
        reference, prompt.ids, reference.placed(prompt), rows, rows, keys, last=[row]
    )
    assert_close("infllm masked", ours.logits[0], reference.head(masked.output[[row]])[0])


def test_chunks_matter_only_to_the_choice(any_family: Tiny) -> None:
    """With all blocks picked, pieces of the question and single tokens give the same."""
    reference = any_family.reference
    changes = {**SMALL, "topk": 99}
    whole = infllm(reference, S, LONG, Q, TOKENS, **changes)
    pieces = infllm(reference, S, LONG, Q, TOKENS, **changes, chunk=2)
    fed = infllm(reference, S, LONG, Q[:2], [*Q[2:], *TOKENS], **changes)
    same_logits("infllm in pieces", pieces, whole.logits)
    same_logits("infllm token by token", fed, [*fed.logits[:3], *whole.logits])
    assert [len(p.candidates) for p in (whole, pieces, fed)] == [4, 6, 7]
    for layer in range(reference.layers):
        assert_close("infllm K", pieces.k_pre[layer], whole.k_pre[layer])
        assert_close("infllm V", pieces.v[layer], whole.v[layer])
        assert len(whole.v[layer]) == N + len(TOKENS)


@pytest.mark.parametrize("prefix", [[], S])
def test_picked_blocks(any_family: Tiny, prefix: list[int]) -> None:
    """The best by Σ_h ⟨q̄_h, K_rep⟩, recomputed here at layer 0, where queries are known; as many
    as asked for at every layer and chunk; the context is S, init and blocks, each token once."""
    reference = any_family.reference
    ours = infllm(reference, S, LONG, Q, TOKENS, **SMALL, prefix=prefix)
    covered = [*range(len(S) + 4), *(t for b in ours.blocks for t in b)]
    assert covered == list(range(N - len(Q)))
    assert all(len(p) == 3 for chunk in ours.picked for p in chunk)
    assert ours.candidates[0] == [i for i, b in enumerate(ours.blocks) if b[-1] <= N - len(Q) - 12]
    assert len(ours.candidates[-1]) >= len(ours.candidates[0])
    q, _, _ = reference.project(0, reference.w["model.embed_tokens.weight"][torch.tensor(Q)])
    turned = reference.rotate(q, [12] * len(Q)).mean(0)
    prompt = prompt_of(reference, LONG)
    group = reference.heads // reference.kv_heads
    scores = []
    for i in ours.candidates[0]:
        total = 0.0
        for h in range(reference.heads):
            received = []
            for t in ours.blocks[i]:
                number = max(j for j in (1, 2, 3) if prompt.starts[j] <= t)
                at = t - prompt.starts[number]
                attention = reference.vanilla([*prefix, *LONG[number - 1]]).attention[0][h]
                column = attention[len(prefix) :, len(prefix) + at]
                received.append((-float(column[at + 1 : at + 13].sum()), t))
            best = [t for _, t in sorted(received)[:2]]
            total += float(turned[h] @ ours.k_pre[0][best, h // group].mean(0))
        scores.append((-total, i))
    assert ours.picked[0][0] == sorted(i for _, i in sorted(scores)[:3])


def test_system_prompt_may_be_memory(any_family: Tiny) -> None:
    """`keep_system` off: init is the context's first tokens, S's others are in blocks."""
    ours = infllm(any_family.reference, S, LONG, Q, **SMALL, keep_system=False)
    assert ours.blocks[0] == range(4, 8)
    kept = infllm(any_family.reference, S, LONG, Q, **SMALL)
    assert kept.blocks[0] == range(len(S) + 4, len(S) + 8)
    assert difference(ours.logits[0], kept.logits[0]) > 1e-4


def test_defaults_are_the_comparison_s(model: Tiny) -> None:
    """Block 64, init 64, local 128 on 124 document tokens: everything is near or init."""
    ours = infllm(model.reference, S, LONG, Q)
    assert ours.blocks == [range(71, 131)] and ours.topk == 1 and ours.candidates == [[]]
