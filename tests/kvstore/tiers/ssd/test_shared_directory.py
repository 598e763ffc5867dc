"""Several processes in one directory. Two tiers of one process stand for them: file locks and maps
belong to open files, not to processes. tests/e2e/test_fleet.py has real ones."""

import os
import random
import threading

import pytest

from kvstitch.kvstore import SsdTier, TierUnavailable
from kvstitch.kvstore.tiers.ssd import tier_directory
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk


def member(root, number, capacity=1 << 24):
    tier = SsdTier(root, capacity, fsync=False, member=number)
    tier.start()
    return tier


def bytes_on_disk(root):
    return sum(path.stat().st_size for path in root.glob("??/??/*"))


@pytest.fixture
def pair(tmp_path):
    tiers = [member(tmp_path, number) for number in (0, 1)]
    yield tiers
    for tier in tiers:
        tier.close()


def test_what_one_writes_and_deletes_the_other_sees_at_once(pair, tmp_path):
    one, other = pair
    key, chunk = make_key(), make_chunk()
    one.put(key, chunk)
    assert other.contains([key]) == {key} and list(other.keys()) == [key]
    assert same_chunk(other.read(key), chunk)
    assert other.read_header(key) == chunk.header
    assert other.put_extra(key, "sketch", chunk.data[:64].clone())
    assert one.read_extra(key, "sketch").numel() == 64
    assert one.usage() == other.usage()
    assert one.usage().used_bytes == bytes_on_disk(tmp_path)
    assert other.delete([key]) == 1 and one.delete([key]) == 0
    assert not one.contains([key]) and one.read(key) is None
    assert one.usage().used_bytes == 0 == bytes_on_disk(tmp_path)


def test_the_bound_holds_for_all_together(tmp_path):
    chunks = [make_chunk(make_spec(tokens=tokens), seed=tokens) for tokens in (40, 90)]
    capacity = 6 * chunks[1].nbytes
    tiers = [member(tmp_path, number, capacity) for number in (0, 1, 2)]
    largest, wrong = 0, []

    def work(tier, seed):
        nonlocal largest
        rng = random.Random(seed)
        for _ in range(150):
            n = rng.randrange(16)
            key, chunk = make_key(n), chunks[n % 2]
            match rng.randrange(4):
                case 0:
                    tier.delete([key])
                case 1:
                    found = tier.read(key)
                    if found is not None and not same_chunk(found, chunk):
                        wrong.append(key)
                case _:
                    tier.put(key, chunk)
            with tier._lock, tier._index.exclusive():  # nothing is removed while it is summed up
                largest = max(largest, bytes_on_disk(tmp_path))

    threads = [threading.Thread(target=work, args=(tier, n)) for n, tier in enumerate(tiers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and 0 < largest <= capacity
    assert sum(tier.usage().evictions for tier in tiers) > 0
    assert tiers[0].usage().used_bytes >= bytes_on_disk(tmp_path)  # perhaps too much, never less
    for tier in tiers:
        tier.close()
    with_scan = member(tmp_path, 0, capacity)
    assert with_scan.usage().used_bytes == bytes_on_disk(tmp_path)
    with_scan.close()


def test_extra_tensors_never_outlive_a_chunk_that_another_deletes(pair, tmp_path):
    one, other = pair
    key, chunk = make_key(), make_chunk()
    raw = chunk.data[:64].clone()
    done = threading.Event()

    def delete():
        while not done.is_set():
            other.delete([key])

    deleting = threading.Thread(target=delete)
    deleting.start()
    stored = 0
    for _ in range(200):
        one.put(key, chunk)
        stored += one.put_extra(key, "sketch", raw)
    done.set()
    deleting.join()
    other.delete([key])
    assert stored > 0 and not list(tmp_path.glob("??/??/*"))


def test_what_another_reads_is_not_the_oldest(tmp_path):
    chunk = make_chunk()
    one, other = (member(tmp_path, n, 3 * chunk.nbytes) for n in (0, 1))
    for n in range(3):
        one.put(make_key(n), chunk)
    other.read(make_key(0))
    one.put(make_key(3), chunk)
    assert set(other.keys()) == {make_key(0), make_key(2), make_key(3)}
    one.close()
    other.close()


def test_a_restarted_process_leaves_what_others_write(pair, tmp_path):
    one, other = pair
    being_written = tmp_path / "tmp-w1" / f"{make_key()}.0"
    left_by_a_crash = tmp_path / "tmp-w0" / f"{make_key()}.0"
    being_written.write_bytes(b"half")
    left_by_a_crash.write_bytes(b"half")
    other._index.reserve(1000)
    one._index.reserve(500)
    one.close()
    one.start()
    assert being_written.exists() and not left_by_a_crash.exists()
    assert one.usage().used_bytes == 1000


def test_the_first_of_a_start_finds_damaged_files(tmp_path):
    tier = member(tmp_path, 0)
    tier.put(make_key(), make_chunk())
    tier.close()
    chunk_path(tmp_path, make_key()).write_bytes(b"damaged")
    tier.start()
    assert tier.scan.removed_unreadable == 1 and not list(tier.keys())
    tier.close()


def test_a_directory_is_shared_by_all_or_owned_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tier_directory, "START_PATIENCE_S", 0.1)
    owner = SsdTier(tmp_path, 1 << 20)
    owner.start()
    with pytest.raises(TierUnavailable, match="in use"):
        member(tmp_path, 0)
    owner.close()
    sharing = member(tmp_path, 0)
    with pytest.raises(TierUnavailable, match="in use"):
        SsdTier(tmp_path, 1 << 20).start()
    sharing.close()


def test_room_is_made_although_the_oldest_is_read_just_now(tmp_path, monkeypatch):
    """By another process, after this one listed the directory: then the next oldest goes."""
    chunk = make_chunk()
    tier = member(tmp_path, 0, 3 * chunk.nbytes)
    for n in range(3):
        tier.put(make_key(n), chunk)
        os.utime(chunk_path(tmp_path, make_key(n)), ns=(n, n))
    listed = tier._index._list

    def read_after_the_first_listing():
        listed()
        os.utime(chunk_path(tmp_path, make_key(0)))
        monkeypatch.setattr(tier._index, "_list", listed)

    monkeypatch.setattr(tier._index, "_list", read_after_the_first_listing)
    tier.put(make_key(3), chunk)
    assert set(tier.keys()) == {make_key(0), make_key(2), make_key(3)}
    tier.close()
