"""The start-up checks: the decoder computes what transformers computes, and stitching is exact.

A model whose architecture differs in any detail must be refused instead of answering wrongly. So on
a probe prompt the layer loop's full prefill must give the logits of transformers' own forward pass,
and a document that is precomputed behind S, stored before RoPE and placed at its position those of
a full prefill (docs/specification.md T4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from kvstitch.service.worker.forward.kv_placement import LayerViews
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.kernels.cpu import linear_fp32, measured, native
from kvstitch.service.worker.layout import Prefix, PromptLayout
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.attention import kernel_is_fast
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.rope import static_positions
from kvstitch.service.worker.steps import run

PROBE = (5, 24, 8)  # tokens of S, D, Q
# A window of up to so many tokens is probed: D is then longer. A longer probe
# would take minutes where a large model runs on a CPU.
LARGEST_PROBED_WINDOW = 512
# Bounds on ‖difference‖ / ‖logits‖, both centred: far above rounding errors, and far below the
# difference that a wrong architecture causes.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}

# A library may round activations to 8 bits: what differs in its last bits then rounds differently,
# and W8A8 of a tiny model is 0.07 apart in bfloat16.
OF_LIBRARIES = 2
"""Factor of the bound for checkpoints that a library has quantised."""


@torch.inference_mode()
def check(decoder: DecoderModel) -> tuple[float, float]:
    """Run the check; return by how much full prefill differs from transformers, and a stitched
    prompt from full prefill (relative).

    Raises:
        ModelRefused: one of them is too large.
    """
    theirs = transformers_logits(decoder.model)
    ours, stitched = probed(decoder)
    against_theirs = _distance(ours, theirs.to(ours.device))
    against_full = _distance(stitched, ours)
    by_library = getattr(decoder.config, "quantization_config", None) is not None
    bound = TOLERANCE[decoder.dtype] * (OF_LIBRARIES if by_library else 1)
    for difference, what in (
        (against_theirs, "its full prefill differs from transformers' forward"),
        (against_full, "a stitched prompt differs from its full prefill"),
    ):
        if not difference <= bound:
            raise ModelRefused(
                f"start-up check of {decoder.family} failed: {what} by {difference:.2g} "
                f"(relative, at most {bound:g}); this model cannot be served correctly",
                field="model",
            )
    return against_theirs, against_full


@torch.inference_mode()
def transformers_logits(model: Any) -> Tensor:
    """Return logits `[vocabulary]` of the probe's last token by transformers' forward pass."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([_probe_ids(model.config)], device=device)
    logits: Tensor = model(ids).logits[0, -1].float()
    return logits


@torch.inference_mode()
def probed(decoder: DecoderModel) -> tuple[Tensor, Tensor]:
    """Return the last token's logits `[vocabulary]` by full prefill, and stitched."""
    ids = _probe_ids(decoder.model.config)
    s, _, q = PROBE
    d = len(ids) - s - q
    system, document, question = ids[:s], ids[s : s + d], ids[s + d :]
    device = decoder.device
    full = PromptLayout.of(system, [document], question, uncached=[True, True], device=device)
    if decoder.mixers:
        return _probed_hybrid(decoder, full)
    captured: list[tuple[Tensor, Tensor]] = []

    def capture(view: LayerView) -> None:
        captured.append((view.fresh_k.clone(), view.fresh_v.clone()))

    scratch = ScratchKV(decoder, full.tokens)
    ours = run(prefill(decoder, full, [None, None], Vanilla(), scratch, capture=capture)).logits
    parts = [LayerViews([(k[a:b], v[a:b]) for k, v in captured]) for a, b in ((0, s), (s, s + d))]
    cached = PromptLayout.of(
        system, [document], question,
        uncached=[False, False], prefixes=[Prefix(system)], device=device,
    )  # fmt: skip
    return ours, run(prefill(decoder, cached, parts, Pie(), scratch)).logits


def _probed_hybrid(decoder: DecoderModel, full: PromptLayout) -> tuple[Tensor, Tensor]:
    """`probed` with chunks as they are stored, for what mixers make of S and D."""
    scratch = ScratchKV(decoder, full.tokens)
    ours = run(prefill(decoder, full, [None, None], Vanilla(), scratch)).logits
    ids, addressing = full.ids.tolist(), Addressing(decoder, fingerprint="probe", codec="raw")
    system, document = (ids[s.start : s.end] for s in full.segments)
    addresses = addressing.system(system, ""), addressing.document(document, "system", system, "")
    chunks = ChunkPrefill(decoder)
    parts = [run(chunks.compute(address)).chunk for address in addresses]
    cached = PromptLayout.of(
        system, [document], ids[full.question_start :],
        uncached=[False, False], prefixes=[Prefix(system)], device=decoder.device,
    )  # fmt: skip
    scratch = ScratchKV(decoder, full.tokens)
    return ours, run(prefill(decoder, cached, parts, Pie(), scratch)).logits


def cpu_choices() -> dict[str, tuple[float, float]]:
    """Measure where this CPU's kernels compete with torch; seconds of both, by what was done."""
    if native.has_avx2_alone():
        linear_fp32.is_fast()
    if native.module() is not None:
        for many in (False, True):
            kernel_is_fast(many)
    return dict(measured.measured)


def _probe_ids(config: Any) -> list[int]:
    """Return the probe's S, D and Q, of a model with this configuration."""
    s, d, q = PROBE
    window = getattr(config, "sliding_window", None) or 0
    if window <= LARGEST_PROBED_WINDOW:
        d += window
    d = min(d, static_positions(config) - s - q)
    return random_ids(config, s + d + q)


def random_ids(config: Any, tokens: int) -> list[int]:
    """Return tokens of a probe prompt, the same every time."""
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, int(config.vocab_size), (tokens,), generator=random).tolist()


def _distance(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a - b).norm() / b.norm().clamp_min(1e-12))
