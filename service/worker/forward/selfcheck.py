"""The start-up check: this adapter, on this model, equals transformers; stitching equals prefill.

Two facts are tested on a probe prompt, so that an architecture that differs in any detail (a norm,
a bias, a RoPE variant) is refused instead of answering wrongly:
1. the layer loop's full prefill gives the logits of transformers' own forward;
2. a document precomputed behind S, stored before RoPE and moved to its place gives the logits of
   full prefill (exact in theory: METHODS T4), which exercises capture, rotation and placement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.errors import ModelRefused
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import run
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.adapters.base import DecoderAdapter

PROBE = (5, 24, 8)  # tokens of S, D, Q
# Bounds on ‖difference‖ / ‖logits‖, both centred: far above rounding, far below a wrong model.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass
class _Captured:
    """Keys before RoPE and values of a prompt's tail, per layer."""

    k: list[Tensor]
    v: list[Tensor]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]


@torch.inference_mode()
def check(adapter: DecoderAdapter) -> tuple[float, float]:
    """The two relative differences. Raises ModelRefused if either is too large."""
    s, d, _ = PROBE
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, adapter.vocabulary, (sum(PROBE),), generator=random).tolist()
    system, document, question = ids[:s], ids[s : s + d], ids[s + d :]
    device = adapter.device

    theirs = adapter.model(torch.tensor([ids], device=device)).logits[0, -1].float()
    full = PromptLayout.of(system, [document], question, uncached=[True, True], device=device)
    captured = _Captured([], [])

    def capture(view: LayerView) -> None:
        captured.k.append(view.fresh_k.clone())
        captured.v.append(view.fresh_v.clone())

    # One scratch per layer would be a pool; the loop needs only the current layer.
    scratch = ScratchKV(adapter, full.tokens)
    ours = run(prefill(adapter, full, [None, None], Vanilla(), scratch, capture=capture)).logits
    parts = [
        _Captured([k[a:b] for k in captured.k], [v[a:b] for v in captured.v])
        for a, b in ((0, s), (s, s + d))
    ]
    warm = PromptLayout.of(
        system, [document], question, uncached=[False, False], offset=s, device=device
    )
    stitched = run(prefill(adapter, warm, parts, Pie(), scratch)).logits

    against_theirs, against_full = _distance(ours, theirs), _distance(stitched, ours)
    bound = TOLERANCE[adapter.dtype]
    for found, what in (
        (against_theirs, "its full prefill differs from transformers' forward"),
        (against_full, "a stitched prompt differs from its full prefill"),
    ):
        if not found <= bound:
            raise ModelRefused(
                f"start-up check of {adapter.family} failed: {what} by {found:.2g} "
                f"(relative, at most {bound:g}); this model cannot be served correctly",
                field="model",
            )
    return against_theirs, against_full


def _distance(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a - b).norm() / b.norm().clamp_min(1e-12))
