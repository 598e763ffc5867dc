"""The reference decoder agrees with transformers' own eager forward."""

from __future__ import annotations

import pytest
import torch

from tests.references.prefill import Reference
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    Q,
    S,
    Tiny,
    assert_close,
    random_model,
    tiny_config,
)

IDS = [*S, *D1, *D2, *D3, *Q]


def test_reference_is_transformers(any_model: Tiny) -> None:
    """Logits of all positions and attention weights of all layers, every family and RoPE."""
    theirs = any_model.model(torch.tensor([IDS]), output_attentions=True)
    ours = any_model.reference.vanilla(IDS)
    assert_close("reference is transformers: logits", ours.logits, theirs.logits[0])
    for layer, weights in enumerate(theirs.attentions):
        assert_close("reference is transformers: attention", ours.attention[layer], weights[0])


@pytest.mark.parametrize("tied", [False, True])
def test_head_tied_or_not(tied: bool) -> None:
    for family in ("llama", "qwen2"):
        made = random_model(tiny_config(family, tie_word_embeddings=tied))
        ours = Reference(made.state_dict(), made.config.to_dict()).vanilla(IDS)
        assert_close(f"head, tied {tied}", ours.logits, made(torch.tensor([IDS])).logits[0])


def test_decode_is_a_longer_prompt(any_family: Tiny) -> None:
    """Decoding with nothing evicted gives the logits of the vanilla pass over all tokens."""
    more = [30, 60, 90]
    whole = any_family.reference.vanilla([*IDS, *more])
    steps = any_family.reference.decode(any_family.reference.vanilla(IDS), more)
    assert_close("reference decode", torch.stack(steps), whole.logits[-3:])
