"""A slow eager decoder and the fusion and eviction methods on it, written from
docs/specification.md alone.

It shares no code with service/ and none with transformers' modules: it sees a state dict and a
config dict. Every step runs over all n rows with full [n, n] masks; the hidden state of a row that
a method does not compute at a layer is NaN there, so a value that leaked from it would show in
every later number. Everything is float32 `[tokens, heads, head_dim]`, batch 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

# Which keys j the rows t of a layer see: (row indices computed at the layer, n) -> bool [n, n].
MaskRule = Callable[[list[int], int], Tensor]


def index_mask(rows: list[int], n: int) -> Tensor:
    """Row t sees key j iff j <= t (docs/specification.md §0)."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    for t in range(n):
        mask[t, : t + 1] = True
    return mask


def bottom_right_mask(rows: list[int], n: int) -> Tensor:
    """The bug of public code (docs/specification.md §1.3 a): the i-th of m rows sees the first n -
    m + i + 1."""
    mask = torch.zeros(n, n, dtype=torch.bool)
    for i, t in enumerate(rows):
        mask[t, : n - len(rows) + i + 1] = True
    return mask


@dataclass
class Trace:
    """One pass. Per layer: k rotated, v, q rotated, attention `[heads, n, n]`, hidden input."""

    n: int
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    k_pre: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


@dataclass
class Stored:
    """Precomputed KV of one segment: per layer keys before RoPE and values `[T, kv_heads, d]`;
    `offset`: the position its first token had."""

    k_pre: list[Tensor]
    v: list[Tensor]
    offset: int

    @property
    def tokens(self) -> int:
        return len(self.k_pre[0])


@dataclass
class Prompt:
    """S ‖ D_1..D_k ‖ Q with each cacheable segment's stored KV, None where it is uncached."""

    system: list[int]
    documents: list[list[int]]
    question: list[int]
    stored: list[Stored | None]

    @property
    def ids(self) -> list[int]:
        return [*self.system, *(t for d in self.documents for t in d), *self.question]

    @property
    def starts(self) -> list[int]:
        """First index of S, of every document and of Q."""
        starts, at = [], 0
        for segment in (self.system, *self.documents, self.question):
            starts.append(at)
            at += len(segment)
        return starts

    @property
    def question_indices(self) -> list[int]:
        return list(range(self.starts[-1], len(self.ids)))

    def indices(self, *, uncached: bool, documents_only: bool = False) -> list[int]:
        """Token indices of the uncached (or the cached) cacheable segments."""
        out: list[int] = []
        for number, segment in enumerate((self.system, *self.documents)):
            if (self.stored[number] is None) == uncached and not (documents_only and number == 0):
                start = self.starts[number]
                out.extend(range(start, start + len(segment)))
        return out


# Families whose config says which layers have a window, and those where all have it.
TYPED = (
    *("qwen2", "qwen3", "qwen2_moe", "smollm3", "ministral", "olmo3"),
    *("gemma2", "gemma3_text", "gpt_oss", "cohere2"),
)
UNIFORM = ("mistral", "mixtral", "phi3", "qwen3_moe")


class Reference:
    """A Llama-like decoder of a state dict and a config dict."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.w = {name: tensor.detach().float() for name, tensor in weights.items()}
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config["num_key_value_heads"])
        self.d = int(config.get("head_dim") or config["hidden_size"] // self.heads)
        self.eps = float(config.get("rms_norm_eps", config.get("layer_norm_eps", 0)))
        self.tied = bool(config["tie_word_embeddings"])
        self.config = config
        self.family = str(config.get("model_type", "llama"))
        self.scale = float(config.get("attention_multiplier", 1 / math.sqrt(self.d)))
        if "query_pre_attn_scalar" in config:
            self.scale = 1 / math.sqrt(config["query_pre_attn_scalar"])
        self.residual = float(config.get("residual_multiplier", 1))
        self.kinds = list(config.get("layer_types") or ["full_attention"] * self.layers)
        ropes = config["rope_parameters"]
        of_kind = {kind: ropes.get(kind, ropes) for kind in set(self.kinds)}
        self.turned = int(self.d * float(ropes.get("partial_rotary_factor") or 1))
        self.ropes = {kind: frequencies(rope, self.turned) for kind, rope in of_kind.items()}
        self.frequencies, self.rope_factor = self.ropes[self.kinds[0]]
        self._rotations: dict[tuple[int, str], Tensor] = {}
        self._full: dict[tuple[int, ...], Trace] = {}

    # -- pieces -----------------------------------------------------------------------------------

    def norm(self, x: Tensor, name: str) -> Tensor:
        if self.family.startswith("cohere"):
            x = x - x.mean(-1, keepdim=True)
        mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        more = 1 if self.family.startswith("gemma") else 0
        return x / torch.sqrt(mean_square + self.eps) * (more + self.w[name + ".weight"])

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.w[name + ".weight"].T
        return out + self.w[name + ".bias"] if name + ".bias" in self.w else out

    def rotation(self, position: int, kind: str = "") -> Tensor:
        """The `[d, d]` matrix that RoPE multiplies a head by: pairs (i, i + d/2) turn, but those
        behind the rotated dimensions."""
        if (position, kind) in self._rotations:
            return self._rotations[position, kind]
        half = self.d // 2
        turns, factor = self.ropes.get(kind, (self.frequencies, self.rope_factor))
        matrix = torch.eye(self.d, dtype=torch.float64)
        for i, frequency in enumerate(turns):
            cos = math.cos(position * frequency) * factor
            sin = math.sin(position * frequency) * factor
            matrix[i, i], matrix[i, i + half] = cos, -sin
            matrix[i + half, i], matrix[i + half, i + half] = sin, cos
        self._rotations[position, kind] = matrix.float()
        return self._rotations[position, kind]

    def halves(self, x: Tensor) -> Tensor:
        """Heads `[..., d]` in the order in which pairs (i, i + d/2) turn (docs/specification.md
        §0): of neighbours in Cohere, of the halves of the rotated part elsewhere."""
        first = list(range(self.turned))
        rest = list(range(self.turned, self.d))
        half, middle = self.turned // 2, len(rest) // 2
        left, right = first[:half], first[half:]
        if self.family.startswith("cohere"):
            left, right = first[::2], first[1::2]
        return x[..., [*left, *rest[:middle], *right, *rest[middle:]]]

    def rotate(self, x: Tensor, positions: Sequence[int], layer: int = 0) -> Tensor:
        """x `[m, heads, d]` of a layer, every row by its own position."""
        if not len(positions) or not self.rotates(layer):
            return x
        return torch.stack(
            [
                (self.rotation(p, self.kinds[layer]) @ row.T).T
                for p, row in zip(positions, x, strict=True)
            ]
        )

    def rotates(self, layer: int) -> bool:
        if self.family == "cohere2":
            return self.kinds[layer] == "sliding_attention"
        return bool(self.config.get("no_rope_layers", [1] * self.layers)[layer])

    def window(self, layer: int) -> int | None:
        """Row t of the layer sees key j only if j > t - window (docs/specification.md §0)."""
        slides = self.family in UNIFORM or (
            self.family in TYPED and self.kinds[layer] == "sliding_attention"
        )
        return self.config["sliding_window"] if slides else None

    def within(self, layer: int, keys: Sequence[int], rows: Sequence[int]) -> Tensor:
        """Which keys the layer's window leaves to rows, `[m, n]` bool."""
        window = self.window(layer)
        return torch.tensor([[window is None or j > t - window for j in keys] for t in rows])

    def project(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k before RoPE and v of hidden rows `[m, hidden]`."""
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        olmo = self.family in ("olmo2", "olmo3")
        normed = x if olmo else self.norm(x, prefix + "input_layernorm")
        if self.family == "phi3":
            both = self.linear(normed, attention + "qkv_proj")
            q, k, v = both.split([n * self.d for n in (self.heads, *[self.kv_heads] * 2)], dim=-1)
        else:
            q, k, v = (self.linear(normed, f"{attention}{name}_proj") for name in "qkv")
        if olmo:
            q, k = self.norm(q, attention + "q_norm"), self.norm(k, attention + "k_norm")
        q = q.reshape(-1, self.heads, self.d)
        k, v = k.reshape(-1, self.kv_heads, self.d), v.reshape(-1, self.kv_heads, self.d)
        if attention + "q_norm.weight" in self.w and not olmo:
            q, k = self.norm(q, attention + "q_norm"), self.norm(k, attention + "k_norm")
        return self.halves(q), self.halves(k), v

    def attention(self, q: Tensor, k: Tensor, visible: Tensor, layer: int = 0) -> Tensor:
        """Weights `[heads, m, n]`, keys repeated per query head; visible `[m, n]` or per head."""
        repeated = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = torch.stack([q[:, h] @ repeated[:, h].T * self.scale for h in range(self.heads)])
        if cap := self.config.get("attn_logit_softcapping"):
            scores = cap * torch.tanh(scores / cap)
        scores = torch.where(visible, scores, torch.tensor(float("-inf")))
        peak = scores.max(-1, keepdim=True).values
        weights = torch.exp(scores - peak)
        total = weights.sum(-1, keepdim=True)
        sinks = self.w.get(f"model.layers.{layer}.self_attn.sinks")
        if sinks is not None:
            total = total + torch.exp(sinks[:, None, None] - peak)
        return weights / total

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weighted values, heads side by side `[m, heads · d]`."""
        repeated = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        return torch.cat([weights[h] @ repeated[:, h] for h in range(self.heads)], dim=-1)

    def block_tail(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}."
        out = self.linear(attended, prefix + "self_attn.o_proj")
        if self.family in ("olmo2", "olmo3"):
            x = x + self.norm(out, prefix + "post_attention_layernorm")
            return x + self.norm(self.mlp(layer, x), prefix + "post_feedforward_layernorm")
        if self.family in ("gemma2", "gemma3_text"):
            x = x + self.norm(out, prefix + "post_attention_layernorm")
            inner = self.mlp(layer, self.norm(x, prefix + "pre_feedforward_layernorm"))
            return x + self.norm(inner, prefix + "post_feedforward_layernorm")
        if self.family.startswith("cohere"):
            return x + out + self.mlp(layer, self.norm(x, prefix + "input_layernorm"))
        x = x + self.residual * out
        normed = self.norm(x, prefix + "post_attention_layernorm")
        return x + self.residual * self.mlp(layer, normed)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"model.layers.{layer}.mlp."
        if prefix + "experts.down_proj" not in self.w:
            return self.gated_mlp(prefix, x)
        if self.family == "gpt_oss":
            return torch.stack([self.gpt_oss_row(prefix, row) for row in x])
        out = torch.zeros_like(x)
        for row in range(len(x)):  # one by one
            probabilities = (self.w[prefix + "gate.weight"] @ x[row]).softmax(-1)
            order = sorted(range(len(probabilities)), key=lambda e: -float(probabilities[e]))
            best = order[: int(self.config["num_experts_per_tok"])]
            whole = 1.0
            if self.family == "mixtral" or self.config["norm_topk_prob"]:
                whole = float(sum(probabilities[e] for e in best))
            for expert in best:
                gate, up = (self.w[prefix + "experts.gate_up_proj"][expert] @ x[row]).chunk(2)
                inner = gate / (1 + torch.exp(-gate)) * up
                part = self.w[prefix + "experts.down_proj"][expert] @ inner
                out[row] += probabilities[expert] / whole * part
        if prefix + "shared_expert_gate.weight" in self.w:
            share = 1 / (1 + torch.exp(-self.linear(x, prefix + "shared_expert_gate")))
            out = out + share * self.gated_mlp(prefix + "shared_expert.", x)
        return out

    def gpt_oss_row(self, prefix: str, row: Tensor) -> Tensor:
        """One row's experts: chosen by logit, mixed by a softmax over the chosen."""
        w, limit = self.w, float(self.config["swiglu_limit"])
        logits = w[prefix + "router.weight"] @ row + w[prefix + "router.bias"]
        best = sorted(range(len(logits)), key=lambda e: -float(logits[e]))
        best = best[: int(self.config["num_experts_per_tok"])]
        out = torch.zeros_like(row)
        for expert, weight in zip(best, logits[best].softmax(-1), strict=True):
            both = row @ w[prefix + "experts.gate_up_proj"][expert]
            both = both + w[prefix + "experts.gate_up_proj_bias"][expert]
            gate = torch.minimum(both[::2], torch.tensor(limit))
            up = torch.clamp(both[1::2], -limit, limit)
            inner = (up + 1) * gate / (1 + torch.exp(-gate * self.config["swiglu_alpha"]))
            part = inner @ w[prefix + "experts.down_proj"][expert]
            out = out + weight * (part + w[prefix + "experts.down_proj_bias"][expert])
        return out

    def activation(self, x: Tensor) -> Tensor:
        if self.family.startswith("gemma"):  # the tanh form of GELU
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return 0.5 * x * (1 + torch.tanh(inner))
        return x / (1 + torch.exp(-x))

    def gated_mlp(self, prefix: str, x: Tensor) -> Tensor:
        if self.family == "phi3":
            gate, up = self.linear(x, prefix + "gate_up_proj").chunk(2, dim=-1)
        else:
            gate, up = self.linear(x, prefix + "gate_proj"), self.linear(x, prefix + "up_proj")
        return self.linear(self.activation(gate) * up, prefix + "down_proj")

    def embed(self, ids: Sequence[int]) -> Tensor:
        rows = self.w["model.embed_tokens.weight"][torch.tensor(list(ids), dtype=torch.long)]
        if self.family.startswith("gemma"):
            return rows * math.sqrt(self.config["hidden_size"])
        return rows * float(self.config.get("embedding_multiplier", 1))

    def head(self, x: Tensor) -> Tensor:
        name = "model.embed_tokens.weight" if self.tied else "lm_head.weight"
        logits = self.norm(x, "model.norm") @ self.w[name].T
        if cap := self.config.get("final_logit_softcapping"):
            return cap * torch.tanh(logits / cap)
        logits = logits * float(self.config.get("logit_scale", 1))
        return logits / float(self.config.get("logits_scaling", 1))

    # -- passes -----------------------------------------------------------------------------------

    def stitched(
        self,
        ids: Sequence[int],
        cached: Sequence[tuple[Tensor, Tensor]] | None,
        computed: Sequence[Sequence[int]],
        *,
        mask: MaskRule = index_mask,
        rejoin: tuple[int, Tensor] | None = None,
    ) -> Trace:
        """The prompt where row t has fresh KV at layer l iff t is in `computed[l]`; every other
        row's K (rotated) and V are `cached[l]`, `[n, kv_heads, d]`. Row sets must shrink, but at
        the layer of `rejoin`, where new rows come with these hidden rows `[n, hidden]`."""
        n = len(ids)
        trace = Trace(n)
        x = self.embed(ids)
        for layer in range(self.layers):
            fresh = torch.zeros(n, dtype=torch.bool)
            fresh[torch.tensor(list(computed[layer]), dtype=torch.long)] = True
            if rejoin is not None and layer == rejoin[0]:
                x = torch.where(x.isnan(), rejoin[1], x)
            x = torch.where(fresh[:, None], x, torch.tensor(float("nan")))
            trace.hidden.append(x)
            q, k_pre, v = self.project(layer, x)
            q, k = self.rotate(q, range(n), layer), self.rotate(k_pre, range(n), layer)
            if cached is not None:
                k = torch.where(fresh[:, None, None], k, cached[layer][0])
                v = torch.where(fresh[:, None, None], v, cached[layer][1])
            visible = mask(sorted(computed[layer]), n)
            if self.window(layer) is not None:
                visible = visible & self.within(layer, range(n), range(n))
            weights = self.attention(q, k, visible, layer)
            x = self.block_tail(layer, x, self.mix(weights, v))
            trace.k.append(k)
            trace.v.append(v)
            trace.q.append(q)
            trace.k_pre.append(k_pre)
            trace.attention.append(weights)
        trace.logits = self.head(x)
        return trace

    def vanilla(self, ids: Sequence[int]) -> Trace:
        """Full prefill; remembered, because every test asks for the same few."""
        key = tuple(ids)
        if key not in self._full:
            self._full[key] = self.stitched(ids, None, [range(len(ids))] * self.layers)
        return self._full[key]

    def precompute(self, ids: Sequence[int], prefix: Sequence[int] = ()) -> Stored:
        """A segment's KV as it is stored: prefilled behind `prefix`, whose rows are dropped.
        Prefix modes: none (), bos (BOS,), system (S); bos_keep is none with BOS in `ids`."""
        if not ids:
            empty = [torch.empty(0, self.kv_heads, self.d)] * self.layers
            return Stored(empty, empty, len(prefix))
        trace = self.vanilla([*prefix, *ids])
        a = len(prefix)
        return Stored([k[a:] for k in trace.k_pre], [v[a:] for v in trace.v], a)

    def placed(self, prompt: Prompt, *, local: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Cached K rotated to global (or, FullReuse, to their own local) positions and V, per
        layer; NaN where nothing is stored."""
        n, starts = len(prompt.ids), prompt.starts
        out = []
        for layer in range(self.layers):
            k = torch.full((n, self.kv_heads, self.d), float("nan"))
            v = k.clone()
            for stored, start in zip(prompt.stored, starts, strict=False):
                if stored is None or not stored.tokens:
                    continue
                first = stored.offset if local else start
                positions = range(first, first + stored.tokens)
                k[start : start + stored.tokens] = self.rotate(
                    stored.k_pre[layer], positions, layer
                )
                v[start : start + stored.tokens] = stored.v[layer]
            out.append((k, v))
        return out

    # -- fusion methods (docs/specification.md §1) -------------------------------------------------

    def pie(self, prompt: Prompt, exact_layers: int = 0, *, local: bool = False) -> Trace:
        """PIE (§1.2): everything cached but Q; the KV of the first layers exact if asked for."""
        every = range(len(prompt.ids))
        always = [*prompt.indices(uncached=True), *prompt.question_indices]
        exact = min(exact_layers, self.layers)
        computed = [every] * exact + [always] * (self.layers - exact)
        return self.stitched(prompt.ids, self.placed(prompt, local=local), computed)

    def full_reuse(self, prompt: Prompt) -> Trace:
        """FullReuse (§1.1): as PIE, keys at their precomputed positions."""
        return self.pie(prompt, local=True)

    def a3_scores(self, prompt: Prompt, selection_layer: int = 1) -> Tensor:
        """s(t) of §1.5 step 3 for every t: eager attention at the layer, summed over Q and heads.
        Layers before it are full, so they are those of the vanilla pass."""
        weights = self.vanilla(prompt.ids).attention[selection_layer]
        total = torch.zeros(len(prompt.ids))
        for j in prompt.question_indices:
            for h in range(self.heads):
                total += weights[h, j]
        return total

    def a3_selected(self, prompt: Prompt, ratio: float, selection_layer: int = 1) -> list[int]:
        """Re: the top ⌊ratio · n⌋ cached document tokens, lower index first among equals."""
        scores = self.a3_scores(prompt, selection_layer).tolist()
        candidates = prompt.indices(uncached=False, documents_only=True)
        wanted = math.floor(Fraction(str(ratio)) * len(prompt.ids))  # 0.29 · 100 is 29
        return sorted(sorted(candidates, key=lambda t: (-scores[t], t))[:wanted])

    def a3(self, prompt: Prompt, ratio: float, selection_layer: int = 1) -> Trace:
        """A3 (§1.5)."""
        every = range(len(prompt.ids))
        rows = {
            *self.a3_selected(prompt, ratio, selection_layer),
            *prompt.indices(uncached=True),
            *prompt.question_indices,
        }
        full = selection_layer + 1
        computed = [every] * full + [sorted(rows)] * (self.layers - full)
        return self.stitched(prompt.ids, self.placed(prompt), computed)

    def forced_rows(
        self, prompt: Prompt, rows: Sequence[int], *, mask: MaskRule = index_mask
    ) -> Trace:
        """Given rows and Q from the embedding on (EPIC with a free choice of rows)."""
        chosen = sorted({*rows, *prompt.question_indices})
        return self.stitched(prompt.ids, self.placed(prompt), [chosen] * self.layers, mask=mask)

    # -- decoding ---------------------------------------------------------------------------------

    def decode(
        self,
        trace: Trace,
        tokens: Sequence[int],
        visible: Sequence[Tensor] | None = None,
        held: Sequence[Sequence[int]] | None = None,
    ) -> list[Tensor]:
        """Logits after each of `tokens`, fed one by one at positions n, n+1, … over the trace's
        cache. `visible[l]` `[kv_heads, n]`: prompt entries not evicted (default: all). `held[l]`:
        the prompt tokens whose entries the trace has (default: all)."""
        cache = [(k.clone(), v.clone()) for k, v in zip(trace.k, trace.v, strict=True)]
        out = []
        for step, token in enumerate(tokens):
            x = self.embed([token])
            for layer in range(self.layers):
                q, k, v = self.project(layer, x)
                position = [trace.n + step]
                k_all = torch.cat([cache[layer][0], self.rotate(k, position, layer)])
                v_all = torch.cat([cache[layer][1], v])
                cache[layer] = (k_all, v_all)
                seen = torch.ones(self.heads, 1, len(k_all), dtype=torch.bool)
                if visible is not None:
                    group = self.heads // self.kv_heads
                    for h in range(self.heads):
                        seen[h, 0, : trace.n] = visible[layer][h // group]
                prompt = range(trace.n) if held is None else held[layer]
                keys = [*prompt, *range(trace.n, trace.n + step + 1)]
                seen = seen & self.within(layer, keys, position)
                weights = self.attention(self.rotate(q, position, layer), k_all, seen, layer)
                x = self.block_tail(layer, x, self.mix(weights, v_all))
            out.append(self.head(x)[0])
        return out


def frequencies(rope: Mapping[str, Any], d: int) -> tuple[list[float], float]:
    """Angles per position of the d/2 pairs, and the factor on cos and sin, from the config.

    default: Su et al. 2021. linear: Chen et al. 2023, positions divided by the factor. llama3: by
    wavelength, long ones slowed by the factor, a linear blend between. yarn: Peng et al. 2023,
    eq. 17–25, a ramp over the pair index between β_fast and β_slow rotations in the original
    context, and cos, sin scaled by 0.1 ln(factor) + 1. dynamic, longrope (Ding et al. 2024): up to
    the original context.
    """
    kind, base = rope["rope_type"], float(rope["rope_theta"])
    plain = [base ** (-2.0 * i / d) for i in range(d // 2)]
    if kind in ("default", "dynamic"):
        return plain, 1.0
    factor = float(rope["factor"])
    if kind == "linear":
        return [f / factor for f in plain], 1.0
    original = float(rope["original_max_position_embeddings"])
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        out = []
        for f in plain:
            rotations = original * f / (2 * math.pi)
            blend = min(1.0, max(0.0, (rotations - low) / (high - low)))
            out.append(blend * f + (1 - blend) * f / factor)
        return out, 1.0
    if kind == "yarn":
        edges = [
            d * math.log(original / (2 * math.pi * beta)) / (2 * math.log(base))
            for beta in (float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1))
        ]
        if rope.get("truncate", True):
            edges = [math.floor(edges[0]), math.ceil(edges[1])]
        first, last = max(0, edges[0]), min(d - 1, edges[1])
        out = []
        for i, f in enumerate(plain):
            slowed = min(1.0, max(0.0, (i - first) / ((last - first) or 0.001)))
            out.append((1 - slowed) * f + slowed * f / factor)
        return out, 0.1 * math.log(factor) + 1.0
    if kind == "longrope":
        short = [f / float(by) for f, by in zip(plain, rope["short_factor"], strict=True)]
        return short, math.sqrt(1 + math.log(factor) / math.log(original))
    raise ValueError(f"no formula for rope_type {kind!r}")


# -- eviction (docs/specification.md §2) -----------------------------------------------------------


def snapkv_kept(
    q: Tensor,
    k: Tensor,
    *,
    system: int,
    question: int,
    budget: int,
    window: int,
    kernel: int,
) -> list[list[int]]:
    """Kept indices per KV head (§1.6 with §2.3): S, Q and the best document tokens.

    q `[n, heads, d]`, k `[n, kv_heads, d]`, both rotated; system and question are |S| and |Q|.
    Window attention is the mean over the last w queries, candidates are the tokens before the
    window, the group mean is pooled over candidates only, ties go to the lower index.
    """
    n, heads, d = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    w = min(window, question)
    kept = []
    for g in range(kv_heads):
        score = [0.0] * n
        for h in range(g * group, (g + 1) * group):
            for i in range(n - w, n):
                logits = [float(q[i, h] @ k[j, g]) / math.sqrt(d) for j in range(i + 1)]
                peak = max(logits)
                total = sum(math.exp(s - peak) for s in logits)
                for j, s in enumerate(logits):
                    score[j] += math.exp(s - peak) / total / w / group
        candidates = score[: n - w]
        reach = kernel // 2
        pooled = [
            max(candidates[max(0, t - reach) : t + reach + 1]) for t in range(len(candidates))
        ]
        documents = range(system, n - question)
        best = sorted(documents, key=lambda t: (-pooled[t], t))
        chosen = best[: max(0, budget - system - question)]
        kept.append(sorted([*range(system), *chosen, *range(n - question, n)]))
    return kept
