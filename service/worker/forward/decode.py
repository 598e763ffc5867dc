"""One decode step for all running sequences, whatever their lengths per layer and head.

Projections and MLP run once over the batch. Attention reads every sequence's KV where it lies in
the pool, so nothing is padded or copied, and a sequence's result does not depend on the other
sequences of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import write_tokens
from kvstitch.service.worker.kernels.cpu import linear_few_rows
from kvstitch.service.worker.kernels.cpu.decode_step import DecoderWeights, Kernel, kernel_for
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV, SequenceStates
from kvstitch.service.worker.model.attention import attend_last
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import AttentionRule
from kvstitch.service.worker.model.projection import FOR_KERNELS, layer_weights


class Decodable(Protocol):
    """A sequence with at least one generated token."""

    @property
    def tokens(self) -> list[int]: ...

    @property
    def position(self) -> int: ...

    @property
    def kv(self) -> SequenceKV | None: ...

    @property
    def lora(self) -> str:
        """Name of its LoRA adapter, or ""."""


@dataclass(frozen=True)
class Batch:
    """Inputs of a step besides weights and KV, in one tensor so that one copy moves all."""

    numbers: Tensor
    size: int
    layers: int
    longest: int

    @classmethod
    def of(
        cls,
        sequences: Sequence[Decodable],
        drafts: Sequence[Sequence[int]] | None = None,
        size: int = 0,
        *,
        windows: Sequence[int | None] = (),
    ) -> Batch:
        """Return a batch that feeds every sequence its last token, and a draft of the next ones."""
        assert sequences[0].kv is not None
        spare = sequences[0].kv.pool.spare
        rows: list[tuple[int, int]] = []
        starts: list[Tensor] = []
        lengths: list[Tensor] = []
        for sequence, draft in zip(sequences, drafts or [()] * len(sequences), strict=True):
            kv = sequence.kv
            assert kv is not None
            for place, token in enumerate((sequence.tokens[-1], *draft)):
                kv.grow()
                position = sequence.position + place
                rows.append((token, position))
                start, length = kv.runs(position, windows)
                starts.append(start)
                lengths.append(length)
        padding = max(0, size - len(rows))
        runs = torch.stack([torch.stack(starts, 1), torch.stack(lengths, 1)], 1)
        layers, _, _, heads = runs.shape
        spare_run = torch.tensor([spare, 1]).view(1, 2, 1, 1)
        runs = torch.cat([runs, spare_run.expand(layers, 2, padding, heads)], 2)
        rows += [(0, 0)] * padding
        numbers = torch.cat([torch.tensor(rows).t().flatten(), runs.flatten()])
        return cls(numbers, len(rows), layers, int(runs[:, 1].max()))

    def to(self, device: torch.device) -> Batch:
        return replace(self, numbers=self.numbers.to(device))

    @cached_property
    def ids(self) -> Tensor:
        return self.numbers[: self.size]

    @cached_property
    def positions(self) -> Tensor:
        return self.numbers[self.size : 2 * self.size]

    @cached_property
    def runs(self) -> Tensor:
        return self.numbers[2 * self.size :].view(self.layers, 2, -1)


def decode_step(
    decoder: DecoderModel,
    sequences: Sequence[Decodable],
    drafts: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """Feed every sequence of one pool its last token and a draft; return logits `[rows,
    vocabulary]` fp32 that follow each token, sequence by sequence."""
    assert sequences[0].kv is not None
    pool = sequences[0].kv.pool
    batch = Batch.of(sequences, drafts, windows=decoder.windows)
    pairs = zip(sequences, drafts or [()] * len(sequences), strict=True)
    loras = [sequence.lora for sequence, draft in pairs for _ in range(1 + len(draft))]
    if decoder.mixers:
        assert not any(drafts or ()), "states cannot be taken back"
        states = [sequence.kv.states for sequence in sequences if sequence.kv]
        return compute(decoder, pool, batch.to(decoder.device), states)
    return compute(decoder.with_loras(loras), pool, batch.to(decoder.device))


def compute(
    decoder: DecoderModel, pool: KVPool, batch: Batch, states: Sequence[SequenceStates] = ()
) -> Tensor:
    """Compute the step of a batch; return logits `[size, vocabulary]` fp32. It may be computed
    again, but not where there are `states` of mixers, which it moves on."""
    x = decoder.embed(batch.ids)
    kernel = _kernel(decoder, pool) if decoder.has_plain_layers else None
    if kernel is not None and batch.size <= linear_few_rows.MAX_BATCH:
        return kernel.step(x, batch.positions, batch.runs).float()
    positions, written = batch.positions, batch.runs.sum(1) - 1
    for layer in range(decoder.layers):
        if decoder.mixers:
            x = _mix(decoder, layer, x, states)
        q, k, v = decoder.qkv(layer, x, batch=True)
        q = write_tokens(
            decoder.ropes[layer], pool, layer, q, k, v, positions=positions, into=written[layer]
        )
        attended = _attend(decoder, pool, layer, q, batch).flatten(1)
        x = decoder.finish(layer, x, attended, batch=True)
    if decoder.ends_with_mixers:
        x = _mix(decoder, decoder.layers, x, states)
    for index, layer in enumerate(decoder.borrowed, start=decoder.layers):
        q = decoder.ropes[layer].rotate(decoder.query(index, x, batch=True), positions)
        attended = _attend(decoder, pool, layer, q, batch).flatten(1)
        x = decoder.finish(index, x, attended, batch=True)
    return decoder.logits(x, batch=True)


def _mix(decoder: DecoderModel, layer: int, x: Tensor, states: Sequence[SequenceStates]) -> Tensor:
    """Run the batch through the mixers before a layer, whose states move on."""
    for index in decoder.mixers[layer]:
        x, after = decoder.mix_step(index, x, [each.live[index] for each in states])
        for each, state in zip(states, after, strict=True):
            each.live[index] = state
    return x


class BatchDecoder:
    """Runs decode steps of sequences whose KV is in a pool, with and without LoRA adapters. Rows of
    the base model are computed as if no others were there, so that an answer does not depend on
    what else is decoded."""

    def __init__(self, decoder: DecoderModel, pool: KVPool) -> None:
        self._decoder = decoder
        # A recorded step knows nothing of mixers, and of what hidden states carry.
        steps = kernels_of(decoder.device).decode_steps
        by_device = None if decoder.mixers or decoder.carried else steps(decoder, pool)
        self._base_step = by_device or partial(decode_step, decoder)

    def step(
        self, sequences: Sequence[Decodable], drafts: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """`decode_step`; the next step may overwrite what it returns."""
        pairs = list(zip(sequences, drafts or [()] * len(sequences), strict=True))
        base = [pair for pair in pairs if not pair[0].lora]
        adapted = [pair for pair in pairs if pair[0].lora]
        if not adapted:
            return self._base_step(sequences, drafts)
        logits = decode_step(self._decoder, *zip(*adapted, strict=True))
        if not base:
            return logits
        base_logits = self._base_step(*zip(*base, strict=True))
        rows = torch.tensor(
            [bool(sequence.lora) for sequence, draft in pairs for _ in range(1 + len(draft))],
            device=logits.device,
        )
        joined = logits.new_empty(len(rows), logits.shape[1])
        joined[rows], joined[~rows] = logits, base_logits
        return joined


def kernel_weights(decoder: DecoderModel) -> DecoderWeights | None:
    """Return all parameters for a kernel that decodes by itself; None if none can."""
    if not decoder.has_plain_layers or decoder.config.hidden_act not in ("silu", "swish"):
        return None
    if decoder.head_order is not None:
        return None
    layers = list(map(layer_weights, decoder.blocks, decoder.projections))
    stored = [weights for weights in layers if weights is not None]
    head, last = decoder.head, decoder.model.model.norm
    if len(stored) < len(layers) or not isinstance(head, FOR_KERNELS):
        return None
    rope = decoder.ropes[0]
    return DecoderWeights(
        stored, last.weight, head.stored, rope.cos, rope.sin, heads=decoder.heads,
        kv_heads=decoder.kv_heads, eps=last.variance_epsilon, scale=decoder.scale,
    )  # fmt: skip


_KERNELS: WeakKeyDictionary[KVPool, Kernel | None] = WeakKeyDictionary()


def _kernel(decoder: DecoderModel, pool: KVPool) -> Kernel | None:
    """Return the kernel that computes whole steps of this model in this pool, if there is one."""
    if pool not in _KERNELS:
        _KERNELS[pool] = kernel_for(kernel_weights(decoder), pool.k, pool.v)
    return _KERNELS[pool]


def _attend(decoder: DecoderModel, pool: KVPool, layer: int, q: Tensor, batch: Batch) -> Tensor:
    """Return attention of q `[size, heads, head_dim]` to each sequence's KV, in the same shape."""
    k, v, runs = pool.k[layer], pool.v[layer], batch.runs[layer]
    rule, scale = decoder.rules[layer], decoder.scale
    if rule.plain_weights:
        attended = kernels_of(q.device).attend_runs(q, k, v, runs, batch.longest, scale)
        if attended is not None:
            return attended
    return _attend_one_by_one(q, k, v, runs, scale, rule)


def _attend_one_by_one(
    q: Tensor, k: Tensor, v: Tensor, runs: Tensor, scale: float, rule: AttentionRule
) -> Tensor:
    """Return attention with torch's kernel, sequence by sequence."""
    out = torch.empty_like(q)
    starts, lengths = runs.view(2, len(q), -1).tolist()
    for queries, attended, start, length in zip(q, out, starts, lengths, strict=True):
        heads, d = len(start), q.shape[2]
        stride = start[-1] - start[-2] if heads > 1 else length[0]
        even = start == [start[0] + head * stride for head in range(heads)]
        if even and len(set(length)) == 1:
            spans = [(slice(0, len(queries)), start[0], length[0], heads)]
        else:
            group = len(queries) // heads
            spans = [
                (slice(head * group, (head + 1) * group), start[head], length[head], 1)
                for head in range(heads)
            ]
        for query_heads, first, n, kv_heads in spans:
            shape, strides = (kv_heads, n, d), (stride * d, d, 1)
            keys, values = (
                x.as_strided(shape, strides, x.storage_offset() + first * d) for x in (k, v)
            )
            out_here = attend_last(
                queries[query_heads], keys, values, scale, rule=rule.of_heads(query_heads)
            )
            attended[query_heads] = out_here.view(-1, d)
    return out
