"""Every family through the layer loop is transformers' forward; what cannot be exact is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.supported import WINDOW_BY_LAYER, WINDOW_IN_EVERY_LAYER
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    FAMILIES,
    LATENT,
    Q,
    S,
    Tiny,
    assert_close,
    assert_same,
    random_model,
    rope_of,
    tiny_config,
    tiny_of,
)

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]


def test_vanilla_is_transformers_forward(every_model: Tiny) -> None:
    """Max abs logit difference at most 1e-4, every family and RoPE."""
    theirs = every_model.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", every_model.stitch(Vanilla()).logits, theirs)


def test_vanilla_is_the_reference(every_model: Tiny) -> None:
    """And K (rotated) and V of every token at every layer are the reference's."""
    assert_same("vanilla", every_model.stitch(Vanilla()), every_model.reference.vanilla(IDS))


def test_stored_keys_are_before_rope_and_after_bias_and_norm(every_model: Tiny) -> None:
    """What precompute captures is the reference's k before rotation, and its v."""
    ours, expected = every_model.precompute(D1, S), every_model.reference.precompute(D1, S)
    for layer in range(every_model.decoder.layers):
        assert_close("captured K before RoPE", ours.k[layer], expected.k_pre[layer])
        assert_close("captured V", ours.v[layer], expected.v[layer])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_head_tied_or_not(family: str, tied: bool) -> None:
    made = tiny_of(random_model(tiny_config(family, tie_word_embeddings=tied)))
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LATENT])
@pytest.mark.parametrize("kv_heads", [1, 6])
def test_one_kv_head_and_no_grouping(family: str, kv_heads: int) -> None:
    """Groups of 6 and of 1 (MHA)."""
    made = tiny_of(random_model(tiny_config(family, num_key_value_heads=kv_heads)))
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)


def test_bias_free_llama() -> None:
    made = tiny_of(random_model(tiny_config("llama", attention_bias=False, mlp_bias=False)))
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_near_float32(family: str) -> None:
    """The same weights in bf16: the loop loses no more than bf16 itself does
    (transformers' own bf16 forward is the measure)."""
    exact = random_model(tiny_config(family, rope_of(family)))
    expected = exact(torch.tensor([IDS])).logits[0, -1]
    rounded = random_model(tiny_config(family, rope_of(family)), dtype=torch.bfloat16)
    theirs = float((rounded(torch.tensor([IDS])).logits[0, -1].float() - expected).abs().max())
    ours = tiny_of(rounded).stitch(Vanilla()).logits
    assert ours.dtype == torch.float32
    assert float((ours - expected).abs().max()) <= 2 * theirs + 1e-3


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": len(IDS),
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_longrope_is_served_where_it_does_not_change(family: str) -> None:
    """Up to the original length, by the short factors; one token more and transformers' rotation is
    another one."""
    changes = {}
    if family == "phi3":
        changes = {"original_max_position_embeddings": len(IDS), "partial_rotary_factor": 1.0}
    made = tiny_of(random_model(tiny_config(family, LONGROPE, **changes)))
    assert made.decoder.max_context == len(IDS)
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)
    longer = [*IDS, 44]
    changed = made.model(torch.tensor([longer])).logits[0, len(IDS) - 1]
    assert float((changed - theirs).abs().max()) > 1e-3


def test_dynamic_rope_is_served_where_it_does_not_change() -> None:
    made = tiny_of(random_model(tiny_config("llama", DYNAMIC, max_position_embeddings=len(IDS))))
    assert made.decoder.max_context == len(IDS)
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)


def test_unknown_rotations_are_refused() -> None:
    """The message names the type and the served ones."""
    made = random_model(tiny_config("llama"))
    made.config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1.0}
    with pytest.raises(
        ModelRefused, match=r"spiral of .* is not served.*yarn.*longrope"
    ) as refusal:
        decoder_for(made)
    assert refusal.value.field == "model"


def test_rope_scaling_of_older_config_files() -> None:
    """`rope_scaling` with `type`, as hub configs before transformers 5 write it."""
    facts = tiny_config("llama").to_dict()
    theta = facts.pop("rope_parameters")["rope_theta"]
    old = {**facts, "rope_theta": theta, "rope_scaling": {"type": "linear", "factor": 4.0}}
    made = tiny_of(random_model(FAMILIES["llama"].from_dict(old)))
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    assert made.reference.frequencies[0] == 0.25
    assert_close("vanilla is transformers", made.stitch(Vanilla()).logits, theirs)
    dynamic = {**old, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    assert decoder_for(random_model(FAMILIES["llama"].from_dict(dynamic))).max_context == 256


def test_unknown_family_is_refused() -> None:
    """The message names the type and every served family."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=10))
    with pytest.raises(ModelRefused) as refusal:
        decoder_for(model)
    assert "'gpt2'" in refusal.value.message
    assert all(family in refusal.value.message for family in FAMILIES)


def test_refused_base_is_no_family() -> None:
    """`base.py` lies beside the families but is none."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=10))
    model.config.model_type = "base"
    with pytest.raises(ModelRefused, match="'base'"):
        decoder_for(model)


SLIDING: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 9},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    "phi3": {"sliding_window": 9},
}


@pytest.mark.parametrize("family", SLIDING)
def test_layers_slide_as_in_transformers(family: str) -> None:
    """The prompt is four times as long as the window, and the context as without one."""
    made = tiny_of(random_model(tiny_config(family, **SLIDING[family])))
    assert made.decoder.max_context == 256
    theirs = made.model(torch.tensor([IDS])).logits[0, -1]
    ours = made.stitch(Vanilla())
    assert_close("sliding window", ours.logits, theirs)
    assert_same("vanilla", ours, made.reference.vanilla(IDS))


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("llama", {"sliding_window": 9}, ()),
        ("granite", {"sliding_window": 9, "layer_types": ["sliding_attention"] * 5}, ()),
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": 9}, (9,) * 5),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 9}, ()),
        ("qwen2", SLIDING["qwen2"], (None, None, 9, 9, 9)),
        ("qwen2", {**SLIDING["qwen2"], "max_window_layers": 5}, ()),
        ("qwen3_moe", {"use_sliding_window": True}, (9,) * 5),
        ("qwen3_moe", {}, ()),
        ("gemma2", {}, (9, None, 9, None, 9)),
    ],
)
def test_a_window_is_what_transformers_makes_of_it(
    family: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    """And one that it does not look at is ignored."""
    made = random_model(tiny_config(family, **changes))
    decoder = decoder_for(made)
    assert decoder.windows == windows
    theirs = made(torch.tensor([IDS])).logits[0, -1]
    assert_close("a window", tiny_of(made).stitch(Vanilla()).logits, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_are_looked_for_in_these_families(family: str) -> None:
    """What `kvstitch doctor` says without torch is what the decoders do."""
    facts: dict[str, Any] = {"sliding_window": 9, "use_sliding_window": True}
    facts["no_rope_layers"] = [1, 0, 1, 0, 0]
    if family in WINDOW_BY_LAYER:
        facts["layer_types"] = ["full_attention", "sliding_attention", *["full_attention"] * 3]
    made = tiny_config(family, **facts)
    windows = decoder_for(random_model(made)).windows
    if family in WINDOW_IN_EVERY_LAYER:
        assert windows == (9,) * 5
    else:
        assert windows == ((None, 9, None, None, None) if family in WINDOW_BY_LAYER else ())


@pytest.mark.parametrize("family", FAMILIES)
def test_facts(family: str) -> None:
    """What the rest of the worker reads off a decoder."""
    decoder = decoder_for(random_model(tiny_config(family)))
    assert decoder.family == family
    kv_heads = 1 if family in LATENT else 2
    assert (decoder.layers, decoder.heads, decoder.head_dim) == (5, 6, 16)
    assert decoder.kv_heads == kv_heads
    assert decoder.kv_bytes_per_token == 2 * 5 * kv_heads * 16 * 4
    assert decoder.end_ids == {0}
    scales = {"granite": 0.2, "gemma2": 24**-0.5, "gemma3_text": 24**-0.5}
    assert decoder.scale == pytest.approx(scales.get(family, 0.25))


def test_several_end_tokens() -> None:
    config = tiny_config("llama", eos_token_id=[0, 4])
    model = AutoModelForCausalLM.from_config(config)
    assert decoder_for(model).end_ids == {0, 4}
