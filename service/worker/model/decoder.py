"""The decoder as the layer loop needs it: embed, QKV before RoPE, finish a layer, logits.

The stock transformers modules hold the weights. The decoder calls their parts one by one, so that
QKV can be computed for all rows and attention for some, and keys are available before RoPE.
Projections that read the same rows are fused into one product (`projection`), which runs the way
that is fastest for the number of rows (`kvstitch.service.worker.kernels.cpu.cpu_linear`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstitch.service.worker.kernels.cpu import cpu_linear, decode_step
from kvstitch.service.worker.kernels.cpu.decode_step import LayerParts
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.model.lora_projection import Lora, rows_by_name, with_updates
from kvstitch.service.worker.model.mixer_state import MixerShape, State, StoredState
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule, ModelFacts
from kvstitch.service.worker.model.projection import (
    DenseProjection,
    LayerProjections,
    Projection,
    QuantisedProjection,
    StoredEmbedding,
    fuse,
    layer_weights,
    norm,
)
from kvstitch.service.worker.model.rope import RotaryTable, halves_order, static_positions
from kvstitch.service.worker.model.supported import WINDOW_BY_LAYER, WINDOW_IN_EVERY_LAYER
from kvstitch.service.worker.steps import Steps, run


class DecoderModel:
    """A pre-norm decoder with GQA, RoPE and a gated MLP, whose modules are named like Llama's.

    What other families do differently are the hooks below. It computes the base model; `with_lora`
    and `with_loras` compute what `loras` add. `batch` means that the rows belong to different
    sequences: how many there are must not change how they are computed.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self.config = config
        self.family = str(config.model_type)
        self.heads = int(config.num_attention_heads)  # query heads of a layer
        self.lora = ""
        self.hidden = int(config.hidden_size)
        self.kv_heads, self.head_dim = self.kv_shape(config)  # of a layer
        self.vocabulary = int(config.vocab_size)
        self.intermediate = int(config.intermediate_size)
        self.scale = float(self.head_dim**-0.5)
        table = model.get_input_embeddings()
        self.dtype: torch.dtype = table.weight.dtype
        if isinstance(table, StoredEmbedding):
            self.dtype = torch.float32
        self.device: torch.device = table.weight.device
        self.layers = len(model.model.layers)
        self.blocks = self.order_blocks(model.model.layers)
        self.projections = [self.layer_projections(block) for block in self.blocks]
        self.head: Projection = fuse(model.lm_head)
        self._let_go_of_the_file()
        self.max_context = static_positions(config)
        """Largest prompt plus answer, in tokens."""
        self.ropes = self.rotary_tables()
        self.loras: dict[str, Lora] = {}
        order = self.rotary_order()
        self.head_order = None if order is None else order.to(self.device)
        self.rules = self.attention_rules()
        windows = tuple(rule.window for rule in self.rules)
        # every layer's sliding window in tokens, None for a layer without; empty if no layer has
        # one
        self.windows = windows if any(windows) else ()
        self.parts = self._layer_parts()

    def _let_go_of_the_file(self) -> None:
        """Copy what was not fused, norms and embeddings: they are views of the checkpoint's
        mapped file, and a single one keeps the whole file in the process's memory."""
        linear = (m for m in self.model.modules() if isinstance(m, nn.Linear))
        fused = {id(parameter) for module in linear for parameter in module.parameters()}
        for parameter in self.model.parameters():
            if id(parameter) not in fused and parameter.device.type == "cpu":
                parameter.data = parameter.data.clone()

    def _layer_parts(self) -> list[LayerParts | None]:
        """Return what computes the two parts of each layer in one call, None where nothing can."""
        none: list[LayerParts | None] = [None] * len(self.blocks)
        silu = getattr(self.config, "hidden_act", None) in ("silu", "swish")
        if not (self.has_plain_layers and silu) or self.head_order is not None:
            return none
        weights = list(map(layer_weights, self.blocks, self.projections))
        eps = self.blocks[0].input_layernorm.variance_epsilon
        return [
            LayerParts(each, heads=self.heads, kv_heads=self.kv_heads, eps=eps)
            if each is not None and decode_step.supports_layer(each, self.heads)
            else None
            for each in weights
        ]

    # -- hooks for families -----------------------------------------------------------------------

    has_plain_layers = True
    """Whether layers compute what Llama's or Qwen3's do, so that a kernel may decode by itself."""

    values_are_keys = False
    """Whether the values of a row are its key before RoPE, of which chunks store one."""

    mixers: Sequence[Sequence[int]] = ()
    """Blocks that keep a state, which stand before each layer and behind the last; empty where
    there are none."""

    mixer: MixerShape | None = None
    """Sizes of these blocks."""

    borrowed: Sequence[int] = ()
    """By block behind the layers, the layer to whose keys and values it attends."""

    carried = 0
    """Columns that stand behind those of the hidden states and go with them."""

    def query(self, layer: int, x: Tensor, *, batch: bool = False) -> Tensor:
        """Project x to the queries of a block that borrows, `[m, heads, head_dim]`."""
        raise NotImplementedError

    def order_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Return transformers' layers, the `layers` that attend first."""
        return list(blocks)

    def mix(
        self,
        index: int,
        x: Tensor,
        state: State | None,
        pieces: Sequence[int | StoredState] = (),
        *,
        stored: list[StoredState] | None = None,
    ) -> Steps[tuple[Tensor, State, State | None]]:
        """Run rows of one sequence through a block of `mixers` (`Hybrid.mix`)."""
        raise NotImplementedError

    def mix_step(
        self, index: int, x: Tensor, states: Sequence[State]
    ) -> tuple[Tensor, list[State]]:
        """Run one row of each of several sequences, x `[sequences, hidden]`."""
        raise NotImplementedError

    rotary, last_norm = "rotary_emb", "norm"
    """Names of modules in transformers' model."""

    measured = True
    """Whether what methods do is known of real weights of this family, or of one much like it."""

    takes_adapters = True
    """Whether LoRA adapters can be added to its projections."""

    def kv_shape(self, config: Any) -> tuple[int, int]:
        """Return KV heads and the width of one, which is that of queries, too."""
        wide = getattr(config, "head_dim", None) or self.hidden // self.heads
        return int(config.num_key_value_heads or self.heads), int(wide)

    def layer_projections(self, block: Any) -> LayerProjections:
        qkv, output = self.qkv_projection(block.self_attn), fuse(block.self_attn.o_proj)
        return LayerProjections(qkv, output, *self.mlp_projections(block.mlp))

    def qkv_projection(self, attention: Any) -> Projection:
        """Return the projection to queries, keys and values."""
        return fuse(attention.q_proj, attention.k_proj, attention.v_proj)

    def mlp_projections(self, mlp: Any) -> tuple[Projection, Projection] | tuple[None, None]:
        """Return the projections of an MLP to gate and up, and down; None if it is no gated MLP."""
        return fuse(mlp.gate_proj, mlp.up_proj), fuse(mlp.down_proj)

    def rotary_tables(self) -> list[RotaryTable]:
        """Return the rotation of every layer."""
        rotary = getattr(self.model.model, self.rotary)
        table = RotaryTable.of(
            self.config, rotary, self.max_context, self.device, head_dim=self.head_dim
        )
        return [table] * self.layers

    def rotary_tables_by_type(self) -> list[RotaryTable]:
        """`rotary_tables` where the model has a RoPE for each of its `layer_types`."""
        rotary, types = self.model.model.rotary_emb, self.config.layer_types
        tables = {
            kind: RotaryTable.of(
                self.config, rotary, self.max_context, self.device,
                head_dim=self.head_dim, layer_type=kind,
            )
            for kind in sorted(set(types))
        }  # fmt: skip
        return [tables[kind] for kind in types]

    @staticmethod
    def rotated_only(tables: Sequence[RotaryTable], rotated: Iterable[bool]) -> list[RotaryTable]:
        """Return the tables of layers of which some rotate nothing."""
        none = RotaryTable.none(tables[0])
        return [table if r else none for table, r in zip(tables, rotated, strict=True)]

    def rotary_order(self) -> Tensor | None:
        """Return the order `[head_dim]` in which i and i + head_dim / 2 turn together."""
        return halves_order(self.head_dim, rotated=self.ropes[0].rotated)

    def attention_rules(self) -> list[AttentionRule]:
        """Return what every layer adds to causal attention: by default the family's windows."""
        by_layer = self.family in WINDOW_BY_LAYER
        window = by_layer or self.family in WINDOW_IN_EVERY_LAYER
        if not (window and self.config.sliding_window):
            return [PLAIN] * self.layers
        slides = AttentionRule(window=int(self.config.sliding_window))
        if not by_layer:
            return [slides] * self.layers
        kinds = self.config.layer_types
        return [slides if kind == "sliding_attention" else PLAIN for kind in kinds]

    def attention_input(self, block: Any, x: Tensor) -> Tensor:
        """Return what queries, keys and values are projected from."""
        return norm(block.input_layernorm, x)

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries `[m, heads, head_dim]` and keys after the norm that some families have."""
        if not hasattr(attention, "q_norm"):
            return q, k
        return norm(attention.q_norm, q), norm(attention.k_norm, k)

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        """Return what is added to the hidden state after attention."""
        return attended

    def mlp_input(self, block: Any, x: Tensor) -> Tensor:
        return norm(block.post_attention_layernorm, x)

    def mlp_residual(self, block: Any, out: Tensor) -> Tensor:
        """Return what is added to the hidden state after the MLP."""
        return out

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        """Return the MLP of a layer, for rows `[m, hidden]` after its norm."""
        projections, activation = self.projections[layer], activation_of(self.blocks[layer].mlp)
        gate_up, down = projections.gate_up, projections.down
        assert gate_up is not None and down is not None
        if isinstance(gate_up, QuantisedProjection) and isinstance(down, QuantisedProjection):
            both = gate_up.stored, down.stored
            return (yield from cpu_linear.quantised_gated_mlp(x, *both, activation, batch=batch))
        if getattr(self.config, "hidden_act", None) in ("silu", "swish"):
            activation = F.silu  # the function itself, by which kernels recognise it
        if (weights := _without_bias(gate_up, down)) is not None:
            gate, up = weights[0].chunk(2)
            parts = (x, gate, up, weights[1], activation)
            if cpu_linear.supports_gated_mlp(*parts, batch=batch):
                return (yield from cpu_linear.gated_mlp(*parts))
        inner = kernels_of(x.device).multiply_gated(gate_up(x, batch=batch), activation)
        return down(inner, batch=batch)

    # -- LoRA adapters ----------------------------------------------------------------------------

    def with_lora(self, name: str) -> Self:
        """Return this decoder with a LoRA adapter for all rows; "": the base model."""
        if not name:
            return self
        view = self._updated([(None, self.loras[name])])
        view.lora = name
        return view

    def with_loras(self, names: Sequence[str]) -> Self:
        """Return this decoder for batches whose row i has the LoRA adapter `names[i]`; "": none."""
        if len(set(names)) == 1:
            return self.with_lora(names[0])
        rows = rows_by_name(names, self.device)
        return self._updated([(rows[name], self.loras[name]) for name in rows])

    def _updated(self, loras: Sequence[tuple[Tensor | None, Lora]]) -> Self:
        view = copy.copy(self)
        view.projections = with_updates(self.projections, loras)
        view.has_plain_layers = False  # no kernel that computes more than a product adds anything
        view.parts = [None] * self.layers
        return view

    # -- what the layer loops call ----------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings `[m, hidden]` of ids `[m]`."""
        return F.embedding(ids, self.model.get_input_embeddings().weight).to(self.dtype)

    def qkv(self, layer: int, x: Tensor, *, batch: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Project x `[m, hidden]` to q `[m, heads, head_dim]`, k and v `[m, kv_heads,
        head_dim]`, before RoPE and after any norm of q and k."""
        if (parts := self.parts[layer]) is not None and parts.takes(x, batch=batch):
            heads = parts.qkv(x, batch=batch).view(x.shape[0], -1, self.head_dim)
            sizes = self.heads, self.kv_heads, self.kv_heads
            q, k, v = heads.split_with_sizes(sizes, 1)
            return q, k, v
        block = self.blocks[layer]
        out = self.projections[layer].qkv(self.attention_input(block, x), batch=batch)
        heads = out.view(len(x), -1, self.head_dim)
        first_k, first_v = self.heads, self.heads + self.kv_heads
        q, k = self.normalise(block.self_attn, heads[:, :first_k], heads[:, first_k:first_v])
        if self.head_order is not None:
            q, k = q[..., self.head_order], k[..., self.head_order]
        return q, k, heads[:, first_v:]

    def finish(self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False) -> Tensor:
        """Finish a layer from x `[m, hidden]` and attended `[m, heads * head_dim]`."""
        return run(self.finish_steps(layer, x, attended, batch=batch))

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        """`finish` in steps: pauses where many rows take long."""
        if (parts := self.parts[layer]) is not None and parts.takes(x, batch=batch):
            return parts.finish(x, attended, batch=batch)
        block = self.blocks[layer]
        projected = self.projections[layer].output(attended, batch=batch)
        x, inner = self._after_attention(block, x, self.attention_residual(block, projected))
        out = yield from self.mlp(layer, inner, batch)
        return x + self.mlp_residual(block, out)

    def _after_attention(self, block: Any, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden state with attention added, and what the MLP computes of it."""
        if type(self).mlp_input is DecoderModel.mlp_input:
            kernels = kernels_of(x.device)
            return kernels.add_and_normalise(block.post_attention_layernorm, x, added)
        x = x + added
        return x, self.mlp_input(block, x)

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        """Return next-token logits of rows after the last layer, `[m, vocabulary]` fp32."""
        last = getattr(self.model.model, self.last_norm)
        return self.head(norm(last, x), batch=batch).float()

    @property
    def facts(self) -> ModelFacts:
        """What methods know of it where nothing was measured."""
        return ModelFacts(self.layers, self.heads, self.kv_heads, stateful=bool(self.mixers))

    @property
    def ends_with_mixers(self) -> bool:
        """Whether mixers stand behind the last layer."""
        return bool(self.mixers and self.mixers[-1])

    @cached_property
    def mixers_per_layer(self) -> int:
        """Of how many mixers a layer of a chunk holds what they store: of all, one after the other,
        so few that nothing is needed before its layer is."""
        needed = list(accumulate(map(len, self.mixers)))
        needed[-2:] = needed[-1:]  # those behind the last layer are with it
        return max(-(-count // (1 + layer)) for layer, count in enumerate(needed))

    def state_bytes(self, codec: str) -> int:
        """Return bytes per layer of what a chunk stores for mixers."""
        if self.mixer is None:
            return 0
        return self.mixers_per_layer * self.mixer.nbytes(self.dtype, codec)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end an answer."""
        for source in (getattr(self.model, "generation_config", None), self.config):
            end = getattr(source, "eos_token_id", None)
            if end is not None:
                return frozenset(end if isinstance(end, list) else [end])
        return frozenset()

    @cached_property
    def attention_weights(self) -> tuple[int, int]:
        """Numbers of a layer's projections before attention, and of the one behind it."""
        wide = self.hidden * self.head_dim
        return wide * (self.heads + 2 * self.kv_heads), wide * self.heads

    def feed_weights(self, block: Any) -> int:
        """Return numbers of what stands behind a block's output that a row is multiplied by."""
        return 3 * self.hidden * self.intermediate

    @cached_property
    def layer_weights(self) -> list[tuple[int, int]]:
        """As `Shape` has them."""
        before, behind = self.attention_weights
        return [(before, behind + self.feed_weights(b)) for b in self.blocks[: self.layers]]

    @property
    def kv_bytes_per_token(self) -> int:
        """In the KV pool; chunks store half of it where `values_are_keys`."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


def _without_bias(gate_up: Projection, down: Projection) -> tuple[Tensor, Tensor] | None:
    """Return the weights of a gated MLP that a kernel may compute as a whole."""
    if not (isinstance(gate_up, DenseProjection) and isinstance(down, DenseProjection)):
        return None
    if gate_up.bias is not None or down.bias is not None:
        return None
    return gate_up.weight, down.weight


def activation_of(mlp: Any) -> Callable[[Tensor], Tensor]:
    """Return the activation function of a gated MLP, which families name differently."""
    function: Callable[[Tensor], Tensor] = getattr(mlp, "act_fn", None) or mlp.activation_fn
    return function
