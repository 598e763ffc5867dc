"""Tiny random models of every family and the shortest way to run a stitched prompt on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4MoeLiteConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from kvstitch.service.worker.forward.prefill import Capture, OnPass, prefill
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import Prefix, PromptLayout, union
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention, evict
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.layer_view import LayerView, PrefillResult
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.steps import run
from tests.references.latent import LatentReference
from tests.references.prefill import Prompt, Reference, Stored, Trace

# Every method is tested on these; `test_other_families.py` has what the others must hold to.
PLAIN_FAMILIES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
FAMILIES = {
    **PLAIN_FAMILIES,
    "cohere": CohereConfig,
    "cohere2": Cohere2Config,
    "deepseek_v2": DeepseekV2Config,
    "deepseek_v3": DeepseekV3Config,
    "glm4_moe_lite": Glm4MoeLiteConfig,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "gpt_oss": GptOssConfig,
    "granite": GraniteConfig,
    "ministral": MinistralConfig,
    "mixtral": MixtralConfig,
    "olmo2": Olmo2Config,
    "olmo3": Olmo3Config,
    "phi3": Phi3Config,
    "qwen2_moe": Qwen2MoeConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "smollm3": SmolLM3Config,
}
# What a family has beyond the sizes that all have.
_EXPERTS = {"moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}
# Shorter than D1 and the prompt of 38 tokens: windows cut documents and the question's sight.
_WINDOW = 9
_EVERY_OTHER = {
    "sliding_window": _WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}
# Rows of latent attention are as wide as the heads of the other families.
_LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 10,
    "v_head_dim": 7,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
_OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        **_LATENT,
        "q_lora_rank": None,
        "first_k_dense_replace": 2,
        "topk_method": "group_limited_greedy",
    },
    "deepseek_v3": {**_LATENT, "first_k_dense_replace": 1},
    "glm4_moe_lite": {**_LATENT, "rope_interleave": False},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "cohere": {"logit_scale": 0.4, "use_qk_norm": True},
    "cohere2": {"logit_scale": 0.4, **_EVERY_OTHER},
    "gemma2": {
        **_EVERY_OTHER,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3_text": {**_EVERY_OTHER, "query_pre_attn_scalar": 24},
    "gpt_oss": {
        **_EVERY_OTHER,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "swiglu_limit": 0.7,
    },
    "ministral": _EVERY_OTHER,
    "olmo3": _EVERY_OTHER,
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.7,
        "residual_multiplier": 0.6,
    },
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": _WINDOW},
    "phi3": {
        "sliding_window": _WINDOW,
        "original_max_position_embeddings": 256,
        "partial_rotary_factor": 0.5,
    },
    "qwen2_moe": {
        **_EXPERTS,
        "shared_expert_intermediate_size": 32,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        **_EVERY_OTHER,
    },
    "qwen3_moe": {
        **_EXPERTS,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "use_sliding_window": False,
        "sliding_window": _WINDOW,
    },
    "smollm3": {
        "no_rope_layers": [1, 0, 1, 1, 0],
        "use_sliding_window": True,
        "sliding_window": _WINDOW,
    },
}
# Families that have no `head_dim` apart from hidden size and heads.
NO_HEAD_DIM = ("qwen2", "qwen2_moe", "granite", "olmo2", "olmo3", "phi3", "cohere", "cohere2")
# Families that have a RoPE for every kind of layer.
TWO_ROPES = ("gemma3_text", "olmo3")
# Families that keep one row for all heads.
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
# What their checkpoints do.
TIED = ("qwen3", "mistral", "granite", "smollm3", "gemma", "gemma2", "gemma3_text", "cohere")


def rope_of(family: str) -> str:
    """Position-dependent in three ways at these lengths, where the family has such a RoPE."""
    return {"phi3": "default", "gpt_oss": "yarn_untruncated"}.get(family, "llama3")


# Contexts and bases so small that a 50-token prompt reaches every branch of every formula.
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "beta_fast": 8,
        "beta_slow": 1,
        "original_max_position_embeddings": 64,
    },
}
ALL_MODELS = [(family, rope) for family in PLAIN_FAMILIES for rope in ROPES]
# Every plain family with two kinds of RoPE, and every kind with two families.
PAIRED_MODELS = [
    (family, rope)
    for f, family in enumerate(PLAIN_FAMILIES)
    for r, rope in enumerate(ROPES)
    if (r - f) % len(ROPES) < 2
]
# As gpt-oss has it, besides the above.
ROPES["yarn_untruncated"] = {**ROPES["yarn"], "truncate": False}
VOCABULARY = 101
BOS = 1

S = [BOS, 17, 23, 42, 5, 88, 61]
D1 = [11, 12, 13, 14, 15, 16, 90, 91, 92, 93, 94]
D2 = [33, 3, 35, 70, 37, 77]
D3 = [51, 52, 53, 54, 55, 56, 57, 58, 59]
Q = [9, 8, 7, 99, 2]

# What a document sees when it is precomputed (bos_keep is none with BOS in the document's ids).
PREFIXES = {"none": [], "bos": [BOS], "system": S}

# (system, documents, numbers of the uncached segments: 0 is S)
EDGES: dict[str, tuple[Sequence[int], Sequence[Sequence[int]], Sequence[int]]] = {
    "swapped order": (S, (D3, D1, D2), ()),
    "a document twice": (S, (D1, D2, D1), ()),
    "an empty document": (S, (D1, [], D2), ()),
    "only empty documents": (S, ([], []), ()),
    "one-token documents": (S, ([11], [33], [51]), ()),
    "one document": (S, (D2,), ()),
    "no documents": (S, (), ()),
    "no system prompt": ([], (D1, D2), ()),
    "nothing but the question": ([], (), ()),
    "first document uncached": (S, (D1, D2, D3), (1,)),
    "last document uncached": (S, (D1, D2, D3), (3,)),
    "two documents uncached": (S, (D1, D2, D3), (1, 3)),
    "system prompt uncached": (S, (D1, D2, D3), (0,)),
    "all uncached": (S, (D1, D2, D3), (0, 1, 2, 3)),
    "all documents uncached": (S, (D1, D2, D3), (1, 2, 3)),
    "one token uncached": (S, ([11], D2), (1,)),
}

largest: dict[str, float] = {}  # biggest difference seen per claim; printed after the run


def assert_close(claim: str, ours: Tensor, expected: Tensor, atol: float = 1e-4) -> None:
    """Max abs difference of finite tensors of one shape is at most `atol`; remembered by claim."""
    assert ours.shape == expected.shape, f"{claim}: {ours.shape} is not {expected.shape}"
    assert torch.isfinite(ours).all(), f"{claim}: ours is not finite"
    assert torch.isfinite(expected).all(), f"{claim}: the expectation is not finite"
    gap = difference(ours, expected)
    largest[claim] = max(gap, largest.get(claim, 0.0))
    assert gap <= atol, f"{claim}: max abs difference {gap:.3g} is above {atol:g}"


def difference(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max()) if a.numel() else 0.0


def tiny_config(family: str, rope: dict[str, Any] | str = "default", **changes: Any) -> Any:
    """Five layers, GQA with groups of 3, heads wider than hidden / heads where a family can."""
    parameters = dict(ROPES[rope] if isinstance(rope, str) else rope)
    facts: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96 if family in NO_HEAD_DIM else 48,
        "intermediate_size": 80,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_parameters": parameters,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": family in TIED,
        "bos_token_id": BOS,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    if family in TWO_ROPES:
        local = {"rope_type": "default", "rope_theta": 20.0}
        facts["rope_parameters"] = {"full_attention": parameters, "sliding_attention": local}
    if family not in (*NO_HEAD_DIM, *LATENT):
        facts["head_dim"] = 16
    return FAMILIES[family](**{**facts, **_OWN.get(family, {}), **changes})


def random_model(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Random weights, queries and keys scaled up so that attention is far from flat."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    source = torch.Generator().manual_seed(seed)
    added = 1 if config.model_type.startswith("gemma") else 0  # Gemma's norms add one
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if "norm" in name:
                peaked = 1.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                weight.copy_(peaked * (1 + 0.2 * noise) - added)
            elif name.endswith(("bias", "sinks")):
                weight.copy_(0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                weight.copy_(0.5 * noise)
            else:
                gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
                weight.copy_(gain * noise / weight.shape[-1] ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=source))
    return model.to(dtype).eval().requires_grad_(False)


@dataclass(repr=False)
class Run:
    """One stitched prompt: the loop's result and the filled cache, per layer `[n, kv_heads, d]`."""

    layout: PromptLayout
    result: PrefillResult
    sequence: SequenceKV
    pool: KVPool
    k: list[Tensor]
    v: list[Tensor]

    @property
    def logits(self) -> Tensor:
        return self.result.logits


@dataclass(repr=False)
class StoredSegment:
    """What the store gives back: k before RoPE and v per layer, `[tokens, kv_heads, d]`."""

    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]

    def state(self, layer: int) -> tuple[Tensor, str]:
        raise AssertionError("of a model without mixers")


@dataclass(repr=False)
class Tiny:
    """One model: transformers' own, our decoder on it, and the reference on its weights."""

    model: Any
    decoder: DecoderModel
    reference: Reference
    _stored: dict[tuple[tuple[int, ...], ...], StoredSegment] = field(default_factory=dict)

    def precompute(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> StoredSegment:
        """A segment prefilled behind `prefix`, captured before RoPE, prefix rows dropped. Kept for
        the session: a method that wrote into it would fail the tests after it."""
        key = (tuple(ids), tuple(prefix))
        if key not in self._stored:
            self._stored[key] = self._precompute(ids, prefix)
        return self._stored[key]

    def _precompute(self, ids: Sequence[int], prefix: Sequence[int]) -> StoredSegment:
        stored = StoredSegment()

        def capture(view: LayerView) -> None:
            stored.k.append(view.fresh_k[len(prefix) :].clone())
            stored.v.append(view.fresh_v[len(prefix) :].clone())

        layout = PromptLayout.of([*prefix, *ids], [], [], uncached=[True])
        run(prefill(self.decoder, layout, [None], _EveryRow(), self._pool(layout), capture=capture))
        return stored

    def stitch(
        self,
        method: FusionMethod,
        system: Sequence[int] = S,
        documents: Sequence[Sequence[int]] = (D1, D2, D3),
        question: Sequence[int] = Q,
        *,
        prefix: Sequence[int] = (),
        uncached: Sequence[int] = (),
        eviction: EvictionMethod | None = None,
        stored: Sequence[StoredSegment | None] | None = None,
        room: int = 0,
        capture: Capture | None = None,
        on_pass: OnPass | None = None,
    ) -> Run:
        """Prefills the prompt with `method`.

        Args:
            uncached: numbers of the segments without stored KV, 0 for S.
        """
        assert isinstance(method, DenseMethod)
        segments = [system, *documents]
        is_uncached = [i in uncached or not ids for i, ids in enumerate(segments)]
        if stored is None:
            stored = [
                None if is_uncached[i] else self.precompute(ids, prefix if i else ())
                for i, ids in enumerate(segments)
            ]
        layout = PromptLayout.of(
            system,
            documents,
            question,
            uncached=is_uncached,
            prefixes=[Prefix(prefix)] * len(documents),
        )
        pool = KVPool(
            self.decoder.layers,
            self.decoder.kv_heads,
            self.decoder.head_dim,
            layout.tokens + room + 3,
            dtype=self.decoder.dtype,
            device=self.decoder.device,
        )
        for store in (*pool.k, *pool.v):
            store.fill_(float("nan"))  # what nobody wrote must not be read
        sequence = pool.reserve(layout.tokens + room)
        assert sequence is not None
        steps = prefill(
            self.decoder,
            layout,
            stored,
            method,
            sequence,
            eviction=eviction,
            capture=capture,
            on_pass=on_pass,
        )
        result = run(steps)
        sequence.set_length(layout.tokens)
        layers = range(self.decoder.layers)
        filled = [sequence.prompt_layer(layer, layout.tokens) for layer in layers]
        k = [k.transpose(0, 1).clone() for k, _ in filled]
        v = [v.transpose(0, 1).clone() for _, v in filled]
        return Run(layout, result, sequence, pool, k, v)

    def prompt(
        self,
        system: Sequence[int] = S,
        documents: Sequence[Sequence[int]] = (D1, D2, D3),
        question: Sequence[int] = Q,
        *,
        prefix: Sequence[int] = (),
        uncached: Sequence[int] = (),
    ) -> Prompt:
        """The same prompt for the reference, precomputed by the reference."""
        stored: list[Stored | None] = [
            None if i in uncached else self.reference.precompute(ids, prefix if i else ())
            for i, ids in enumerate([system, *documents])
        ]
        return Prompt(list(system), [list(d) for d in documents], list(question), stored)

    def _pool(self, layout: PromptLayout) -> SequenceKV:
        decoder = self.decoder
        pool = KVPool(
            decoder.layers,
            decoder.kv_heads,
            decoder.head_dim,
            layout.tokens,
            dtype=decoder.dtype,
            device=decoder.device,
        )
        sequence = pool.reserve(layout.tokens)
        assert sequence is not None
        return sequence


def evicted(model: Tiny, run: Run, method: EvictionMethod, room: int) -> float:
    """`method` applied to a run that was stitched with it."""
    facts = ModelFacts(model.decoder.layers, model.decoder.heads, model.decoder.kv_heads)
    return evict(
        model.decoder,
        facts,
        run.sequence,
        method,
        layout=run.result.layout,
        observed=run.result.observed,
        room=room,
    )


def prompt_attention(
    layout: PromptLayout,
    k: Tensor,
    observed: Tensor,
    *,
    layer: int = 0,
    layers: int = 1,
    kept_before: Tensor | None = None,
    head_scores: Mapping[str, Tensor] | None = None,
    heads: int = 0,
) -> PromptAttention:
    """One layer as an eviction method sees it: k `[kv_heads, n, d]`; observed: window queries
    `[w, heads, d]`, or what the method's own `observe` gives (then say how many `heads`)."""
    kv_heads, n, d = k.shape
    facts = ModelFacts(layers, heads or observed.shape[1], kv_heads, head_scores or {})
    if kept_before is None:
        kept_before = torch.zeros(n, dtype=torch.long)
    return PromptAttention(
        layer=layer,
        layout=layout,
        k=k,
        observed=observed,
        kept_before=kept_before,
        scale=d**-0.5,
        model=facts,
    )


@cache
def tiny(family: str, rope: str = "default", seed: int = 0) -> Tiny:
    return tiny_of(random_model(tiny_config(family, rope), seed))


def tiny_of(model: Any) -> Tiny:
    reference = LatentReference if model.config.model_type in LATENT else Reference
    return Tiny(model, decoder_for(model), reference(model.state_dict(), model.config.to_dict()))


def assert_same_kv(claim: str, ours: Run, expected: Trace, atol: float = 1e-4) -> None:
    """K (rotated) and V of every token at every layer."""
    for layer, (k, v) in enumerate(zip(expected.k, expected.v, strict=True)):
        assert_close(f"{claim}: K", ours.k[layer], k, atol)
        assert_close(f"{claim}: V", ours.v[layer], v, atol)


def assert_same(claim: str, ours: Run, expected: Trace, atol: float = 1e-4) -> None:
    """Last logits, and KV of every token at every layer."""
    assert_close(f"{claim}: logits", ours.logits, expected.logits[-1], atol)
    assert_same_kv(claim, ours, expected, atol)


@dataclass(frozen=True)
class _EveryRow(DenseMethod):
    """Full prefill, for precompute here (so that no test of a method leans on another)."""

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows


@dataclass(frozen=True)
class ForcedRows(DenseMethod):
    """Recomputes exactly `rows` (and the question) from the embedding through every layer."""

    rows: tuple[int, ...] = ()

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return union(torch.tensor(self.rows, dtype=torch.long), layout.question_rows)
