"""By how much stored KV is wrong where fresh KV is known, on a CPU: of both in one call.

torch gathers the tokens of one document after the other, for keys and for values.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from service.worker.kernels.cpu import native
from service.worker.kernels.cpu.rotation import are_rows, segment_struct

LANES = 16  # the same constant as in the C source

KV = tuple[Tensor, Tensor]
"""Keys before RoPE and values, each `[tokens, kv_heads, head_dim]`."""


def supports(stored: Sequence[KV], fresh: KV) -> bool:
    """Return whether the kernel is there and takes such tensors."""
    _, heads, d = fresh[0].shape
    return (
        native.module() is not None
        and d % LANES == 0
        and all(are_rows(x, (x.shape[0], heads, d)) for kv in (*stored, fresh) for x in kv)
    )


def gaps(
    stored: Sequence[KV], fresh: KV, *, firsts: Sequence[int], tokens: Tensor, places: Tensor
) -> Tensor:
    """Return fresh minus stored keys and values `[2, p, kv_heads * head_dim]` fp32.

    Args:
        stored: of every document.
        fresh: of the computed rows.
        firsts: which of the tokens is the first of each document.
        tokens: their numbers in their documents `[p]`, document by document.
        places: of these among the computed rows `[p]`.
    """
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
