"""KVPool and SequenceKV: every number lands where it belongs, memory is what was kept, and all of
it comes back."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.model.attention import attend_last
from tests.service.worker.held import held
from tests.service.worker.tiny import assert_close

LAYERS, KV_HEADS, D = 2, 3, 4


def pool_of(tokens: int, layers: int = LAYERS) -> KVPool:
    return KVPool(layers, KV_HEADS, D, tokens, dtype=torch.float32, device=torch.device("cpu"))


def fill(sequence: SequenceKV, n: int, mark: float) -> list[tuple[Tensor, Tensor]]:
    """Random prompt KV of n tokens; returns copies per layer `[kv_heads, n, d]`."""
    out = []
    for layer in range(len(sequence.start)):
        k, v = sequence.prompt_layer(layer, n)
        source = torch.Generator().manual_seed(int(mark) * 100 + layer)
        k.copy_(torch.randn(KV_HEADS, n, D, generator=source) + mark)
        v.copy_(torch.randn(KV_HEADS, n, D, generator=source) - mark)
        out.append((k.clone(), v.clone()))
    sequence.set_length(n)
    return out


def append(sequence: SequenceKV) -> list[tuple[Tensor, Tensor]]:
    """One more random token; its K, V `[kv_heads, d]` of every layer."""
    sequence.grow()
    out = []
    for layer in range(len(sequence.start)):
        k, v = torch.randn(2, KV_HEADS, D)
        rows = sequence.start[layer] + sequence.length[layer] - 1
        sequence.pool.write(layer, rows, k, v)
        out.append((k, v))
    return out


def used_rows(sequence: SequenceKV, layer: int) -> set[int]:
    extents = zip(sequence.start[layer].tolist(), sequence.capacity[layer].tolist(), strict=True)
    return {row for start, size in extents for row in range(start, start + size)}


def random_kept(n: int, lengths: list[int], seed: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randperm(n, generator=source)[:size].sort().values for size in lengths]


@pytest.mark.parametrize("lengths", [[4, 4, 4], [5, 2, 4], [1, 6, 1], [6, 6, 6], [0, 3, 2]])
def test_keep_then_append(lengths: list[int]) -> None:
    """Equal and unequal lengths per head: kept entries in order, new ones behind them."""
    pool = pool_of(30)
    other = pool.reserve(5)
    sequence = pool.reserve(10)
    assert sequence is not None and other is not None
    fixed = fill(other, 5, 9)
    filled = fill(sequence, 6, 1)
    kept = [random_kept(6, lengths, layer) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        sequence.keep(layer, kept[layer], room=2)
        assert sequence.length[layer].tolist() == lengths
    added = [append(sequence) for _ in range(2)]
    for layer in range(LAYERS):
        expected = [
            [torch.cat([was[h][kept[layer][h]], *(new[layer][i][h, None] for new in added)])
             for i, was in enumerate(filled[layer])]
            for h in range(KV_HEADS)
        ]  # fmt: skip
        for have, want in zip(held(sequence, layer), expected, strict=True):
            assert have[0].equal(want[0]) and have[1].equal(want[1])
        assert sequence.kept_tokens(layer) == pytest.approx(sum(lengths) / KV_HEADS + 2)
        # The neighbour is untouched.
        for head, (k, v) in enumerate(held(other, layer)):
            assert k.equal(fixed[layer][0][head]) and v.equal(fixed[layer][1][head])


def test_memory_after_eviction_is_the_budget() -> None:
    """Rows held are exactly the kept entries and the room for what is to come, and the rows given
    up serve another sequence at once."""
    pool = pool_of(40)
    sequence = pool.reserve(40)
    assert sequence is not None
    fill(sequence, 30, 1)
    assert pool.free_share == 0
    assert not pool.can_reserve(1)
    for layer in range(LAYERS):
        sequence.keep(layer, random_kept(30, [8] * KV_HEADS, layer), room=2)
        assert len(used_rows(sequence, layer)) == KV_HEADS * (8 + 2)
    assert pool.free_share == pytest.approx(1 - 10 / 40)
    assert pool.can_reserve(30) and not pool.can_reserve(31)
    second = pool.reserve(30)
    assert second is not None
    assert pool.free_share == 0
    for layer in range(LAYERS):
        assert not used_rows(sequence, layer) & used_rows(second, layer)


def test_keeping_twice() -> None:
    """A second eviction works on the compacted heads."""
    pool = pool_of(12, layers=1)
    sequence = pool.reserve(12)
    assert sequence is not None
    (k, v) = fill(sequence, 10, 1)[0]
    first = random_kept(10, [7, 5, 6], 1)
    sequence.keep(0, first, room=0)
    second = [torch.tensor([0, 2, 4]), torch.tensor([1]), torch.tensor([0, 5])]
    sequence.keep(0, second, room=1)
    for h, (have_k, have_v) in enumerate(held(sequence, 0)):
        assert have_k.equal(k[h][first[h]][second[h]])
        assert have_v.equal(v[h][first[h]][second[h]])
    sequence.release()
    assert pool.free_share == 1


def test_release_is_complete_and_idempotent() -> None:
    pool = pool_of(16)
    sequence = pool.reserve(16)
    assert sequence is not None
    fill(sequence, 10, 1)
    sequence.keep(0, random_kept(10, [2, 9, 4], 0), room=1)
    sequence.release()
    assert pool.free_share == 1
    sequence.release()
    assert pool.free_share == 1
    assert pool.reserve(16) is not None


def test_refusal_takes_nothing() -> None:
    """If one layer has no room, no layer is charged."""
    pool = pool_of(10)
    first = pool.reserve(6)
    assert first is not None
    fill(first, 6, 1)
    first.keep(0, random_kept(6, [1] * KV_HEADS, 0), room=0)  # layer 0 has room now, layer 1 not
    before = pool.free_share
    assert not pool.can_reserve(5)
    assert pool.reserve(5) is None
    assert pool.free_share == before


@pytest.mark.parametrize("lengths", [[4, 4, 4], [4, 2, 3]])
def test_append_beyond_the_room_is_refused(lengths: list[int]) -> None:
    """Past its capacity a head would write into its neighbour's rows or another sequence's."""
    pool = pool_of(30, layers=1)
    sequence, other = pool.reserve(6), pool.reserve(6)
    assert sequence is not None and other is not None
    fill(sequence, 6, 1)
    (kept_k, _) = fill(other, 6, 2)[0]
    sequence.keep(0, random_kept(6, lengths, 0), room=1)
    append(sequence)
    before = [(k.clone(), v.clone()) for k, v in held(sequence, 0)]
    with pytest.raises(AssertionError):
        append(sequence)
    for (k, v), (old_k, old_v) in zip(held(sequence, 0), before, strict=True):
        assert k.equal(old_k) and v.equal(old_v)
    assert all(k.equal(kept_k[h]) for h, (k, _) in enumerate(held(other, 0)))


@dataclass
class Held:
    """A sequence in the random test, with what each head must hold."""

    sequence: SequenceKV
    room: int
    k: list[list[Tensor]] = field(default_factory=list)
    v: list[list[Tensor]] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(6))
def test_random_life_of_many_sequences(seed: int) -> None:
    """Reserve, append, evict, release in random order: contents never change by another's doing,
    rows never overlap, the free share is what the extents say, and at the end all is free."""
    draw = random.Random(seed)
    pool = pool_of(60)
    alive: list[Held] = []
    for step in range(120):
        action = draw.random()
        if action < 0.3 or not alive:
            n, room = draw.randint(1, 15), draw.randint(0, 5)
            fits = pool.can_reserve(n + room)
            sequence = pool.reserve(n + room)
            assert (sequence is not None) == fits
            if sequence is not None:
                filled = fill(sequence, n, step + 1)
                keys = [[layer[0][h] for h in range(KV_HEADS)] for layer in filled]
                values = [[layer[1][h] for h in range(KV_HEADS)] for layer in filled]
                alive.append(Held(sequence, room, keys, values))
        elif action < 0.6:
            one = draw.choice(alive)
            if one.room:
                one.room -= 1
                for layer, (k, v) in enumerate(append(one.sequence)):
                    for h in range(KV_HEADS):
                        one.k[layer][h] = torch.cat([one.k[layer][h], k[h][None]])
                        one.v[layer][h] = torch.cat([one.v[layer][h], v[h][None]])
        elif action < 0.8:
            one = draw.choice(alive)
            for layer in range(LAYERS):
                lengths = [len(one.k[layer][h]) for h in range(KV_HEADS)]
                if draw.random() < 0.5:
                    sizes = [draw.randint(1, min(lengths))] * KV_HEADS
                else:
                    sizes = [draw.randint(1, have) for have in lengths]
                for h, size in enumerate(sizes):
                    index = torch.tensor(sorted(draw.sample(range(lengths[h]), size)))
                    one.k[layer][h] = one.k[layer][h][index]
                    one.v[layer][h] = one.v[layer][h][index]
                    sizes[h] = index  # type: ignore[call-overload]
                one.sequence.keep(layer, sizes, one.room)  # type: ignore[arg-type]
        else:
            alive.pop(draw.randrange(len(alive))).sequence.release()
        used = 0
        for layer in range(LAYERS):
            taken: set[int] = set()
            for one in alive:
                rows = used_rows(one.sequence, layer)
                assert not rows & taken
                taken |= rows
                for h, (k, v) in enumerate(held(one.sequence, layer)):
                    assert k.equal(one.k[layer][h]) and v.equal(one.v[layer][h])
            assert all(0 <= row < KV_HEADS * 60 for row in taken)
            used += len(taken)
        assert pool.free_share == pytest.approx(1 - used / (LAYERS * KV_HEADS * 60))
    for one in alive:
        one.sequence.release()
    assert pool.free_share == 1
    assert pool.can_reserve(60)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [7, 2, 5]])
def test_attention_after_keep_is_masked_attention_on_the_full_cache(lengths: list[int]) -> None:
    """docs/specification.md §2.9: what eviction removed is exactly what a mask would hide."""
    group, n = 2, 12
    pool = pool_of(20, layers=1)
    sequence = pool.reserve(16)
    assert sequence is not None
    (k, v) = fill(sequence, n, 0)[0]
    kept = random_kept(n, lengths, 3)
    sequence.keep(0, kept, room=2)
    q = torch.randn(KV_HEADS, group, D, generator=torch.Generator().manual_seed(4))
    expected = torch.zeros(KV_HEADS, group, D)
    for h in range(KV_HEADS):
        for g in range(group):
            scores = torch.full((n,), -math.inf)
            scores[kept[h]] = k[h][kept[h]] @ q[h, g] * 0.5
            expected[h, g] = scores.softmax(0) @ v[h]
    parts = [
        attend_last(q[head], keys[None], values[None], 0.5)
        for head, (keys, values) in enumerate(held(sequence, 0))
    ]
    assert_close("attention after keep", torch.cat(parts), expected.flatten(), 1e-5)


def test_runs_of_a_window() -> None:
    """The last entries of every head: by number where all are held, by position after eviction."""
    pool = KVPool(3, 2, 4, 40, dtype=torch.float32, device=torch.device("cpu"))
    sequence = pool.reserve(20)
    assert sequence is not None
    sequence.set_length(10)
    kept = [torch.tensor([0, 3, 8, 9]), torch.tensor([0, 1, 2, 3])]
    sequence.keep(2, kept, 5)
    sequence.remember(2, kept, 10)
    sequence.grow()
    sequence.grow()  # tokens 10 and 11
    windows = (None, 4, 4)
    start, length = sequence.runs(11, windows)
    assert length.tolist() == [[12, 12], [4, 4], [4, 2]]
    assert (start + length).equal(sequence.start + sequence.length)
    start, length = sequence.runs(11)
    assert start.equal(sequence.start) and length.equal(sequence.length)
    assert sequence.runs(11, (None, 12, 12))[1].equal(sequence.length)
    assert sequence.runs(11, (None, 1, 1))[1].tolist() == [[12, 12], [1, 1], [1, 1]]
    assert sequence.runs(11, (None, 9, 9))[1].tolist() == [[12, 12], [9, 9], [5, 3]]
