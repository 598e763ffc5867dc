"""Mistakes in a decoder are noticed by the start-up check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.rope import RotaryTable
from tests.service.worker.tiny import random_model, rope_of, tiny_config


def made(family: str) -> DecoderModel:
    return decoder_for(random_model(tiny_config(family, rope_of(family))))


def hook(name: str, function: object) -> Callable[[DecoderModel], None]:
    return lambda decoder: setattr(decoder, name, function)


def config(name: str, value: object) -> Callable[[DecoderModel], None]:
    """The decoder reads another value than the model was built with."""

    def change(decoder: DecoderModel) -> None:
        facts = {**decoder.config.to_dict(), name: value}
        decoder.config = SimpleNamespace(**facts)

    return change


def no_rotation(decoder: DecoderModel) -> None:
    decoder.ropes = [RotaryTable.none(decoder.ropes[0])] * decoder.layers


def all_rotate(decoder: DecoderModel) -> None:
    decoder.ropes = [decoder.ropes[0]] * decoder.layers


def rules(**changes: Any) -> Callable[[DecoderModel], None]:
    """Every layer's rule with other facts."""

    def change(decoder: DecoderModel) -> None:
        decoder.rules = [replace(rule, **changes) for rule in decoder.rules]

    return change


def window_off(by: int) -> Callable[[DecoderModel], None]:
    def change(decoder: DecoderModel) -> None:
        decoder.rules = [
            rule if rule.window is None else replace(rule, window=rule.window + by)
            for rule in decoder.rules
        ]

    return change


def other_layers_slide(decoder: DecoderModel) -> None:
    decoder.rules = [decoder.rules[1], *decoder.rules[:-1]]


def swapped_ropes(decoder: DecoderModel) -> None:
    first, second = decoder.ropes[:2]
    decoder.ropes = [second if rope is first else first for rope in decoder.ropes]


def one_rope(decoder: DecoderModel) -> None:
    decoder.ropes = [decoder.ropes[0]] * decoder.layers


def own_order(decoder: DecoderModel) -> None:
    decoder.head_order = None


def sinks_in_reverse(decoder: DecoderModel) -> None:
    decoder.rules = [
        replace(rule, sinks=rule.sinks.flip(0)) for rule in decoder.rules if rule.sinks is not None
    ]


def turned_apart(decoder: DecoderModel) -> None:
    decoder.projections = [
        replace(each, qkv=replace(each.qkv, interleaved=False))  # type: ignore[type-var]
        for each in decoder.projections
    ]


def mlp_after_attention(decoder: DecoderModel) -> None:
    def steps(layer: int, x: Tensor, attended: Tensor, *, batch: bool = False) -> Any:
        x = x + decoder.projections[layer].output(attended, batch=batch)
        block = decoder.blocks[layer]
        return x + (yield from decoder.mlp(layer, decoder.attention_input(block, x), batch))

    decoder.finish_steps = steps  # type: ignore[method-assign]


def norms_swapped(decoder: DecoderModel) -> None:
    """The norm before the MLP behind attention, and the other way round."""
    for block in decoder.blocks:
        before, behind = block.pre_feedforward_layernorm, block.post_attention_layernorm
        decoder.mlp_input = lambda block, x: block.post_attention_layernorm(x)  # type: ignore
        decoder.attention_residual = (  # type: ignore
            lambda block, attended: block.pre_feedforward_layernorm(attended)
        )
        assert not before.weight.equal(behind.weight)


def norm_without_one(decoder: DecoderModel) -> None:
    def plain(block: Any, x: Tensor) -> Tensor:
        norm = block.input_layernorm
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight

    decoder.attention_input = plain  # type: ignore[method-assign]


def per_head_norm(attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    wide = q.shape[-1]

    def norm(module: Any, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        return scaled * module.weight[:wide]

    return norm(attention.q_norm, q), norm(attention.k_norm, k)


MISTAKES: list[tuple[str, str, Callable[[DecoderModel], None]]] = [
    ("granite", "no residual multiplier", hook("mlp_residual", lambda block, out: out)),
    ("granite", "no attention multiplier", hook("attention_residual", lambda block, out: out)),
    ("granite", "no embedding multiplier", hook("_embedding", 1.0)),
    ("granite", "no scaling of logits", hook("_logits", 1.0)),
    ("olmo2", "norm per head", hook("normalise", per_head_norm)),
    ("olmo2", "no norm behind attention", hook("attention_residual", lambda block, out: out)),
    ("olmo2", "no norm behind the MLP", hook("mlp_residual", lambda block, out: out)),
    ("smollm3", "every layer rotates", all_rotate),
    ("smollm3", "no layer rotates", no_rotation),
    ("mixtral", "unnormalised experts", hook("router_weights", lambda chosen, dtype: chosen)),
    ("mixtral", "one expert less", config("num_experts_per_tok", 1)),
    ("qwen3_moe", "unnormalised experts", config("norm_topk_prob", False)),
    ("qwen3_moe", "no norm of heads", hook("normalise", lambda attention, q, k: (q, k))),
    ("qwen2_moe", "normalised experts", config("norm_topk_prob", True)),
    ("qwen2_moe", "one expert more", config("num_experts_per_tok", 3)),
    ("mixtral", "a window one too wide", window_off(1)),
    ("mixtral", "a window one too narrow", window_off(-1)),
    ("ministral", "other layers slide", other_layers_slide),
    ("qwen2_moe", "no window", rules(window=None)),
    ("smollm3", "a window one too wide", window_off(1)),
    ("gemma", "embeddings as they are", hook("_embedding", 1.0)),
    ("gemma", "norms do not add one", norm_without_one),
    ("gemma2", "embeddings as they are", hook("_embedding", 1.0)),
    ("gemma2", "norms in another order", norms_swapped),
    ("gemma2", "no soft cap of scores", rules(soft_cap=None)),
    ("gemma2", "no soft cap of logits", config("final_logit_softcapping", None)),
    ("gemma2", "scale of the head's size", hook("scale", 0.25)),
    ("gemma2", "a window one too wide", window_off(1)),
    ("gemma2", "a window one too narrow", window_off(-1)),
    ("gemma3_text", "RoPEs swapped", swapped_ropes),
    ("gemma3_text", "one RoPE for all layers", one_rope),
    ("gemma3_text", "no norm of heads", hook("normalise", lambda attention, q, k: (q, k))),
    ("gemma3_text", "a window one too wide", window_off(1)),
    ("gpt_oss", "no sinks", rules(sinks=None)),
    ("gpt_oss", "sinks of other heads", sinks_in_reverse),
    ("gpt_oss", "another expert more", config("num_experts_per_tok", 3)),
    ("gpt_oss", "no clamp", config("swiglu_limit", 1e9)),
    ("gpt_oss", "a window one too narrow", window_off(-1)),
    ("olmo3", "RoPEs swapped", swapped_ropes),
    ("olmo3", "other layers slide", other_layers_slide),
    ("cohere", "MLP after attention", mlp_after_attention),
    ("cohere", "RoPE on halves", own_order),
    ("cohere", "logits as they are", config("logit_scale", 1.0)),
    ("cohere2", "every layer rotates", one_rope),
    ("cohere2", "a window one too wide", window_off(1)),
    ("phi3", "all of a head rotates", own_order),
    ("deepseek_v2", "one expert more", config("num_experts_per_tok", 3)),
    ("deepseek_v2", "experts not scaled", config("routed_scaling_factor", 1.0)),
    ("deepseek_v2", "scale of the row", hook("scale", 10**-0.5)),
    ("deepseek_v3", "one group more", config("topk_group", 3)),
    ("deepseek_v3", "no rotation", no_rotation),
    ("deepseek_v3", "halves turn together", turned_apart),
    ("glm4_moe_lite", "unnormalised experts", config("norm_topk_prob", False)),
    ("phi3", "another scale", lambda decoder: setattr(decoder, "scale", decoder.scale * 1.1)),
]


@pytest.mark.parametrize(
    ("family", "mistake"),
    [(family, mistake) for family, _, mistake in MISTAKES],
    ids=[f"{family}: {what}" for family, what, _ in MISTAKES],
)
def test_a_mistake_is_refused_at_the_start(
    family: str, mistake: Callable[[DecoderModel], None]
) -> None:
    decoder = made(family)
    selfcheck.check(decoder)
    mistake(decoder)
    with pytest.raises(ModelRefused, match="differs"):
        selfcheck.check(decoder)
