"""SamKV's sparse forward pass, its update rules and its set algebra: Q6 and Q7 of
specification.md §1.7 (paper, section 3.3), on the slow decoder of `prefill.py`.

A pass is three lists of token sets, one per layer: rows with a hidden state, rows whose K and V are
computed, keys that are seen. Rows see only listed keys, so nothing else can leak into them; hidden
states of unlisted rows are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.references.prefill import Reference
from tests_methods.samkv.reference_selection import cosine

Sets = list[list[int]]  # [layer] -> token indices, ascending
Cache = list[tuple[Tensor, Tensor]]  # [layer] -> K rotated and V, [n, kv_heads, d]
Update = Callable[[Tensor, Tensor], Tensor]  # (fresh, stored) of one token -> what is used


def overwrite(new: Tensor, old: Tensor) -> Tensor:
    return new


def theta(new: Tensor, old: Tensor) -> float:
    """Cosine over all KV heads of one token at one layer, in [0, 1] (Q7)."""
    return min(1.0, max(0.0, cosine(new, old)))


def fusion(new: Tensor, old: Tensor) -> Tensor:
    """Equation 4: θ · new + (1 − θ) · old."""
    share = theta(new, old)
    return share * new + (1 - share) * old


UPDATES: dict[str, Update] = {"overwrite": overwrite, "fusion": fusion}


@dataclass
class Pass:
    """Per layer: the cache afterwards, fresh K (rotated) and V (NaN off the rows), queries before
    RoPE, hidden inputs; and the last layer's output."""

    cache: Cache = field(default_factory=list)
    fresh: Cache = field(default_factory=list)
    q_pre: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    output: Tensor = field(default_factory=lambda: torch.empty(0))


def sparse_pass(
    reference: Reference,
    ids: Sequence[int],
    cached: Cache,
    rows: Sets,
    computed: Sets,
    keys: Sets,
    *,
    update: Update = overwrite,
    post: bool = False,
    last: Sequence[int] = (),
) -> Pass:
    """At layer l: hidden states of `rows[l]`, fresh K and V for `computed[l]`, combined with the
    stored ones before attention (`post`: attention sees the fresh ones, the cache gets the
    combined), attention to `keys[l]` up to the row's own index, outputs for the next layer's rows
    (`last` after the last layer)."""
    n, out = len(ids), Pass()
    nan = torch.tensor(float("nan"))
    x = reference.embed(ids)
    for layer in range(reference.layers):
        present = torch.zeros(n, dtype=torch.bool)
        present[torch.tensor(rows[layer], dtype=torch.long)] = True
        x = torch.where(present[:, None], x, nan)
        q_pre, k_pre, v = reference.project(layer, x)
        k = reference.rotate(k_pre, range(n), layer)
        seen = [tensor.clone() for tensor in cached[layer]]
        kept = [tensor.clone() for tensor in cached[layer]]
        for t in computed[layer]:
            for part, fresh in enumerate((k, v)):
                combined = update(fresh[t], cached[layer][part][t])
                seen[part][t] = fresh[t] if post else combined
                kept[part][t] = combined
        out.cache.append((kept[0], kept[1]))
        out.fresh.append((k, v))
        out.q_pre.append(q_pre)
        out.hidden.append(x)
        onward = list(rows[layer + 1]) if layer + 1 < reference.layers else list(last)
        x_next = torch.full_like(x, float("nan"))
        if onward:
            assert set(onward) <= set(rows[layer])
            visible = torch.tensor([[j <= t for j in keys[layer]] for t in onward])
            visible = visible & reference.within(layer, keys[layer], onward)
            q = reference.rotate(q_pre[onward], onward, layer)
            weights = reference.attention(q, seen[0][keys[layer]], visible, layer)
            attended = reference.mix(weights, seen[1][keys[layer]])
            x_next[onward] = reference.block_tail(layer, x[onward], attended)
        x = x_next
    out.output = x
    return out


# -- set algebra (Q6) -----------------------------------------------------------------------------


def hidden_sets(recomputed: Sets) -> Sets:
    """U_n = ∪_{n' >= n} R_{n'}: rule 1, a row that a layer recomputes needs all layers below."""
    return [
        sorted({t for above in recomputed[layer:] for t in above})
        for layer in range(len(recomputed))
    ]


def padding_sets(kept: Sets, hidden: Sets) -> Sets:
    """U_n ∖ G_n: stored KV that a layer reads for the rows' sake and drops afterwards."""
    return [sorted(set(u) - set(g)) for g, u in zip(kept, hidden, strict=True)]


def figure_5_cases(kept: Sets, recomputed: Sets, layer: int) -> tuple[set[int], ...]:
    """Tokens of cases ①–④ between a layer and the next one (paper, figure 5).

    ① fresh KV, no output: nothing above recomputes it. ② nothing to compute. ③ output from the
    stored KV: recomputed only above. ④ fresh KV and output.
    """
    here, onward = set(recomputed[layer]), set(hidden_sets(recomputed)[layer + 1])
    present = {*kept[layer], *kept[layer + 1]}
    return here - onward, present - here - onward, onward - here, here & onward
