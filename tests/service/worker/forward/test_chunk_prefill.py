"""Chunks computed behind a prefix whose KV is kept are those of one full prefill."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from kvstitch.kvstore import EncodedChunk, encode_chunk
from kvstitch.service.worker.forward import layer_ops
from kvstitch.service.worker.forward.chunk_prefill import MAX_PARTS, ChunkPrefill, ComputedChunk
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.model.addressing import Address, Addressing
from kvstitch.service.worker.model.model_facts import chunk_prefill
from kvstitch.service.worker.steps import run
from kvstitch_methods.samkv.sketch import EXTRA, Sketch
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def chunks(any_family: Tiny) -> ChunkPrefill:
    return ChunkPrefill(any_family.decoder)


def address(
    model: Tiny, ids: list[int], behind: list[int], codec: str = "raw", mode: str = "primer"
) -> Address:
    addressing = Addressing(model.decoder, fingerprint="tiny", codec=codec)
    return addressing.document(ids, mode, S, "", [[behind]])


def test_a_chunk_is_what_a_full_prefill_of_prefix_and_chunk_computes(
    any_family: Tiny, chunks: ChunkPrefill
) -> None:
    """The first one computes the prefix too, the second one finds it."""
    for ids in (D1, D2):
        made = run(chunks.compute(address(any_family, ids, D3))).chunk
        expected = any_family.precompute(ids, [*S, *D3])
        for layer in range(any_family.decoder.layers):
            for ours, theirs in zip(made.layer(layer), expected.layer(layer), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_behind_several_primers_rows_take_the_mean_of_what_they_attend_to(any_family: Tiny) -> None:
    """Which is nearer to the mean of what is computed behind each than these are."""
    addressing = Addressing(any_family.decoder, fingerprint="tiny", codec="raw")
    chunks = ChunkPrefill(any_family.decoder)

    def computed(*behind: list[list[int]]) -> list[ComputedChunk]:
        of_all = [addressing.document(ids, "primer", S, "", behind) for ids in (D1, D2)]
        return run(chunks.compute_together(of_all))

    made, turned = computed([D3], [D2, D2]), computed([D2, D2], [D3])
    one, other = computed([D3]), computed([D2, D2])
    same = computed([D3], [D3], [D3])
    for number in range(2):
        for layer in range(any_family.decoder.layers):
            runs = (x[number].chunk.layer(layer) for x in (made, turned, one, other, same))
            each = zip(*runs, strict=True)
            for ours, mirrored, first, second, alike in each:
                torch.testing.assert_close(ours, mirrored, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(alike, first, atol=1e-5, rtol=1e-5)
                off, apart = ours - (first + second) / 2, first - second
                assert off.norm() <= apart.norm() / 2 + 1e-5
    alone, both = len(S) + len(D3), [len(S) + len(D3), len(S) + 2 * len(D2)]
    assert made[1].flops == chunk_prefill(any_family.decoder, len(D2), behind=both)
    assert made[1].flops < 1.5 * chunk_prefill(any_family.decoder, len(D2), behind=[alone])
    address = addressing.document(D1, "primer", S, "", [[D3], [D2, D2]])
    assert not address.prefix.exact
    turned_key = addressing.document(D1, "primer", S, "", [[D2, D2], [D3]]).key
    together = addressing.document(D1, "primer", S, "", [[D3, D2, D2]]).key
    assert len({address.key, turned_key, together}) == 3


@pytest.mark.parametrize("mode", ["none", "primer", "neighbours"])
def test_chunks_computed_together_are_those_computed_one_by_one(
    any_family: Tiny, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are their sketches; also where their rows take several tiles."""
    wanted = [address(any_family, ids, D3, mode=mode) for ids in (D1, D2, [*D2, *D1, *D2])]
    alone = [run(ChunkPrefill(any_family.decoder).compute(each, extra=EXTRA)) for each in wanted]
    for tile in (512, 10):
        monkeypatch.setattr(layer_ops, "TILE_ROWS", {"cpu": tile})
        steps = ChunkPrefill(any_family.decoder).compute_together(wanted, extra=EXTRA)
        for ours, theirs in zip(run(steps), alone, strict=True):
            for layer in range(any_family.decoder.layers):
                for a, b in zip(ours.chunk.layer(layer), theirs.chunk.layer(layer), strict=True):
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
            means = [Sketch.of(each.extra_tensors).means for each in (ours, theirs)]
            torch.testing.assert_close(*means, atol=0.1, rtol=0.1)


def test_a_prefix_is_computed_once(any_family: Tiny, chunks: ChunkPrefill) -> None:
    shape, before = any_family.decoder, len(S) + len(D3)
    first, second = (run(chunks.compute(address(any_family, d, D3))).flops for d in (D1, D2))
    assert second == chunk_prefill(shape, len(D2), behind=[before])
    alone = chunk_prefill(shape, len(D1), behind=[before])
    assert first == pytest.approx(alone + chunk_prefill(shape, before))
    assert first == pytest.approx(chunk_prefill(shape, before + len(D1)))


def test_the_system_segment_is_a_prefix(any_family: Tiny, chunks: ChunkPrefill) -> None:
    """Without a second computation: a cold prompt computes S first, then its documents."""
    addressing = Addressing(any_family.decoder, fingerprint="tiny", codec="int8")
    run(chunks.compute(addressing.system(S, "")))
    made = run(chunks.compute(addressing.document(D1, "system", S, "")))
    assert made.flops == chunk_prefill(any_family.decoder, len(D1), behind=[len(S)])


def test_few_prefixes_are_kept_and_deleted_text_is_not(
    any_family: Tiny, chunks: ChunkPrefill
) -> None:
    shape = any_family.decoder
    run(chunks.compute(address(any_family, D1, D2)))
    chunks.forget(tuple(D3))
    assert run(chunks.compute(address(any_family, D1, D2))).flops == chunk_prefill(
        shape, len(D1), behind=[len(S) + len(D2)]
    )
    chunks.forget(tuple(D2))
    assert run(chunks.compute(address(any_family, D1, D2))).flops > chunk_prefill(
        shape, len(D1), behind=[len(S) + len(D2)]
    )
    for token in range(MAX_PARTS):
        run(chunks.compute(address(any_family, D1, [token + 1])))
    assert run(chunks.compute(address(any_family, D1, D2))).flops > chunk_prefill(
        shape, len(D1), behind=[len(S) + len(D2)]
    )


def test_neighbours_are_stitched_and_read_from_the_store_if_they_are_there(
    any_family: Tiny, chunks: ChunkPrefill
) -> None:
    """Each stands behind S alone, at the place where it stands in the prefix."""
    addressing = Addressing(any_family.decoder, fingerprint="tiny", codec="raw")
    wanted = addressing.document(D1, "neighbours", S, "", [[D2, D3]])
    computed = run(chunks.compute(wanted)).chunk
    expected = any_family.stitch(Pie(), S, [D2, D3, D1], Q, prefix=S, uncached=[3])
    kv = [any_family.precompute(ids, S) for ids in (D2, D3)]
    last = any_family.decoder.layers - 1
    start = len(S) + len(D2) + len(D3)
    theirs = expected.v[last][start : start + len(D1)]
    torch.testing.assert_close(computed.layer(last)[1], theirs, atol=1e-4, rtol=1e-4)

    asked: list[Address] = []
    stored = dict(zip((tuple(D2), tuple(D3)), kv, strict=True))

    def read(address: Address) -> Future[EncodedChunk | None]:
        asked.append(address)
        found: Future[EncodedChunk | None] = Future()
        part = stored.get(address.ids)
        found.set_result(None if part is None else encode_chunk(address.spec, part.k, part.v))
        return found

    again = run(ChunkPrefill(any_family.decoder, read).compute(wanted))
    assert [a.key for a in asked] == [
        addressing.document(ids, "system", S, "").key for ids in (D2, D3)
    ]
    torch.testing.assert_close(again.chunk.layer(1)[0], computed.layer(1)[0], atol=1e-4, rtol=1e-4)


def test_what_others_stand_behind_is_stored_for_later(any_family: Tiny) -> None:
    """A primer outlives the few parts that are kept in memory, as it is stored."""
    held: dict[str, EncodedChunk] = {}

    def read(address: Address) -> Future[EncodedChunk | None]:
        found: Future[EncodedChunk | None] = Future()
        found.set_result(held.get(address.key))
        return found

    def write(address: Address, computed: ComputedChunk) -> None:
        assert computed.chunk.header.spec == address.spec
        held[address.key] = computed.chunk

    first = ChunkPrefill(any_family.decoder, read)
    first.write = write
    made = run(first.compute(address(any_family, D1, D3, codec="int8")))
    assert len(held) == 1, "D3 behind S; S alone is short"
    later = ChunkPrefill(any_family.decoder, read)
    again = run(later.compute(address(any_family, D1, D3, codec="int8")))
    assert again.flops < made.flops and torch.equal(again.chunk.data, made.chunk.data)
    expected = any_family.precompute(D1, [*S, *D3])
    last = any_family.decoder.layers - 1
    torch.testing.assert_close(
        again.chunk.layer(last)[0], expected.layer(last)[0], atol=0.05, rtol=0.05
    )


def test_every_key_of_a_text_is_known_when_it_is_deleted(any_family: Tiny) -> None:
    addressing = Addressing(any_family.decoder, fingerprint="tiny", codec="int8")
    keys = addressing.purged(D1, S, "", [])
    for mode in ("none", "system", "primer", "neighbours"):
        assert addressing.document(D1, mode, S, "", []).key in keys
    behind = addressing.purged(D1, S, "", [[D2, D3]])
    for mode in ("primer", "neighbours"):
        assert addressing.document(D1, mode, S, "", [[D2, D3]]).key in behind
    assert not keys & behind, "what has not seen them stays"
    of_two = addressing.document(D1, "primer", S, "", [[D2], [D3]])
    assert of_two.key in addressing.purged(D1, S, "", [[D2], [D3]])
    assert of_two.key not in behind
    first, last = addressing.document(D1, "primer", S, "", [[D2, D3]]).parts[1:]
    assert first.key in addressing.purged(D2, S, "", []), "as stored behind the instructions alone"
    assert last.key in addressing.purged(D3, S, "", [[D2]]), "behind the part before it"
    assert addressing.system(S, "").key not in keys | behind


def test_chunks_of_a_document_are_parts_of_one_another(any_family: Tiny) -> None:
    """Each is computed once, whatever its codec, and so are those behind it."""
    for codec in ("raw", "int8"):
        addressing = Addressing(any_family.decoder, fingerprint="tiny", codec=codec)
        chunks = ChunkPrefill(any_family.decoder)
        stored = [addressing.document(D1, "primer", S, "", [])]
        stored += [addressing.document(D2, "primer", S, "", [[D1]])]
        stored += [addressing.document(D3, "primer", S, "", [[D1, D2]])]
        assert stored[2].parts[-1].key == stored[1].key
        done = [run(chunks.compute(address)) for address in stored]
        fresh = run(ChunkPrefill(any_family.decoder).compute(stored[2]))
        assert done[2].flops < fresh.flops / 2, "what stands before it was at hand"
        for ours, expected in zip(done[2].chunk.layer(1), fresh.chunk.layer(1), strict=True):
            assert torch.equal(ours, expected)
        chunks.forget(tuple(D1))
        again = run(chunks.compute(stored[2]))
        kept = chunk_prefill(any_family.decoder, len(S))
        assert again.flops == fresh.flops - kept, "what has seen the text is gone"
