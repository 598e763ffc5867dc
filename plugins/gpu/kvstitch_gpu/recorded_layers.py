"""The layers that are recorded, and the same by what computes them where nothing is recorded.

Recorded operations take everything that differs from prompt to prompt from `Tensors`. Rows behind
those given see nothing and write nothing; where all rows of a prompt are computed, they stand
behind them, so no row sees them.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import write_and_rotate
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.model.attention import attend_rows, attend_with_scores
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import PLAIN
from kvstitch_gpu import (
    attention_scores_gpu,
    index_causal_attention,
    ragged_attention_gpu,
    rotation_gpu,
    shift_gpu,
)
from kvstitch_gpu.recorded_tensors import Given, Shape, Tensors
from kvstitch_gpu.shift_gpu import ShiftPlan


def supports(decoder: DecoderModel, pool: KVPool) -> bool:
    """Return whether layers of this decoder can be recorded: kernels compute all of them, and it
    depends on no numbers what they do."""
    if any(rule is not PLAIN for rule in decoder.rules):
        return False
    q = pool.all_k.new_empty(1, decoder.heads, decoder.head_dim)
    group = decoder.heads // decoder.kv_heads
    return (
        rotation_gpu.supports(q)
        and attention_scores_gpu.supports(q, decoder.head_dim)
        and ragged_attention_gpu.supports(q, pool.k[0], group)
        and shift_gpu.supports(q)
    )


def compute(
    decoder: DecoderModel, pool: KVPool, shape: Shape, tensors: Tensors, group: range
) -> Tensor:
    """Compute the layers of a group from what stands in the tensors; this is recorded."""
    x, positions = tensors.x, tensors.positions
    if not group.start and not shape.from_attention:
        x = decoder.embed(tensors.ids)
    for layer in group:
        extent, rope = tensors.extent(layer), decoder.ropes[layer]
        # The start of the layer's memory, for every head: `extent` says what lies where.
        k_all, v_all = (of[layer][:1].expand(decoder.kv_heads, -1, -1) for of in (pool.k, pool.v))
        if shape.from_attention and layer == shape.first:
            q, k, v = tensors.q, tensors.q, tensors.q  # keys and values are in the cache
        else:
            fresh_q, k, v = decoder.qkv(layer, x)
            shifted = shape.shifted and layer > 0
            replaced = (k.new_empty(k.shape), v.new_empty(v.shape)) if shifted else None
            q = rotation_gpu.write_with_queries(
                fresh_q, k, v, k_all, v_all, positions=positions, cos=rope.cos, sin=rope.sin,
                extent=extent, replaced=replaced,
            )  # fmt: skip
            if replaced is not None:
                shift_gpu.shift(
                    tensors.shift, k_all, v_all, (k, v), replaced, positions,
                    cos=rope.cos, sin=rope.sin, keys=True, values=True, extent=extent,
                )  # fmt: skip
        if shape.answers and layer + 1 == shape.stop:
            x, q = x.index_select(0, tensors.last), q.index_select(0, tensors.last)
            attended = ragged_attention_gpu.attend(
                q, pool.k[layer], pool.v[layer], tensors.runs, shape.keys, decoder.scale
            ).flatten(1)
        elif layer in shape.scored:
            attended = attention_scores_gpu.fill_scores(
                q, k_all, v_all, positions, tensors.weights, decoder.scale,
                tensors.scores[layer - shape.scored.start], extent=extent,
            )  # fmt: skip
        elif shape.every:
            k = rotation_gpu.rotate(k, positions, cos=rope.cos, sin=rope.sin)
            kv = k.transpose(0, 1), v.transpose(0, 1)
            attended = attend_rows(q, *kv, positions, decoder.scale)
        else:
            attended = index_causal_attention.attend(
                q, k_all, v_all, positions, decoder.scale, extent=extent, most_keys=shape.keys
            )
        if shape.is_finished(layer):
            x = decoder.finish(layer, x, attended)
    if shape.answers and group.stop == shape.stop:
        return tensors.logits.copy_(decoder.logits(x))
    return tensors.x.copy_(x)


def unrecorded(
    decoder: DecoderModel, shape: Shape, group: range, kv: SequenceKV, given: Given
) -> list[Tensor]:
    """Compute the layers of a group of a prompt by what the layer loop calls."""
    device, tokens, scores = decoder.device, given.tokens, []
    rows, x, q = given.rows.to(device), given.x, None
    if shape.from_attention and group.start == shape.first:
        q = given.q
    elif not group.start:
        assert given.ids is not None
        x = decoder.embed(given.ids.to(device))
    assert x is not None
    for layer in group:
        layer_kv, rope = kv.prompt_layer(layer, tokens), decoder.ropes[layer]
        if q is None:
            fresh_q, k, v = decoder.qkv(layer, x)
            shift = given.shift if layer else None
            old = []
            if shift is not None:
                old = [of[:, rows].transpose(0, 1).contiguous() for of in layer_kv]
            q = write_and_rotate(rope, layer_kv, fresh_q, k, v, rows)
            if shift is not None:
                moved = (shift.moved * shift.weight).to(device, k.dtype)
                shift_gpu.shift(
                    ShiftPlan.of(shift.lines, shift.places, moved, 0, device),
                    *layer_kv, (k, v), (old[0], old[1]), rows,
                    cos=rope.cos, sin=rope.sin, keys=True, values=True,
                )  # fmt: skip
        attend = partial(attend_rows, scale=decoder.scale)
        if shape.answers and layer + 1 == shape.stop:
            x, q, rows = x[-1:], q[-1:], rows[-1:]
            attended = attend(q, *layer_kv, rows, last=int(given.rows[-1]))
        elif layer in shape.scored:
            assert given.weights is not None
            attended, scored = attend_with_scores(q, *layer_kv, rows, given.weights, decoder.scale)
            scores.append(scored)
        else:
            attended = attend(q, *layer_kv, rows)
        q = None
        if shape.is_finished(layer):
            x = decoder.finish(layer, x, attended)
    last = shape.answers and group.stop == shape.stop
    return [decoder.logits(x) if last else x, *scores]
