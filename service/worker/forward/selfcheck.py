"""The start-up check: the adapter computes what transformers computes, and stitching is exact.

A model whose architecture differs in any detail (a norm, a bias, a RoPE variant, a window) must be
refused instead of answering wrongly. So two facts are tested on a probe prompt:
1. the layer loop's full prefill gives the logits of transformers' own forward pass;
2. a document that is precomputed behind S, stored before RoPE and placed at its position gives the
   logits of a full prefill (exact in theory, docs/specification.md T4). This tests capture,
   rotation and placement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.errors import ModelRefused
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import Prefix, PromptLayout
from service.worker.core.steps import run
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.adapters.base import DecoderAdapter

PROBE = (5, 24, 8)  # tokens of S, D, Q
# Windows up to so many tokens are probed: D is then longer than the widest of them. A longer probe
# would take minutes where a large model runs on a CPU.
LARGEST_PROBED_WINDOW = 512
# Bounds on ‖difference‖ / ‖logits‖, both centred: far above rounding errors, and far below the
# difference that a wrong architecture causes.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}

# A library may round activations to 8 bits: what differs in its last bits then rounds differently,
# and W8A8 of a tiny model is 0.07 apart in bfloat16.
OF_LIBRARIES = 2
"""Factor of the bound for checkpoints that a library has quantised."""


@dataclass
class _Captured:
    """Keys before RoPE and values of some rows, per layer."""

    k: list[Tensor]
    v: list[Tensor]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]


@torch.inference_mode()
def check(adapter: DecoderAdapter) -> tuple[float, float]:
    """Runs the check.

    Returns:
        The two relative differences: of full prefill from transformers, and of a stitched prompt
        from full prefill.

    Raises:
        ModelRefused: one of them is too large.
    """
    s, d, q = PROBE
    probed = [window for window in adapter.windows if window and window <= LARGEST_PROBED_WINDOW]
    d = min(max([d, *(window + d for window in probed)]), adapter.max_context - s - q)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, adapter.vocabulary, (s + d + q,), generator=random).tolist()
    system, document, question = ids[:s], ids[s : s + d], ids[s + d :]
    device = adapter.device

    theirs = adapter.model(torch.tensor([ids], device=device)).logits[0, -1].float()
    full = PromptLayout.of(system, [document], question, uncached=[True, True], device=device)
    captured = _Captured([], [])

    def capture(view: LayerView) -> None:
        captured.k.append(view.fresh_k.clone())
        captured.v.append(view.fresh_v.clone())

    scratch = ScratchKV(adapter, full.tokens)
    ours = run(prefill(adapter, full, [None, None], Vanilla(), scratch, capture=capture)).logits
    parts = [
        _Captured([k[a:b] for k in captured.k], [v[a:b] for v in captured.v])
        for a, b in ((0, s), (s, s + d))
    ]
    cached = PromptLayout.of(
        system,
        [document],
        question,
        uncached=[False, False],
        prefixes=[Prefix(system)],
        device=device,
    )
    stitched = run(prefill(adapter, cached, parts, Pie(), scratch)).logits

    against_theirs, against_full = _distance(ours, theirs), _distance(stitched, ours)
    by_library = getattr(adapter.config, "quantization_config", None) is not None
    bound = TOLERANCE[adapter.dtype] * (OF_LIBRARIES if by_library else 1)
    for difference, what in (
        (against_theirs, "its full prefill differs from transformers' forward"),
        (against_full, "a stitched prompt differs from its full prefill"),
    ):
        if not difference <= bound:
            raise ModelRefused(
                f"start-up check of {adapter.family} failed: {what} by {difference:.2g} "
                f"(relative, at most {bound:g}); this model cannot be served correctly",
                field="model",
            )
    return against_theirs, against_full


def _distance(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a - b).norm() / b.norm().clamp_min(1e-12))
