"""Multi-InfLLM (docs/specification.md §1.8; InfLLM, Xiao et al. 2024, over concatenated chunks) on
the slow decoder of `prefill.py`: prefill of the question and decode steps.

The context is S ‖ D_1 ‖ … ‖ D_k with its stored keys and values; only the question and generated
tokens are computed. They run in chunks (the question in pieces of `chunk` tokens, then one token
each). At every layer a chunk picks its top blocks, and each of its rows has one softmax over

    near  the last `local` tokens up to itself, ordinary RoPE
    far   of all earlier tokens: init, the picked blocks and what no block can bring back; keys at
          position 0, the query at position `local`, a constant distance

What docs/specification.md leaves open are arguments of `infllm`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from tests.references.prefill import Prompt, Reference

CANDIDATES = ("outside", "touching")


def default_topk(
    document_tokens: int, ratio: float = 0.15, block: int = 64, init: int = 64, local: int = 128
) -> int:
    """round((ratio · n − init − local) / block), at least 1; halves go to the even number."""
    budget = Fraction(str(ratio)) * document_tokens - init - local
    return max(1, round(budget / block))


def memory_blocks(first: int, end: int, size: int) -> list[range]:
    """Prompt indices of the blocks: a grid from `first` over the rest of the context, across
    document borders; the last one may be short."""
    return [range(at, min(at + size, end)) for at in range(first, end, size)]


def relevance(attention: Tensor, local: int) -> Tensor:
    """`[heads, T]` from `[heads, T, T]`: attention that a token gets from the `local` queries after
    it, summed, fewer at the document's end."""
    heads, tokens, _ = attention.shape
    out = torch.zeros(heads, tokens)
    for t in range(tokens):
        for q in range(t + 1, min(tokens, t + local + 1)):
            out[:, t] += attention[:, q, t]
    return out


def block_key(k_pre: Tensor, scores: Tensor, block: range, count: int = 4) -> Tensor:
    """`[heads, d]`: per query head the mean key before RoPE of the block's `count` most relevant
    tokens, lower index first among equals. k_pre `[n, kv_heads, d]`, scores `[heads, n]`."""
    heads, group = len(scores), len(scores) // k_pre.shape[1]
    out = []
    for h in range(heads):
        best = sorted(block, key=lambda t: (-float(scores[h, t]), t))[:count]
        out.append(k_pre[best, h // group].mean(0))
    return torch.stack(out)


def candidate_blocks(blocks: Sequence[range], row: int, local: int, rule: str) -> list[int]:
    """Blocks that a chunk with first row `row` may pick. outside: all tokens are out of that row's
    window (InfLLM makes blocks of what left the window). touching: at least one is."""
    assert rule in CANDIDATES
    return [
        i for i, b in enumerate(blocks) if row - (b[-1] if rule == "outside" else b[0]) >= local
    ]


def visible_keys(
    row: int,
    init_end: int,
    blocks: Sequence[range],
    candidates: Sequence[int],
    picked: Sequence[int],
    local: int,
    *,
    remainder: bool = True,
) -> tuple[list[int], list[int]]:
    """Near and far keys of a row. `remainder`: tokens outside init and the candidate blocks (those
    between blocks and window, old question and generated tokens) stay visible after they left the
    window, as in InfLLM's code."""
    near = [j for j in range(row + 1) if row - j < local]
    lost = {j for i in candidates if i not in picked for j in blocks[i]}
    kept = {*range(init_end), *(j for i in picked for j in blocks[i])}
    older = [j for j in range(row + 1) if row - j >= local]
    return near, [j for j in older if j in kept or (remainder and j not in lost)]


@dataclass
class InfLLM:
    """One prompt and its decoding."""

    blocks: list[range]
    topk: int
    logits: list[Tensor] = field(default_factory=list)  # after Q, then after each token
    candidates: list[list[int]] = field(default_factory=list)  # [chunk]
    picked: list[list[list[int]]] = field(default_factory=list)  # [chunk][layer], ascending
    k_pre: list[Tensor] = field(default_factory=list)  # [layer], [all tokens, kv_heads, d]
    v: list[Tensor] = field(default_factory=list)


def infllm(
    reference: Reference,
    system: Sequence[int],
    documents: Sequence[Sequence[int]],
    question: Sequence[int],
    tokens: Sequence[int] = (),
    *,
    prefix: Sequence[int] = (),
    block: int = 64,
    init: int = 64,
    local: int = 128,
    topk: int | None = None,
    representatives: int = 4,
    chunk: int = 512,
    keep_system: bool = True,
    candidates: str = "outside",
    remainder: bool = True,
) -> InfLLM:
    """The question, then `tokens` one by one. `prefix`: what a document sees at precompute.
    `keep_system`: init is S and the first `init` document tokens; else the first `init` tokens of
    the context. Blocks are the rest of the context; they need relevance from precompute, so the
    question and generated tokens never form any."""
    stored = [reference.precompute(system)]
    stored += [reference.precompute(ids, prefix) for ids in documents]
    prompt = Prompt(list(system), [list(d) for d in documents], list(question), [*stored])
    context = prompt.starts[-1]
    init_end = min(context, init + (len(system) if keep_system else 0))
    out = InfLLM(
        blocks=memory_blocks(init_end, context, block),
        topk=topk or default_topk(context - len(system), block=block, init=init, local=local),
        k_pre=[torch.cat([s.k_pre[layer] for s in stored]) for layer in range(reference.layers)],
        v=[torch.cat([s.v[layer] for s in stored]) for layer in range(reference.layers)],
    )
    keys = []  # [layer][block] -> [heads, d]
    for layer in range(reference.layers):
        scores = context_relevance(reference, prompt, prefix, layer, local)
        keys.append([block_key(out.k_pre[layer], scores, b, representatives) for b in out.blocks])
    pieces = [list(question[i : i + chunk]) for i in range(0, len(question), chunk)]
    for number, ids in enumerate([*pieces, *([t] for t in tokens)]):
        row = len(out.v[0])
        rows = range(row, row + len(ids))
        among = candidate_blocks(out.blocks, row, local, candidates)
        out.candidates.append(among)
        out.picked.append([])
        x = reference.embed(ids)
        for layer in range(reference.layers):
            q, k_pre, v = reference.project(layer, x)
            out.k_pre[layer] = torch.cat([out.k_pre[layer], k_pre])
            out.v[layer] = torch.cat([out.v[layer], v])
            mean = reference.rotate(q.mean(0, keepdim=True), [local])[0]
            score = {i: math.fsum((mean * keys[layer][i]).flatten().tolist()) for i in among}
            picked = sorted(sorted(among, key=lambda i: (-score[i], i))[: out.topk])
            out.picked[-1].append(picked)
            n = len(out.v[layer])
            turned = reference.rotate(out.k_pre[layer], range(n))
            unturned = reference.rotate(out.k_pre[layer], [0] * n)
            attended = []
            for t, query in zip(rows, q, strict=True):
                near, far = visible_keys(
                    t, init_end, out.blocks, among, picked, local, remainder=remainder
                )
                attended.append(
                    attend(
                        reference,
                        query,
                        (t, local),
                        (turned[near], unturned[far]),
                        out.v[layer][[*near, *far]],
                    )
                )
            x = reference.block_tail(layer, x, torch.stack(attended))
        if number >= len(pieces) - 1:
            out.logits.append(reference.head(x[-1:])[0])
    return out


def context_relevance(
    reference: Reference, prompt: Prompt, prefix: Sequence[int], layer: int, local: int
) -> Tensor:
    """`[heads, context]`: every token's relevance within its own document (or S), as it was when
    that was precomputed."""
    parts = [torch.empty(reference.heads, 0)]
    for ids, before in [(prompt.system, ()), *((d, prefix) for d in prompt.documents)]:
        if ids:
            attention = reference.vanilla([*before, *ids]).attention[layer]
            parts.append(relevance(attention[:, len(before) :, len(before) :], local))
    return torch.cat(parts, dim=1)


def attend(
    reference: Reference,
    query: Tensor,
    positions: tuple[int, int],
    keys: tuple[Tensor, Tensor],
    values: Tensor,
) -> Tensor:
    """One row's attention `[heads · d]`: one softmax over near and far keys, which the query
    `[heads, d]` (before RoPE) meets at one position each. Keys `[near or far, kv_heads, d]`,
    values `[near + far, kv_heads, d]`. A far key is at position 0, so it is as it was before RoPE,
    up to YaRN's factor, which queries and keys always carry."""
    group = reference.heads // reference.kv_heads
    near_q, far_q = (reference.rotate(query[None], [p])[0] for p in positions)
    near_k, far_k = keys
    out = []
    for h in range(reference.heads):
        g = h // group
        scores = torch.cat([near_k[:, g] @ near_q[h], far_k[:, g] @ far_q[h]])
        weights = torch.exp((scores - scores.max()) / math.sqrt(reference.d))
        out.append((weights / weights.sum()) @ values[:, g])
    return torch.cat(out)
