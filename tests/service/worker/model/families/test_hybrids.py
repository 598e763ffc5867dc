"""Hybrids: states of their mixers are composed as KV of attention is stitched."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    NemotronHConfig,
    Qwen3_5Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from kvstitch.service.errors import InvalidRequest, InvalidSetting, ModelRefused
from kvstitch.service.gateway.answers.methods import _built_in, chosen_method
from kvstitch.service.gateway.schemas.generate import MethodChoice
from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.layout import Prefix, PromptLayout
from kvstitch.service.worker.methods.bases.fusion import PromptShape, total_flops
from kvstitch.service.worker.methods.fusion.legolink import Method as LegoLink
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.registry import describe, fusion_methods
from kvstitch.service.worker.model import mixer_state
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.families import hybrid as families_of_hybrids
from kvstitch.service.worker.model.folder_checks import kv_numbers_per_token, read_config
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.model.mixer_state import FIRST_ROWS
from kvstitch.service.worker.model.model_facts import (
    FlopCount,
    ModelFacts,
    chunk_prefill,
    full_prefill,
)
from kvstitch.service.worker.steps import run
from tests.references.hybrid import ConvolutionReference, HybridReference, MambaReference
from tests.service.worker.engine.test_engine import greedy
from tests.service.worker.engines import DOCUMENTS, PIE, VANILLA, disk, rig
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_close, random_model

pytestmark = pytest.mark.exhaustive

LINK = Method("legolink", {"first": 2, "last": 0})
IDS = [*S, *D1, *D2, *D3, *Q]
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 24,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 32,
}
# A mixer stands behind the last attention layer, and one has no MLP of its own.
COMMON: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MIXED = ["linear_attention", "full_attention", "linear_attention"] * 2
GRANITE: dict[str, Any] = {
    **COMMON,
    "num_hidden_layers": 6,
    "layer_types": MIXED,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 1.3,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.8,
    "logits_scaling": 1.7,
    "mamba_n_heads": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
NEMOTRON: dict[str, Any] = {
    **COMMON,
    "head_dim": 16,
    "layers_block_type": [
        "linear_attention", "mlp", "linear_attention", "full_attention", "moe", "linear_attention",
        "moe", "full_attention", "mlp", "linear_attention", "mlp",
    ],
    "intermediate_size": 80,
    "mamba_num_heads": 8,
    "mamba_head_dim": 6,
    "ssm_state_size": 10,
    "n_groups": 4,
    "chunk_size": 16,
    "time_step_min": 0.3,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 32,
    "moe_latent_size": 20,
    "routed_scaling_factor": 1.7,
}  # fmt: skip
LFM2: dict[str, Any] = {
    **COMMON,
    "num_hidden_layers": 6,
    "intermediate_size": 80,
    "block_multiple_of": 8,
    "layer_types": ["conv" if kind == "linear_attention" else kind for kind in MIXED],
}
LFM2_MOE: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_dense_layers": 2,
    "routed_scaling_factor": 1.7,
}
CONFIGS = {
    "qwen3_5_text": lambda **changes: Qwen3_5TextConfig(**{**SIZES, **changes}),
    "qwen3_5_moe_text": lambda **changes: Qwen3_5MoeTextConfig(**{**SIZES, **EXPERTS, **changes}),
    "qwen3_next": lambda **changes: Qwen3NextConfig(**{**SIZES, **EXPERTS, **changes}),
    "granitemoehybrid": lambda **changes: GraniteMoeHybridConfig(**{**GRANITE, **changes}),
    "granite without experts": lambda **changes: GraniteMoeHybridConfig(
        **{**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope", **changes}
    ),
    "nemotron_h": lambda **changes: NemotronHConfig(**{**NEMOTRON, **changes}),
    "lfm2": lambda **changes: Lfm2Config(**{**LFM2, **changes}),
    "lfm2_moe": lambda **changes: Lfm2MoeConfig(**{**LFM2, **LFM2_MOE, **changes}),
}
REFERENCES = {"granite": MambaReference, "nemotron": MambaReference, "lfm2": ConvolutionReference}


@cache
def hybrid(family: str) -> Tiny:
    model = random_model(CONFIGS[family]())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and "linear_attn" not in name and "qwen" in family:
                weight.sub_(1)  # to which these norms add one
            if name.endswith("A_log"):
                weight.copy_(torch.linspace(-2, 1, len(weight)))
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(torch.linspace(-0.3, 0.3, len(buffer)))
    reference: Any = HybridReference
    for name, of_family in REFERENCES.items():
        reference = of_family if family.startswith(name) else reference
    return Tiny(model, decoder_for(model), reference(model))


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Tiny:
    return hybrid(request.param)


def test_full_prefill_is_transformers_and_the_reference(model: Tiny) -> None:
    layout = PromptLayout.of(S, [D1, D2, D3], Q, uncached=[True] * 4)
    scratch = ScratchKV(model.decoder, layout.tokens)
    result = run(prefill(model.decoder, layout, [None] * 4, Vanilla(), scratch))
    ours, decoder = result.logits, model.decoder
    assert_close("hybrid: transformers", ours, model.model(torch.tensor([IDS])).logits[0, -1])
    reference: Any = model.reference
    assert_close("hybrid: reference", ours, reference.pie([], IDS))
    assert result.flops == pytest.approx(full_prefill(decoder, len(IDS)), rel=1e-9)
    shape = PromptShape(
        len(IDS), len(Q), decoder.layers, uncached=len(IDS) - len(Q),
        ends_with_mixers=decoder.ends_with_mixers,
    )  # fmt: skip
    expected = total_flops(list(Vanilla().phases(shape)), FlopCount(decoder))
    assert expected == pytest.approx(result.flops, rel=0.02), "rows see half of the keys"


def test_operations_counted_by_hand() -> None:
    """Two gated DeltaNets stand before each of two attention layers."""
    mlp, gate, n = 3 * 48 * 80, 48 * 6 * 16, len(IDS)
    before, behind = 48 * (6 + 2 + 2) * 16, 6 * 16 * 48 + gate + mlp
    channels, values = 2 * (2 * 8) + 4 * 6, 4 * 6  # queries, keys and values; values
    projections = 48 * (channels + values + 4 + 4) + values * 48
    rule = 3 * 4 * 8 * 6  # what a row knows of a state, adds to it and reads from it
    mixer = projections + 4 * channels + rule + mlp
    rows = 2 * n * (2 * mixer + before) + (n + 1) * behind + 48 * 101
    pairs = n * (n + 1) / 2 + n
    decoder = hybrid("qwen3_5_text").decoder
    assert full_prefill(decoder, n) == 2 * rows + 4 * pairs * 6 * 16
    end = 2 * behind + 4 * n * 6 * 16 + 2 * 48 * 101
    assert chunk_prefill(decoder, n) == full_prefill(decoder, n) - end


def test_of_experts_a_row_takes_some_and_first_layers_have_none() -> None:
    """LFM2: two of six layers have an MLP, and two of the six attend."""
    attention, mlp, experts = 48 * (6 + 2 + 2) * 8, 3 * 48 * 80, 2 * 3 * 48 * 24
    mixer, output = 4 * 48 * 48 + 3 * 48, 48 * 48
    assert hybrid("lfm2_moe").decoder.layer_weights == [
        (mixer + mlp + attention, output + mlp),
        (2 * (mixer + experts) + attention, output + 2 * experts + mixer),
    ]


@pytest.mark.parametrize("mode", ["none", "system"])
def test_pie_is_the_reference_in_every_order(model: Tiny, mode: str) -> None:
    """Documents computed once, stitched in all orders, one of them shorter than the convolution."""
    reference: Any = model.reference
    addressing = Addressing(model.decoder, fingerprint="t", codec="raw")
    chunks, prefix = ChunkPrefill(model.decoder), S if mode == "system" else []
    texts = [D1, D2, [51, 52]]
    system = run(chunks.compute(addressing.system(S, ""))).chunk
    stored = [run(chunks.compute(addressing.document(d, mode, S, ""))).chunk for d in texts]
    expected = [reference.precompute(S), *(reference.precompute(d, prefix) for d in texts)]
    for order in permutations(range(3)):
        layout = PromptLayout.of(
            S, [texts[i] for i in order], Q,
            uncached=[False] * 4, prefixes=[Prefix(prefix)] * 3,
        )  # fmt: skip
        scratch = ScratchKV(model.decoder, layout.tokens)
        parts = [system, *(stored[i] for i in order)]
        ours = run(prefill(model.decoder, layout, parts, Pie(), scratch)).logits
        theirs = reference.pie([expected[0], *(expected[1 + i] for i in order)], Q)
        # Logits are up to 11; the worst order of Qwen3-Next is 1.3e-4 from float64.
        assert_close("hybrid: pie", ours, theirs, atol=3e-4)


@pytest.mark.parametrize("first", [1, 3])
def test_first_rows_are_computed_behind_what_stands_before_them(model: Tiny, first: int) -> None:
    """LegoLink, in two orders; of two documents all rows may be first ones."""
    reference: Any = model.reference
    chunks = ChunkPrefill(model.decoder)
    addressing = Addressing(model.decoder, fingerprint="t", codec="raw")
    texts = [D1, D3, [51, 52], [53, 54, 55]]
    system = run(chunks.compute(addressing.system(S, ""))).chunk
    stored = [run(chunks.compute(addressing.document(d, "system", S, ""))).chunk for d in texts]
    expected = [reference.precompute(d, S) for d in texts]
    method, pie = LegoLink(first=first, last=0, skip_first_doc=False), []
    for order in [(0, 1, 2, 3), (3, 1, 0, 2)]:
        layout = PromptLayout.of(
            S, [texts[i] for i in order], Q,
            uncached=[False] * 5, prefixes=[Prefix(S)] * 4,
        )  # fmt: skip
        parts = [system, *(stored[i] for i in order)]
        made = []
        for each in (method, Pie()):
            scratch = ScratchKV(model.decoder, layout.tokens)
            made.append(run(prefill(model.decoder, layout, parts, each, scratch)))
        theirs = reference.legolink(
            S, [(texts[i], expected[i]) for i in order], Q, first
        )  # fmt: skip
        assert_close("hybrid: legolink", made[0].logits, theirs, atol=3e-4)
        rows = sum(min(first, len(d)) for d in texts) + len(Q)
        assert len(made[0].rows) == rows
        pie.append(float((made[1].logits - theirs).abs().max()))
    assert max(pie) > 1e-3, "as stored they are others"


def test_first_rows_of_what_stood_there_are_full_prefills(model: Tiny) -> None:
    """Computed behind the same, they are the same; and a document all of whose rows are first ones
    is as in a full prefill, whatever it was computed behind."""
    addressing = Addressing(model.decoder, fingerprint="t", codec="raw")
    chunks, short = ChunkPrefill(model.decoder), [51, 52, 53, 54]
    parts = [
        run(chunks.compute(address)).chunk for address in (
            addressing.system(S, ""), addressing.document(D1, "system", S, ""),
            addressing.document(short, "none", S, ""),
            addressing.document(D2, "primer", S, "", [[D1, short]]),
        )
    ]  # fmt: skip
    layout = PromptLayout.of(
        S, [D1, short, D2], Q, uncached=[False] * 4,
        prefixes=[Prefix(S), Prefix(()), Prefix([*S, *D1, *short])],
    )  # fmt: skip
    theirs = model.model(torch.tensor([[*S, *D1, *short, *D2, *Q]])).logits[0, -1]
    for first in (1, 2, FIRST_ROWS):
        scratch = ScratchKV(model.decoder, layout.tokens)
        method = LegoLink(first=first, last=0)
        ours = run(prefill(model.decoder, layout, parts, method, scratch)).logits
        if first < FIRST_ROWS:
            assert float((ours - theirs).abs().max()) > 1e-3
        else:
            assert_close("hybrid: legolink of all rows", ours, theirs)


def test_a_document_that_is_computed_between_stored_ones(model: Tiny) -> None:
    """It sees the state that those before it leave, as in a full prefill if all inputs are."""
    addressing = Addressing(model.decoder, fingerprint="t", codec="raw")
    chunks = ChunkPrefill(model.decoder)
    system = run(chunks.compute(addressing.system(S, ""))).chunk
    first = run(chunks.compute(addressing.document(D1, "system", S, ""))).chunk
    layout = PromptLayout.of(
        S, [D1, D2, D3], Q,
        uncached=[False, False, True, True], prefixes=[Prefix(S)] * 3,
    )  # fmt: skip
    scratch = ScratchKV(model.decoder, layout.tokens)
    ours = run(prefill(model.decoder, layout, [system, first, None, None], Pie(), scratch)).logits
    assert_close("hybrid: identity", ours, model.model(torch.tensor([IDS])).logits[0, -1])


def test_answers_are_transformers_and_stored_chunks_are_read_again(
    model: Tiny, tmp_path: Path
) -> None:
    """In one batch, too; what SSD gives back is what was computed."""
    with rig(model, tiers=[disk(tmp_path)], draft_tokens=3) as r:
        tokens, _ = r.answer(VANILLA, max_tokens=8)
        assert tokens == greedy(model, IDS, 8)
        r.precompute()
        warm, report = r.answer(PIE)
        assert [d.tier for d in report.documents] == ["ssd"] * 3
        swapped = [DOCUMENTS[i] for i in (2, 0, 1)]
        alone = r.answer(PIE, swapped)[0]
        linked, report = r.answer(LINK, swapped)
        assert report.rows_per_layer[0] == 3 * 2 + len(Q)
        names = [r.submit(PIE), r.submit(VANILLA), r.submit(PIE, swapped), r.submit(LINK, swapped)]
        r.run()
        assert [r.tokens(name) for name in names] == [warm, tokens[:6], alone, linked]


def test_what_was_stored_with_other_first_rows_is_computed_anew(
    model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier, rig(model, tiers=[disk(tmp_path)]) as r:
        for module in (mixer_state, families_of_hybrids):
            earlier.setattr(module, "FIRST_ROWS", 3)
        r.precompute()
        assert r.answer(PIE)[1].documents[0].tier == "ssd"
    with rig(model, tiers=[disk(tmp_path)]) as r, rig(model) as fresh:
        fresh.precompute()
        answer, report = r.answer(PIE)
        if model.decoder.mixer is not None and not model.decoder.mixer.heads:
            assert [d.tier for d in report.documents] == ["ssd"] * 3, "nothing is kept of them"
            return
        assert [d.tier for d in report.documents] == ["cold"] * 3
        assert answer == fresh.answer(VANILLA)[0]
        r.precompute()
        answer, report = r.answer(LINK)
        assert [d.tier for d in report.documents] == ["ssd"] * 3
        assert answer == fresh.answer(LINK)[0]


@pytest.mark.parametrize("codec", ["int8", "k8v8"])
def test_codecs_keep_the_states_in_int8(model: Tiny, codec: str) -> None:
    """Of two of three documents near: where two experts tie, rounding takes the other one."""
    addressing = Addressing(model.decoder, fingerprint="t", codec=codec)
    chunks = ChunkPrefill(model.decoder)
    system = run(chunks.compute(addressing.system(S, ""))).chunk
    errors = []
    for ids in (D1, D2, D3):
        first = run(chunks.compute(addressing.document(ids, "system", S, ""))).chunk
        layout = PromptLayout.of(S, [ids], Q, uncached=[False] * 2, prefixes=[Prefix(S)])
        scratch = ScratchKV(model.decoder, layout.tokens)
        ours = run(prefill(model.decoder, layout, [system, first], Pie(), scratch)).logits
        theirs = model.model(torch.tensor([[*S, *ids, *Q]])).logits[0, -1]
        errors.append(float((ours - theirs).norm() / theirs.norm()))
    assert 0 < sorted(errors)[1] < 0.05
    raw = Addressing(model.decoder, fingerprint="t", codec="raw").document(D3, "none", S, "")
    heads = model.decoder.mixer is not None and model.decoder.mixer.heads > 0
    assert first.spec.state < raw.spec.state or not heads  # rows of convolutions stay raw


def test_prompts_go_on_where_a_state_is_kept(model: Tiny) -> None:
    """Behind the documents of an earlier prompt and behind its answer, and nowhere else."""
    longer = [ChunkTokens(9, [7] * 40), *DOCUMENTS]
    with rig(model, prefix_cache=True) as r, rig(model) as fresh:
        for question in (Q, [3, 1, 4], Q):
            found, _ = r.answer(VANILLA, longer, question=question)
            assert found == fresh.answer(VANILLA, longer, question=question)[0]
        assert r.engine.prefix_cache.continued == 2
        other = [*longer[:2], ChunkTokens(2, [8] * 9)]
        assert r.answer(VANILLA, other)[0] == fresh.answer(VANILLA, other)[0]
        assert r.engine.prefix_cache.continued == 2


def test_methods_that_compute_single_rows_are_refused_by_name(model: Tiny) -> None:
    with rig(model) as r:
        for name in sorted(fusion_methods()):
            if name in ("vanilla", "pie", "full_reuse"):
                assert r.answer(Method(name))[1].prompt_tokens == len(IDS)
                continue
            said = f"method {name} .*layers of this model keep"
            if name == "legolink":
                said = f"first must be at most {FIRST_ROWS} and fusion.last 0"
            with pytest.raises(InvalidRequest, match=said):
                r.submit(Method(name))
        with pytest.raises(InvalidRequest, match="exact_layers must be 0"):
            r.submit(Method("pie", {"exact_layers": 1}))
        with pytest.raises(InvalidRequest, match="first must be at most"):
            r.submit(Method("legolink", {"first": FIRST_ROWS + 1, "last": 0}))


def test_states_are_not_handed_over(model: Tiny) -> None:
    refused = pytest.raises(InvalidSetting, match="not handed over to another engine")
    with refused, rig(model, hand_over=cast(Any, object())):
        pass


def test_the_default_of_a_hybrid_is_legolink_of_all_first_rows(model: Tiny) -> None:
    """What a worker says of its methods decides what a request without one gets."""
    decoder = model.decoder
    facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads)
    offered = describe(fusion_methods(), facts)
    assert _built_in(offered)["method"] == "question_scout"
    offered = describe(fusion_methods(), replace(facts, stateful=True))
    default = chosen_method("fusion", MethodChoice.model_validate(_built_in(offered)), offered)
    every = {"first": FIRST_ROWS, "last": 0, "skip_first_doc": False}
    assert default == Method("legolink", every)
    with rig(model) as r:
        assert r.answer(default)[0]
    more = MethodChoice(method="legolink", first=FIRST_ROWS + 1)
    with pytest.raises(InvalidRequest, match="first"):
        chosen_method("fusion", more, offered)


def test_eviction_and_primers(model: Tiny) -> None:
    primed = [ChunkTokens(2, D2, [D1]), ChunkTokens(3, D3, [D1], [[D2]])]
    with rig(model) as r:
        assert r.answer(PIE, eviction=Method("snapkv", {"budget": 21}))[0]
        assert r.answer(PIE, primed, prefix_mode="primer", cold="as_stored")[0]


@pytest.mark.parametrize("family", CONFIGS)
def test_a_saved_model(tmp_path: Path, family: str) -> None:
    hybrid(family).model.save_pretrained(tmp_path)
    decoder = load(str(tmp_path), device="cpu")
    assert family.startswith(decoder.family[:7]) and not decoder.measured
    assert 4 * kv_numbers_per_token(read_config(tmp_path)) == decoder.kv_bytes_per_token
    theirs, stitched = selfcheck.check(decoder)
    assert theirs < 1e-4 and stitched < 1e-4


@pytest.mark.parametrize("quantize", ["off", "int8"])
def test_the_text_of_a_model_that_reads_images(
    tmp_path: Path, quantize: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left out is said; states are not served with weights of 8 bits."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    config = Qwen3_5Config(text_config=dict(SIZES), vision_config={**vision, "out_hidden_size": 48})
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    if quantize != "off":
        with pytest.raises(ModelRefused, match="layers that keep a state"):
            load(str(tmp_path), device="cpu", quantize=quantize)
        return
    decoder = load(str(tmp_path), device="cpu")
    assert decoder.family == "qwen3_5_text"
    assert "its text model is served, without the rest" in caplog.text
    assert max(selfcheck.check(decoder)) < 1e-4


def test_no_attention_and_mlps_in_front_are_refused() -> None:
    config = CONFIGS["granitemoehybrid"](layer_types=["linear_attention"] * 6)
    with pytest.raises(ModelRefused, match="has no attention layer"):
        decoder_for(AutoModelForCausalLM.from_config(config))
    kinds = ["mlp", "linear_attention", "full_attention"]
    config = CONFIGS["nemotron_h"](layers_block_type=kinds)
    with pytest.raises(ModelRefused, match="begins with mlp"):
        decoder_for(AutoModelForCausalLM.from_config(config))
