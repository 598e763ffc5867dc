"""The start-up check accepts supported models and refuses one that differs in a detail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.model.families import decoder_for
from tests.service.worker.tiny import Tiny, random_model, tiny_config


def test_every_family_passes(every_model: Tiny) -> None:
    theirs, stitched = selfcheck.check(every_model.decoder)
    assert theirs < 1e-4 and stitched < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes(dtype: torch.dtype) -> None:
    selfcheck.check(decoder_for(random_model(tiny_config("llama"), dtype=dtype)))


def test_another_attention_scale_is_refused() -> None:
    decoder = decoder_for(random_model(tiny_config("llama")))
    decoder.scale *= 1.1
    with pytest.raises(ModelRefused, match="differs from transformers"):
        selfcheck.check(decoder)


def test_other_rotary_frequencies_are_refused() -> None:
    decoder = decoder_for(random_model(tiny_config("qwen2")))
    decoder.ropes[0].cos, decoder.ropes[0].sin = decoder.ropes[0].sin, decoder.ropes[0].cos
    with pytest.raises(ModelRefused):
        selfcheck.check(decoder)


def test_a_rotation_that_does_not_compose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right in a full prefill, wrong when stored keys are moved: only stitching shows it."""
    decoder = decoder_for(random_model(tiny_config("llama")))
    rotate = decoder.ropes[0].rotate

    def shifted(x: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        # `out` is given only where stored keys are placed.
        return rotate(x, positions if out is None else positions + 1, out)

    monkeypatch.setattr(decoder.ropes[0], "rotate", shifted)
    with pytest.raises(ModelRefused, match="stitched prompt differs"):
        selfcheck.check(decoder)
