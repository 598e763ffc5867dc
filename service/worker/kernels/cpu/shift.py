"""By how much stored KV is wrong where fresh KV is known, and the others' shift, on a CPU.

torch gathers the tokens of one document after the other, first for keys and then for values, and
passes over all rows three times for each. The kernels (`src/shift.c`) do the same, bit by bit, in a
call each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from service.worker.kernels.cpu import native
from service.worker.kernels.cpu.rotation import are_rows, is_cache, layer_struct, segment_struct

MOST = 512  # the same constant as in the C source
# Elements: fewer are shifted before other threads have woken up.
MIN_PARALLEL = 1 << 18

KV = tuple[Tensor, Tensor]
"""Keys before RoPE and values, each `[tokens, kv_heads, head_dim]`."""


def supports(stored: Sequence[KV], fresh: KV, cache: KV) -> bool:
    """Return whether the kernels are there and take such tensors; cache `[kv_heads, n,
    head_dim]`."""
    heads, _, d = cache[0].shape
    return (
        is_cache(*cache)
        and d <= MOST
        and all(are_rows(x, (x.shape[0], heads, d)) for kv in (*stored, fresh) for x in kv)
    )


def gaps(
    stored: Sequence[KV], fresh: KV, *, firsts: Sequence[int], tokens: Tensor, places: Tensor
) -> Tensor:
    """Return fresh minus stored keys and values `[2, p, kv_heads * head_dim]` fp32 of tokens by
    their numbers in their documents, which are at `places` among the computed rows; `firsts`
    says with which each document begins."""
    _, heads, d = fresh[0].shape
    out = torch.empty(2, tokens.shape[0], heads * d)
    documents = array("q")
    for first, (k, v) in zip(firsts, stored, strict=True):
        documents.extend(segment_struct(first, k, v))
    native.call(
        "shift_gaps",
        *(documents, len(stored), array("q", segment_struct(0, *fresh))),
        *(tokens, places, out, tokens.shape[0], heads, d),
    )
    return out


def move(
    keys: Tensor | None,
    values: Tensor | None,
    cache: KV,
    *,
    document_of: Tensor,
    weights: Tensor,
    first: int,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> None:
    """Shift rows of a layer's cache from `first` on: by their document's `keys` before RoPE and
    `values` `[documents, kv_heads * head_dim]`, None: they stay, times their weight bfloat16."""
    heads, _, d = cache[0].shape
    count = positions.shape[0]
    native.call(
        "shift_rows",
        *(keys, values, document_of, weights, positions, first, count),
        *(layer_struct(*cache), cos, sin),
        torch.get_num_threads() if count * heads * d >= MIN_PARALLEL else 1,
    )
