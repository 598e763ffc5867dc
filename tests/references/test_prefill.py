"""The reference decoder agrees with transformers' own eager forward."""

from __future__ import annotations

import pytest
import torch

from tests.references.prefill import Reference, bottom_right_mask
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    ROPES,
    Q,
    S,
    Tiny,
    assert_close,
    difference,
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


def test_attention_is_not_flat(any_model: Tiny) -> None:
    """Otherwise a wrong mask or position would hardly move a logit, and no check would see it."""
    n = len(IDS)
    for weights in any_model.reference.vanilla(IDS).attention:
        assert float(weights[:, -1].max(-1).values.median()) > 4 / n


@pytest.mark.parametrize("rope", [r for r in ROPES if r != "default"])
def test_scaled_ropes_differ_from_the_default(rope: str) -> None:
    """The chosen configs reach the scaled part of the formulas, and not only that part."""
    made = random_model(tiny_config("llama", rope)).config.to_dict()
    scaled = Reference({}, made).frequencies
    plain = [made["rope_parameters"]["rope_theta"] ** (-2 * i / 16) for i in range(8)]
    slowed = [f / s for f, s in zip(plain, scaled, strict=True)]
    assert max(slowed) == pytest.approx(made["rope_parameters"]["factor"])
    if rope != "linear":
        assert min(slowed) == pytest.approx(1)
        assert any(1.01 < s < max(slowed) - 0.01 for s in slowed)


def test_methods_differ_from_one_another(any_family: Tiny) -> None:
    """Equality of two methods is only worth proving where the others would fail it."""
    reference, prompt = any_family.reference, any_family.prompt()
    results = {
        "vanilla": reference.vanilla(prompt.ids),
        "pie": reference.pie(prompt),
        "pie exact 2": reference.pie(prompt, 2),
        "full_reuse": reference.full_reuse(prompt),
        "a3": reference.a3(prompt, 0.15),
        "wrong mask": reference.forced_rows(prompt, [8, 12, 20], mask=bottom_right_mask),
        "right mask": reference.forced_rows(prompt, [8, 12, 20]),
    }
    names = list(results)
    for i, a in enumerate(names):
        for b in names[:i]:
            gap = difference(results[a].logits[-1], results[b].logits[-1])
            assert gap > 1e-2, f"{a} and {b} differ by {gap:.2g} only"
