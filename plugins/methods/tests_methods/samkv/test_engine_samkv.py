"""SamKV through the engine and a real store: what is read, held, computed and reported; faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstitch.kvstore import MemoryTier, parse_header
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import ChunkTokens, Method, Precompute
from kvstitch.service.worker.methods.registry import make_fusion
from tests.kvstore.chunks import tensors_of
from tests.service.worker.engines import PIE, Rig, disk, rig
from tests.service.worker.tiny import Tiny, random_model, tiny_config, tiny_of

LENGTHS = (64 * 9 + 10, 64 * 8, 64 * 7, 130)
SAMKV = Method("samkv", {"max_kept": 1.0, "max_recomputed": 1.0})


@pytest.fixture(scope="module")
def long_model() -> Tiny:
    """One whose questions do need middle blocks."""
    return tiny_of(random_model(tiny_config("llama", "llama3", max_position_embeddings=4096), 2))


def documents() -> list[ChunkTokens]:
    source = torch.Generator().manual_seed(3)
    return [
        ChunkTokens(i, torch.randint(3, 100, (n,), generator=source).tolist())
        for i, n in enumerate(LENGTHS, 1)
    ]


DOCUMENTS = documents()


@pytest.fixture
def stored(long_model: Tiny, tmp_path: Path) -> Iterator[Rig]:
    """A rig on an SSD tier that has all documents."""
    with rig(long_model, tiers=[disk(tmp_path)], pool_tokens=4000) as r:
        r.precompute(DOCUMENTS)
        yield r


def answer(r: Rig, method: Method = SAMKV) -> tuple[list[int], Report]:
    return r.answer(method, DOCUMENTS)


def moved(r: Rig, *operations: str) -> int:
    """Bytes that the SSD tier gave out."""
    stats = r.store.stats().tier("ssd")
    return sum(int(stats.bytes.get(op, 0)) for op in operations)


def test_reads_only_what_it_reports(stored: Rig) -> None:
    """No whole document is read; the report's bytes are the store's counters."""
    before = moved(stored, "read_blocks", "read_extra")
    whole = moved(stored, "read")
    tokens, report = answer(stored)
    assert len(tokens) == 6
    counted = moved(stored, "read_blocks", "read_extra") - before
    assert sum(d.bytes for d in report.documents) == counted
    assert moved(stored, "read") - whole == report.system.bytes
    assert [d.tier for d in report.documents] == ["ssd"] * 4
    _, dense = answer(stored, PIE)
    assert counted < 0.6 * sum(d.bytes for d in dense.documents)


def test_same_answer_twice_and_nothing_new_is_stored(stored: Rig) -> None:
    first, _ = answer(stored)
    keys = stored.store.stats().new_keys
    assert answer(stored)[0] == first
    assert stored.store.stats().new_keys == keys


def test_holds_only_what_it_keeps(long_model: Tiny, stored: Rig) -> None:
    """Every layer holds equally many entries: S, ends, some whole middle blocks, Q. The pool was
    asked for no more than the bound."""
    method = make_fusion("samkv", SAMKV.parameters)
    name = stored.submit(SAMKV, DOCUMENTS)
    least = 1.0
    while not stored.engine.scheduler.idle:
        stored.events.extend(stored.engine.step())
        least = min(least, stored.engine.pool.free_share)
    report = stored.done(name).report
    [kept] = set(report.kept_per_layer)
    ends = sum(min(n, 64 + 64 + (n - 1) % 64 + 1) for n in LENGTHS)
    blocks, rest = divmod(kept - 7 - 5 - ends, 64)
    assert rest == 0
    assert 1 <= blocks <= 5
    bound = 7 + method.max_kept_tokens(list(LENGTHS)) + 5 + 6
    assert least >= 1 - bound / stored.engine.pool.tokens - 1e-9
    assert report.kept_ratio == pytest.approx((kept - 12) / sum(LENGTHS))
    assert report.recomputed_ratio == pytest.approx(ends / sum(LENGTHS))


def test_all_uncached_is_a_full_prefill(long_model: Tiny) -> None:
    with rig(long_model, tiers=[MemoryTier(1 << 26)], pool_tokens=4000) as r:
        expected, _ = answer(r, Method("vanilla"))
        tokens, report = answer(r)
        assert tokens == expected
        assert [d.tier for d in report.documents] == ["cold"] * 4
        assert report.flops == pytest.approx(report.full_prefill_flops)
        _, second = answer(r)
        assert [d.tier for d in second.documents] == ["memory"] * 4  # written back, with sketches


def test_a_missing_document_is_computed_by_itself(stored: Rig) -> None:
    """The answer is the one without the fault, and the document is stored again."""
    expected, whole = answer(stored)
    address = stored.engine.admission.addresses(Precompute("", [], DOCUMENTS))[2]
    assert address is not None
    stored.store.delete({address.key})
    tokens, report = answer(stored)
    assert tokens == expected
    assert [d.tier for d in report.documents] == ["ssd", "cold", "ssd", "ssd"]
    assert report.kept_per_layer == whole.kept_per_layer
    again, healed = answer(stored)
    assert again == expected
    assert [d.tier for d in healed.documents] == ["ssd"] * 4


def test_chunks_without_a_sketch_are_completed_when_it_is_needed(
    long_model: Tiny, stored: Rig, tmp_path: Path
) -> None:
    """Other methods read them as they are; the first request that needs sketches computes them."""
    expected, _ = answer(stored)
    with rig(
        long_model, tiers=[disk(tmp_path / "again")], pool_tokens=4000, sketches=False
    ) as other:
        other.precompute(DOCUMENTS)
        assert not list((tmp_path / "again").rglob("*.extra"))
        _, plain = answer(other, PIE)
        assert [d.tier for d in plain.documents] == ["ssd"] * 4
        _, report = answer(other)
        assert [d.tier for d in report.documents] == ["cold"] * 4
        again, healed = answer(other)
        assert [d.tier for d in healed.documents] == ["ssd"] * 4
        assert again == expected


def test_chunks_stored_without_a_sketch_get_one_where_all_have_one(
    long_model: Tiny, stored: Rig, tmp_path: Path
) -> None:
    """Written before sketches were asked for, or by a sketch of another version."""
    expected, _ = answer(stored)
    folder = tmp_path / "again"
    with rig(long_model, tiers=[disk(folder)], pool_tokens=4000, sketches=False) as other:
        other.precompute(DOCUMENTS)
    with rig(long_model, tiers=[disk(folder)], pool_tokens=4000) as other:
        other.precompute(DOCUMENTS)
        again, healed = answer(other)
        assert [d.tier for d in healed.documents] == ["ssd"] * 4
        assert again == expected


def flip_block(r: Rig, folder: Path, document: int, layer: int, blocks: list[int]) -> None:
    """One bit in each of these blocks' values."""
    address = r.engine.admission.addresses(Precompute("", [], DOCUMENTS))[document]
    assert address is not None
    file = next(folder.rglob(f"{address.key}.safetensors"))
    data = bytearray(file.read_bytes())
    header = parse_header(data)
    entry = tensors_of(header)[f"v.{layer}"]
    for block in blocks:
        start, end = entry.blocks_range(block, block)
        data[header.data_start + (start + end) // 2] ^= 4
    file.write_bytes(data)


@pytest.mark.parametrize("part", ["an end", "the middle"])
def test_a_flipped_byte_in_a_block(stored: Rig, tmp_path: Path, part: str) -> None:
    """Its document is computed anew: the answer is the one without the fault; the metric counts;
    the next request finds it sound."""
    expected, _ = answer(stored)
    chosen = [0] if part == "an end" else [1, 2, 3, 4, 5, 6]
    for document in (1, 2, 3):
        flip_block(stored, tmp_path, document, 2, chosen if document < 3 else chosen[:5])
    before = stored.store.stats().tier("ssd").count("block", "corrupt")
    tokens, report = answer(stored)
    assert tokens == expected
    faulty = [d for d in report.documents if d.tier == "cold"]
    assert faulty
    assert all(d.problems == ["ssd: corrupt"] for d in faulty)
    assert stored.store.stats().tier("ssd").count("block", "corrupt") > before
    again, healed = answer(stored)
    assert again == expected
    assert all(d.tier == "ssd" for d in healed.documents)


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "fusion"},
        {"selection": False},
        {"recompute": False},
        {"personalised_bias": False},
        {"normalise": "softmax", "outliers_of": "request"},
    ],
    ids=str,
)
def test_every_switch_answers(stored: Rig, changes: dict[str, object]) -> None:
    method = Method("samkv", {**SAMKV.parameters, **changes})
    tokens, report = answer(stored, method)
    assert len(tokens) == 6
    if changes.get("recompute") is False:
        assert report.recomputed_ratio == 0
    if changes.get("selection") is False:
        ends = sum(min(n, 64 + 64 + (n - 1) % 64 + 1) for n in LENGTHS)
        assert set(report.kept_per_layer) == {float(7 + ends + 5)}
