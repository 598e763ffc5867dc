"""One rank's part of a decoder: some heads of every layer, and a part of every MLP.

    queries, keys, values   rows of the weights: this rank's heads
    output projection       columns; the ranks' results are added up
    gate and up             rows: a part of the MLP's inner values
    down                    columns; the ranks' results are added up
    head                    rows: a part of the vocabulary; rank 0 joins the logits

Embeddings and norms are the same on every rank, and so are the hidden states. int8 and int4 weights
are cut with the scales of the whole. Of what a LoRA adapter adds, B·A·x, B is cut where rows are,
and A where columns are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from service.errors import ModelRefused
from service.worker.kernels.cpu.weight import GROUP
from service.worker.model.decoder import DecoderModel
from service.worker.model.families import family_decoder
from service.worker.model.projection import Projection, QuantisedLinear
from service.worker.parallel.exchange import Exchange
from service.worker.steps import Steps

FAMILIES = frozenset({"granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"})
"""Families whose layers can be split so. Others normalise over all heads, or choose experts."""
BY_COLUMNS = ("o_proj", "down_proj")


@dataclass(frozen=True)
class Joined:
    """A projection of which every rank has some rows; only rank 0 gets the whole result."""

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

    def attention_residual(self, block: Any, attended: Tensor) -> Tensor:
        return super().attention_residual(block, self.exchange.sum(attended))

    def mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        return self.exchange.sum((yield from super().mlp(layer, x, batch)))

    def own_low_rank(self, module: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = _own(self.exchange, self.config, module, (len(b), a.shape[1]))
        return a[:, columns], b[rows]


def sharded(model: Any, exchange: Exchange, device: torch.device) -> DecoderModel:
    """Return the decoder for this rank's part of a model, which is cut to it on the CPU."""
    refuse_model(model.config, exchange.size)
    cut(model, exchange)
    family = family_decoder(str(model.config.model_type))
    made = type(f"Sharded{family.__name__}", (ShardedModel, family), {"exchange": exchange})
    decoder: DecoderModel = made(model.to(device))
    return decoder


def refuse_model(config: Any, size: int) -> None:
    """Raise ModelRefused if a model with this configuration cannot be split over `size` ranks."""
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
            "--tensor-parallel: leave it out, or give a checkpoint that is not quantised with "
            "--quantize int8",
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
    """Leave of every linear module of the layers, and of the head, the part of this rank."""
    for block in model.model.layers:
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear | QuantisedLinear):
                size = (module.out_features, module.in_features)
                _keep(module, *_own(exchange, model.config, name, size))
                if name.endswith(BY_COLUMNS) and exchange.rank:
                    module.bias = None  # rank 0 adds it
    if isinstance(model.lm_head, nn.Linear):
        # A module of its own: where the head's weights are the embeddings', these must stay whole.
        head = nn.Linear(1, 1, bias=False)
        head.weight, head.bias = model.lm_head.weight, model.lm_head.bias
        model.lm_head = head
    _keep(model.lm_head, exchange.own(model.config.vocab_size), slice(None))


def _own(
    exchange: Exchange, config: Any, module: str, size: tuple[int, int]
) -> tuple[slice | Tensor, slice]:
    """Return this rank's rows and columns of a linear module."""
    outs, columns = size
    name = module.rpartition(".")[2]
    if name in BY_COLUMNS:
        return slice(None), exchange.own(columns)
    groups = [outs]  # of rows that stand after one another; the rank has a part of each
    if name == "qkv_proj":
        heads = int(config.num_attention_heads)
        kv_heads = int(config.num_key_value_heads or heads)
        groups = [outs // (heads + 2 * kv_heads) * each for each in (heads, kv_heads, kv_heads)]
    elif name == "gate_up_proj":
        groups = [outs // 2, outs // 2]
    if len(groups) == 1:
        return exchange.own(outs), slice(None)
    parts = torch.split(torch.arange(outs), groups)
    return torch.cat([part[exchange.own(len(part))] for part in parts]), slice(None)


def _keep(linear: Any, rows: slice | Tensor, columns: slice) -> None:
    """Keep a part of a linear module, whose `out_features` and `in_features` stay."""
    if isinstance(linear, QuantisedLinear):
        bounds = [b for b in (columns.start, columns.stop) if b is not None]
        if linear.weight.bits == 4 and any(bound % GROUP for bound in bounds):
            raise ModelRefused(
                f"--quantize int4 needs multiples of {GROUP} columns on every rank: "
                "choose another --tensor-parallel, or --quantize int8",
                field="tensor_parallel",
            )
        linear.weight = linear.weight.rows(rows).columns(columns)
    else:
        linear.weight = _parameter(linear.weight.detach()[rows][:, columns])
    if linear.bias is not None:
        linear.bias = _parameter(linear.bias.detach()[rows])


def _parameter(data: Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)
