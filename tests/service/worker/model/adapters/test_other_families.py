"""What families whose layers differ must hold to, and that mistakes in an adapter are noticed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from service.errors import ModelRefused
from service.records import Method
from service.worker.forward import selfcheck
from service.worker.methods.fusion.a3 import Method as A3
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.registry import make_eviction, make_fusion
from service.worker.model.adapters.base import DecoderAdapter, adapter_for
from service.worker.model.rope import RotaryTable
from tests.references.question_scout import question_scout
from tests.service.worker.engine.test_engine import greedy
from tests.service.worker.engines import A3 as ASK_A3
from tests.service.worker.engines import PIE, VANILLA, rig
from tests.service.worker.methods.eviction import test_stitched
from tests.service.worker.methods.eviction.harness import EXPECTED
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    PREFIXES,
    Q,
    S,
    Tiny,
    assert_close,
    assert_same,
    random_model,
    rope_of,
    tiny_config,
)

IDS = [*S, *D1, *D2, *D3, *Q]


def test_full_prefill_is_transformers_and_the_reference(other_family: Tiny) -> None:
    ours = other_family.stitch(Vanilla())
    theirs = other_family.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", ours.logits, theirs)
    assert_same("vanilla", ours, other_family.reference.vanilla(IDS))


@pytest.mark.parametrize("mode", PREFIXES)
def test_pie_is_the_reference(other_family: Tiny, mode: str) -> None:
    prefix = PREFIXES[mode]
    expected = other_family.reference.pie(other_family.prompt(prefix=prefix))
    assert_same("pie", other_family.stitch(Pie(), prefix=prefix), expected)


@pytest.mark.parametrize("ratio", [0.15, 0.5])
def test_a3_is_the_reference_and_full_prefill_at_ratio_1(other_family: Tiny, ratio: float) -> None:
    expected = other_family.reference.a3(other_family.prompt(), ratio)
    assert_same("a3", other_family.stitch(A3(ratio=ratio)), expected)
    full = other_family.reference.vanilla(IDS)
    assert_same("a3 at ratio 1", other_family.stitch(A3(ratio=1.0)), full)


def test_the_default_method_is_the_reference(other_family: Tiny) -> None:
    ours = other_family.stitch(make_fusion("question_scout", {}))  # type: ignore[arg-type]
    assert_same("scout", ours, question_scout(other_family.reference, other_family.prompt()))


def test_the_first_document_behind_the_system_prompt_is_exact(other_family: Tiny) -> None:
    ours, full = other_family.stitch(Pie(), prefix=S), other_family.stitch(Vanilla())
    end = len(S) + len(D1)
    for layer in range(other_family.adapter.layers):
        assert_close("first document: K", ours.k[layer][:end], full.k[layer][:end])
        assert_close("first document: V", ours.v[layer][:end], full.v[layer][:end])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_eviction_method_then_decoding(other_family: Tiny, name: str) -> None:
    rope = rope_of(other_family.model.config.model_type)
    test_stitched.check(other_family, rope, "pie", name, make_eviction(name, {"budget": 21}))


def test_answers_are_transformers_and_stored_chunks_are_read_again(other_family: Tiny) -> None:
    with rig(other_family) as running:
        tokens, _ = running.answer(VANILLA, max_tokens=8)
        assert tokens == greedy(other_family, IDS, 8)
        cold, _ = running.answer(ASK_A3)
        warm, report = running.answer(ASK_A3)
        assert [d.tier for d in report.documents] == ["memory"] * 3
        names = [running.submit(how) for how in (VANILLA, ASK_A3, PIE)]
        running.run()  # in one batch
        assert running.tokens(names[0]) == tokens[:6] == cold
        assert running.tokens(names[1]) == warm


def test_samkv_runs(other_family: Tiny) -> None:
    with rig(other_family) as running:
        running.precompute()
        tokens, report = running.answer(Method("samkv"))
        assert tokens and report.coverage <= 1


# -- mistakes ---------------------------------------------------------------------------------


def made(family: str) -> DecoderAdapter:
    return adapter_for(random_model(tiny_config(family, rope_of(family))))


def hook(name: str, function: object) -> Callable[[DecoderAdapter], None]:
    return lambda adapter: setattr(adapter, name, function)


def config(name: str, value: object) -> Callable[[DecoderAdapter], None]:
    """The adapter reads another value than the model was built with."""

    def change(adapter: DecoderAdapter) -> None:
        facts = {**adapter.config.to_dict(), name: value}
        adapter.config = SimpleNamespace(**facts)

    return change


def no_rotation(adapter: DecoderAdapter) -> None:
    adapter.ropes = [RotaryTable.none(adapter.ropes[0])] * adapter.layers


def all_rotate(adapter: DecoderAdapter) -> None:
    adapter.ropes = [adapter.ropes[0]] * adapter.layers


def per_head_norm(attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    wide = q.shape[-1]

    def norm(module: Any, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
        return scaled * module.weight[:wide]

    return norm(attention.q_norm, q), norm(attention.k_norm, k)


MISTAKES: list[tuple[str, str, Callable[[DecoderAdapter], None]]] = [
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
    ("phi3", "another scale", lambda adapter: setattr(adapter, "scale", adapter.scale * 1.1)),
]


@pytest.mark.parametrize(
    ("family", "mistake"),
    [(family, mistake) for family, _, mistake in MISTAKES],
    ids=[f"{family}: {what}" for family, what, _ in MISTAKES],
)
def test_a_mistake_is_refused_at_the_start(
    family: str, mistake: Callable[[DecoderAdapter], None]
) -> None:
    adapter = made(family)
    selfcheck.check(adapter)
    mistake(adapter)
    with pytest.raises(ModelRefused, match="differs"):
        selfcheck.check(adapter)
