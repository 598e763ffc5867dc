"""One rank's part of a decoder: some heads of every layer, and a part of every MLP.

    queries, keys, values   rows of the weights: this rank's heads
    output projection       columns; the ranks' results are added up
    gate and up             rows: a part of the MLP's inner values
    down                    columns; the ranks' results are added up
    head                    rows: a part of the vocabulary; rank 0 joins the logits

Embeddings and norms are the same on every rank, and so are the hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from service.errors import ModelRefused
from service.worker.model.decoder import DecoderModel
from service.worker.model.families import family_decoder
from service.worker.model.projection import LayerProjections, Projection
from service.worker.parallel.exchange import Exchange
from service.worker.steps import Steps

FAMILIES = frozenset({"granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"})
"""Families whose layers can be split so. Others normalise over all heads, or choose experts."""


@dataclass(frozen=True)
class Summed:
    """A projection of which every rank has some columns."""

    part: Projection
    exchange: Exchange

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return self.exchange.sum(self.part(x, batch=batch))


@dataclass(frozen=True)
class Joined:
    """A projection of which every rank has some rows; only rank 0 gets the whole result.

    Attributes:
        sizes: number of every rank's rows.
    """

    part: Projection
    exchange: Exchange
    sizes: Sequence[int]

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return self.exchange.to_first(self.part(x, batch=batch), 1, self.sizes)


class ShardedModel(DecoderModel):
    """Comes before a family's decoder: `sharded` makes a class of both."""

    exchange: ClassVar[Exchange]
    has_plain_layers = False  # the kernel that decodes a whole step cannot wait for other ranks

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        exchange = self.ranks = self.exchange
        self.own_heads = self.heads // exchange.size
        self.own_kv_heads = self.kv_heads // exchange.size
        self.head = Joined(self.head, exchange, exchange.sizes(self.vocabulary))

    def layer_projections(self, block: Any) -> LayerProjections:
        whole = super().layer_projections(block)
        return replace(whole, output=Summed(whole.output, self.exchange))

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        return self.exchange.sum((yield from super().mlp(layer, x, batch)))


def sharded(model: Any, exchange: Exchange, device: torch.device) -> DecoderModel:
    """The decoder for this rank's part of a model, which is cut to it on the CPU.

    Raises:
        ModelRefused: its layers cannot be split over so many ranks.
    """
    refuse_model(model.config, exchange.size)
    cut(model, exchange)
    family = family_decoder(str(model.config.model_type))
    made = type(f"Sharded{family.__name__}", (ShardedModel, family), {"exchange": exchange})
    decoder: DecoderModel = made(model.to(device))
    return decoder


def refuse_model(config: Any, size: int) -> None:
    """Raises ModelRefused if a model with this configuration cannot be split over `size` ranks."""
    family = str(config.model_type)
    if family not in FAMILIES:
        raise ModelRefused(
            f"models of type {family} are not served with --tensor-parallel; those that are: "
            f"{', '.join(sorted(FAMILIES))}",
            field="tensor_parallel",
        )
    if any(getattr(config, f"{name}_config", None) for name in ("quantization", "compression")):
        raise ModelRefused(
            "the checkpoint's weights are quantised, and those are not served with "
            "--tensor-parallel: leave it out, or give a checkpoint that is not quantised",
            field="tensor_parallel",
        )
    heads = int(config.num_attention_heads)
    numbers = {
        "query heads": heads,
        "KV heads": int(config.num_key_value_heads or heads),
        "values in its MLP": int(config.intermediate_size),
    }
    for what, number in numbers.items():
        if number % size:
            raise ModelRefused(
                f"the model has {number} {what}, which --tensor-parallel {size} does not divide: "
                "choose a number that does",
                field="tensor_parallel",
            )


def cut(model: Any, exchange: Exchange) -> None:
    """Leaves of every projection the part of this rank."""
    config = model.config
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        if hasattr(attention, "qkv_proj"):
            heads = int(config.num_attention_heads)
            kv_heads = int(config.num_key_value_heads or heads)
            head_dim = len(attention.qkv_proj.weight) // (heads + 2 * kv_heads)
            groups = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
            _keep_rows(attention.qkv_proj, exchange, groups)
        else:
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                _keep_rows(projection, exchange)
        _keep_columns(attention.o_proj, exchange)
        if hasattr(mlp, "gate_up_proj"):
            _keep_rows(mlp.gate_up_proj, exchange, [config.intermediate_size] * 2)
        else:
            _keep_rows(mlp.gate_proj, exchange)
            _keep_rows(mlp.up_proj, exchange)
        _keep_columns(mlp.down_proj, exchange)
    # A module of its own: where the head's weights are the embeddings', these must stay whole.
    head = nn.Linear(1, 1, bias=False)
    head.weight, head.bias = model.lm_head.weight, model.lm_head.bias
    _keep_rows(head, exchange)
    model.lm_head = head


def _keep_rows(linear: Any, exchange: Exchange, groups: Sequence[int] = ()) -> None:
    """Keeps this rank's part of the outputs, of each of the groups that stand after one another."""
    for name in ("weight", "bias"):
        whole = getattr(linear, name)
        if whole is not None:
            parts = whole.detach().split(list(groups) or len(whole))
            own = [part[exchange.own(len(part))] for part in parts]
            setattr(linear, name, _parameter(own[0] if len(own) == 1 else torch.cat(own)))


def _keep_columns(linear: Any, exchange: Exchange) -> None:
    """Keeps this rank's part of the inputs. The bias is added once, by rank 0."""
    weight = linear.weight.detach()
    linear.weight = _parameter(weight[:, exchange.own(weight.shape[1])])
    if exchange.rank:
        linear.bias = None


def _parameter(data: Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


def weight_bytes(decoder: DecoderModel) -> int:
    """Bytes of the weights that this process holds."""
    held = {p.data_ptr(): p.numel() * p.element_size() for p in decoder.model.parameters()}
    return sum(held.values())
