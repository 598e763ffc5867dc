"""Chunks in tiers that keep them encrypted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kvstitch.encryption.keyring import DataKey, Keyring
from kvstitch.kvstore import EncodedChunk, MemoryTier, RedisTier, SsdTier, TieredStore
from kvstitch.kvstore.format.chunk_header import parse_header
from kvstitch.kvstore.format.sealed_chunk import seal_chunk
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path, extra_path
from tests.kvstore.chunks import chunk_file, make_chunk, make_key, make_spec, same_chunk

SKETCH = {"mean": torch.arange(40.0)}
MakeTier = Callable[[], Tier]


def data_key(owner: str = "a") -> DataKey:
    return DataKey(os.urandom(16), owner, os.urandom(32))


@pytest.fixture
def keys() -> Keyring:
    return Keyring([data_key("a"), data_key("b")])


@pytest.fixture(params=["ssd", "redis"])
def make_tier(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTier:
    """A tier of each kind that is not memory, always on the same place."""
    if request.param == "ssd":
        return lambda: SsdTier(tmp_path / "kv", 1 << 26)
    url = request.getfixturevalue("redis_at").url
    return lambda: RedisTier(url)


@pytest.fixture
def ssd(tmp_path: Path) -> SsdTier:
    return SsdTier(tmp_path / "kv", 1 << 26)


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def pieces_of(chunk: EncodedChunk, nbytes: int = 16) -> Iterator[bytes]:
    """Short runs of a chunk's bytes, from all over it."""
    raw = chunk.data.numpy().tobytes()
    return (raw[at : at + nbytes] for at in range(0, len(raw) - nbytes, 97))


@pytest.mark.parametrize("codec", ["raw", "int8", "int4", "int2"])
def test_what_was_sealed_is_read(make_tier: MakeTier, keys: Keyring, codec: str) -> None:
    spec = make_spec(codec, tokens=150)
    chunk, key = make_chunk(spec), make_key()
    with TieredStore([make_tier()], keys=keys) as store:
        store.put(key, chunk, "a")
        assert store.put_extra(key, "sketch", 1, SKETCH, "a")
        store.flush()
    with TieredStore([make_tier()], keys=keys) as store:
        outcome = store.read(key, spec)
        assert same_chunk(outcome.chunk, chunk) and not outcome.problems
        assert outcome.chunk is not None and outcome.chunk.owner == "a"
        outcome.chunk.verify()
        some = store.read_blocks(key, {0: [0, 2], 2: [1]}, spec)
        assert some.blocks is not None and not some.missing
        whole = chunk.layer(2)[0]
        assert torch.equal(some.blocks.layer(2)[0], whole[64:128])
        assert torch.equal(
            some.blocks.layer(0)[1], chunk.layer(0)[1][[*range(64), *range(128, 150)]]
        )
        extra = store.read_extra(key, "sketch", 1)
        assert extra is not None and torch.equal(extra.tensors["mean"], SKETCH["mean"])


def test_files_hold_no_plain_bytes(ssd: SsdTier, tmp_path: Path, keys: Keyring) -> None:
    chunk, key = make_chunk(make_spec(tokens=150)), make_key()
    sketch = bytes(SKETCH["mean"].numpy())
    with TieredStore([ssd], keys=keys) as store:
        store.put(key, chunk, "a")
        store.put_extra(key, "sketch", 1, SKETCH, "a")
    held = stored_bytes(tmp_path / "kv")
    assert len(held) > chunk.data.numel()
    assert not [piece for piece in pieces_of(chunk) if piece in held]
    assert sketch[20:60] not in held
    for digests in chunk.header.digests.values():  # by which a guess could be checked
        assert digests.digests not in held and digests.text.encode() not in held
    # The search finds what is stored in the clear.
    with TieredStore([SsdTier(tmp_path / "clear", 1 << 26)]) as store:
        store.put(key, chunk, "a")
        store.put_extra(key, "sketch", 1, SKETCH, "a")
    clear = stored_bytes(tmp_path / "clear")
    assert all(piece in clear for piece in pieces_of(chunk)) and sketch[20:60] in clear


def test_two_writes_of_one_chunk_share_no_bytes(keys: Keyring) -> None:
    chunk = make_chunk().under(make_key(), "a")
    one, two = (seal_chunk(chunk, keys.current("a")) for _ in range(2))
    assert one.header.seal != two.header.seal
    assert not set(pieces_of(one)) & set(pieces_of(two))


def test_a_copy_is_sealed_for_its_owner(make_tier: MakeTier, tmp_path: Path, keys: Keyring) -> None:
    """One that was in the clear, too, once it is copied to a faster tier."""
    key, clear = make_key(1), make_key(2)
    with TieredStore([make_tier()]) as store:
        store.put(clear, make_chunk(seed=2))
        store.flush()
    far, near = make_tier(), SsdTier(tmp_path / "near", 1 << 26, name="near")
    with TieredStore([far], keys=keys) as store:
        store.put(key, make_chunk(seed=1), "b")
        store.flush()
    with TieredStore([near, far], keys=keys) as store:
        assert same_chunk(store.read(key).chunk, make_chunk(seed=1))
        assert same_chunk(store.read(clear, owner="b").chunk, make_chunk(seed=2))
        store.flush()
        assert store.locate([key, clear]) == {key: "near", clear: "near"}
    for each in (key, clear):
        header = parse_header(chunk_path(tmp_path / "near", each).read_bytes())
        assert header.seal is not None and keys.find(bytes.fromhex(header.seal.key_id)).owner == "b"


def test_the_memory_tier_holds_it_in_the_clear(ssd: SsdTier, keys: Keyring) -> None:
    chunk, key = make_chunk(), make_key()
    with TieredStore([MemoryTier(1 << 26), ssd], keys=keys) as store:
        store.put(key, chunk, "a")
        found = store.read(key)
        assert found.tier == "memory" and found.chunk is not None
        assert found.chunk.data is chunk.data and found.chunk.header.seal is None


def test_without_its_key_a_chunk_is_locked_and_stays(make_tier: MakeTier, keys: Keyring) -> None:
    chunk, key = make_chunk(), make_key()
    with TieredStore([make_tier()], keys=keys) as store:
        store.put(key, chunk, "a")
        store.put_extra(key, "sketch", 1, SKETCH, "a")
        store.flush()
    for others in (None, Keyring(), Keyring([data_key("a")])):
        with TieredStore([make_tier()], keys=others) as store:
            name = store.tier_names[0]
            assert store.read(key).problems == ((name, "locked"),)
            assert store.read_blocks(key, {0: [0]}).problems == ((name, "locked"),)
            assert store.read_extra(key, "sketch", 1) is None
            assert store.keys() == {key}
    with TieredStore([make_tier()], keys=keys) as store:
        assert same_chunk(store.read(key).chunk, chunk)


def test_what_is_locked_is_replaced_by_what_its_owner_stores_again(make_tier: MakeTier) -> None:
    """Else a tenant whose keys were deleted could store nothing of what it had before."""
    chunk, key = make_chunk(), make_key()
    deleted, made = data_key("a"), data_key("a")
    keys = Keyring([deleted])
    with TieredStore([make_tier()], keys=keys) as store:
        store.put(key, chunk, "a")
        store.flush()
        keys.replace([])
        assert store.read(key).chunk is None
        store.put(key, chunk, "a")  # there is no key to seal it with
        store.flush()
        assert store.keys() == {key}, "what others may be able to open stays"
        keys.replace([made])
        assert store.contains([key]) == set() and store.put(key, chunk, "a")
        store.flush()
        assert store.contains([key]) == {key} and same_chunk(store.read(key).chunk, chunk)
    with TieredStore([make_tier()], keys=Keyring([made])) as store:
        assert same_chunk(store.read(key).chunk, chunk)


def test_without_encryption_what_is_locked_is_never_replaced(make_tier: MakeTier) -> None:
    key, keys = make_key(), Keyring([data_key("a")])
    with TieredStore([make_tier()], keys=keys) as store:
        store.put(key, make_chunk(), "a")
        store.flush()
    for others in (None, Keyring(active=False)):
        with TieredStore([make_tier()], keys=others) as store:
            assert store.read(key).chunk is None
            assert store.contains([key]) == {key} and not store.put(key, make_chunk(), "a")
            store.flush()
    with TieredStore([make_tier()], keys=keys) as store:
        assert same_chunk(store.read(key).chunk, make_chunk())


def test_nothing_is_written_in_the_clear_for_want_of_a_key(make_tier: MakeTier) -> None:
    with TieredStore([make_tier()], keys=Keyring()) as store:
        store.put(make_key(), make_chunk(), "a")
        store.flush()
        assert not store.keys()
        assert store.stats().tiers[0].count("write", "locked") == 1


def test_after_a_rotation_old_chunks_are_read(make_tier: MakeTier) -> None:
    old, new = data_key("a"), data_key("a")
    keys = Keyring([old])
    with TieredStore([make_tier()], keys=keys) as store:
        store.put(make_key(1), make_chunk(seed=1), "a")
        store.flush()
        keys.replace([old, new])
        store.put(make_key(2), make_chunk(seed=2), "a")
        store.flush()
    with TieredStore([make_tier()], keys=keys) as store:
        for number in (1, 2):
            assert same_chunk(store.read(make_key(number)).chunk, make_chunk(seed=number))
    with TieredStore([make_tier()], keys=Keyring([new])) as store:
        assert store.read(make_key(1)).chunk is None
        assert same_chunk(store.read(make_key(2)).chunk, make_chunk(seed=2))


def test_a_changed_bit_anywhere_is_found(ssd: SsdTier, tmp_path: Path, keys: Keyring) -> None:
    chunk, key = make_chunk(make_spec(layers=1, tokens=20)), make_key()
    path = chunk_path(tmp_path / "kv", key)
    with TieredStore([ssd], keys=keys) as store:
        for at in [*range(0, 40), -1, -200, -len(chunk.data.numpy().tobytes())]:
            store.put(key, chunk, "a")
            raw = bytearray(path.read_bytes())
            raw[at] ^= 1
            path.write_bytes(raw)
            outcome = store.read(key, chunk.spec)
            assert outcome.chunk is None and outcome.problems in (
                (("ssd", "corrupt"),), (("ssd", "refused"),),
            )  # fmt: skip
            assert not path.exists()


def test_swapped_ciphertexts_do_not_open(ssd: SsdTier, tmp_path: Path, keys: Keyring) -> None:
    """Blocks of one chunk, and whole data of two chunks under one key, with headers to match."""
    spec = make_spec(layers=2, tokens=128)
    one, two = (make_chunk(spec, seed).under(make_key(seed), "a") for seed in (1, 2))
    sealed = [seal_chunk(each, keys.current("a")) for each in (one, two)]
    block = sealed[0].header.layer_range(0)[1] // 4  # k and v, two blocks of each

    raw = bytearray(chunk_file(sealed[0]))
    start = sealed[0].header.data_start
    a, b = slice(start, start + block), slice(start + block, start + 2 * block)
    raw[a], raw[b] = raw[b], raw[a]
    stolen = bytearray(chunk_file(sealed[1]))
    moved = sealed[1].under(make_key(1)).header  # the other chunk's, renamed, with its checksum
    with TieredStore([ssd], keys=keys) as store:
        store.put(make_key(1), one, "a")
        path = chunk_path(tmp_path / "kv", make_key(1))
        for content in (bytes(raw), moved.raw + bytes(stolen[sealed[1].header.data_start :])):
            path.write_bytes(content)
            outcome = store.read(make_key(1), spec)
            assert outcome.chunk is None and outcome.problems[0][1] in ("corrupt", "refused")
            store.put(make_key(1), one, "a")
            assert same_chunk(store.read(make_key(1), spec).chunk, one)


def test_a_bad_block_alone_is_missing(ssd: SsdTier, tmp_path: Path, keys: Keyring) -> None:
    chunk, key = make_chunk(make_spec(layers=1, tokens=192)), make_key()
    with TieredStore([ssd], keys=keys) as store:
        store.put(key, chunk, "a")
        path = chunk_path(tmp_path / "kv", key)
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1  # in block 2 of v
        path.write_bytes(raw)
        some = store.read_blocks(key, {0: [0, 1, 2]})
        assert some.missing == {0: (2,)} and some.blocks is not None
        assert torch.equal(some.blocks.layer(0)[1], chunk.layer(0)[1][:128])


def test_extra_tensors_of_another_chunk_do_not_open(
    ssd: SsdTier, tmp_path: Path, keys: Keyring
) -> None:
    with TieredStore([ssd], keys=keys) as store:
        for number in (1, 2):
            store.put(make_key(number), make_chunk(seed=number), "a")
            store.put_extra(make_key(number), "sketch", 1, SKETCH, "a")
        one, two = (extra_path(tmp_path / "kv", make_key(n), "sketch") for n in (1, 2))
        one.write_bytes(two.read_bytes())
        assert store.read_extra(make_key(1), "sketch", 1) is None
        assert store.stats().tiers[0].count("read_extra", "corrupt") == 1
        assert store.read_extra(make_key(2), "sketch", 1) is not None


def test_an_unencrypted_folder_is_read_further(ssd: SsdTier, tmp_path: Path, keys: Keyring) -> None:
    with TieredStore([ssd]) as store:
        store.put(make_key(1), make_chunk(seed=1))
        store.put_extra(make_key(1), "sketch", 1, SKETCH)
    with TieredStore([SsdTier(tmp_path / "kv", 1 << 26)], keys=keys) as store:
        assert same_chunk(store.read(make_key(1)).chunk, make_chunk(seed=1))
        assert store.read_extra(make_key(1), "sketch", 1) is not None
