import os
import random
import stat
import threading

import pytest

from kvstitch.kvstore import SsdTier, TierFull, TierUnavailable
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import chunk_file, make_chunk, make_key, make_spec, same_chunk
from tests.kvstore.format.test_chunk_header import VERSION_1


def started(root, capacity=1 << 24, **options):
    tier = SsdTier(root, capacity, fsync=False, **options)
    tier.start()
    return tier


def files(root):
    return sorted(root.glob("??/??/*.safetensors"))


def test_layout(tmp_path):
    tier = started(tmp_path)
    key = make_key()
    tier.put(key, make_chunk())
    assert files(tmp_path) == [tmp_path / key[:2] / key[2:4] / f"{key}.safetensors"]
    assert files(tmp_path)[0].read_bytes() == chunk_file(make_chunk())
    assert not list((tmp_path / "tmp").iterdir())
    tier.close()


def test_a_restart_keeps_everything(tmp_path):
    chunks = {make_key(n): make_chunk(make_spec("int8"), seed=n) for n in range(20)}
    tier = SsdTier(tmp_path, 1 << 24)
    tier.start()
    for key, chunk in chunks.items():
        tier.put(key, chunk)
    before = tier.usage()
    tier.close()
    tier.start()
    assert tier.usage() == before
    assert (tier.scan.kept, tier.scan.removed_unreadable, tier.scan.swept_temporary) == (20, 0, 0)
    assert all(same_chunk(tier.read(key), chunk) for key, chunk in chunks.items())
    tier.close()


def test_the_order_of_use_survives_a_restart(tmp_path):
    chunk = make_chunk()
    tier = started(tmp_path)
    for n in range(3):
        tier.put(make_key(n), chunk)
        os.utime(chunk_path(tmp_path, make_key(n)), ns=(n, n))
    tier.read(make_key(0))
    tier.close()
    tier = started(tmp_path, 2 * chunk.nbytes)  # a smaller bound is enforced at start
    assert set(tier.keys()) == {make_key(0), make_key(2)} and tier.usage().evictions == 1
    tier.close()


def test_lru_and_the_bound_hold_exactly(tmp_path):
    chunks = [make_chunk(make_spec(tokens=tokens)) for tokens in (5, 40, 90)]
    tier = started(tmp_path, 4 * chunks[2].nbytes)
    rng = random.Random(5)
    model: dict[str, int] = {}  # least recently used first
    for _ in range(300):
        key, chunk = make_key(rng.randrange(12)), rng.choice(chunks)
        if rng.random() < 0.4:
            assert (tier.read(key) is not None) == (key in model)
            if key in model:
                model[key] = model.pop(key)
        elif key not in model:
            tier.put(key, chunk)
            while sum(model.values()) + chunk.nbytes > 4 * chunks[2].nbytes:
                del model[next(iter(model))]
            model[key] = chunk.nbytes
        assert list(tier.keys()) == list(model)
        on_disk = sum(path.stat().st_size for path in files(tmp_path))
        assert tier.usage().used_bytes == sum(model.values()) == on_disk
    tier.close()


def test_too_large(tmp_path):
    chunk = make_chunk()
    tier = started(tmp_path, chunk.nbytes - 1)
    with pytest.raises(TierFull):
        tier.put(make_key(), chunk)
    assert not files(tmp_path) and tier.usage().used_bytes == 0
    tier.close()


def test_writers_together_stay_within_the_bound(tmp_path):
    chunk = make_chunk()
    tier = started(tmp_path, 3 * chunk.nbytes)
    full: list[TierFull] = []

    def work(seed: int) -> None:
        for n in range(30):
            try:
                tier.put(make_key(seed * 100 + n), chunk)
            except TierFull as error:  # every byte reserved by the others, for a moment
                full.append(error)
            assert tier.usage().used_bytes <= 3 * chunk.nbytes

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    usage = tier.usage()
    assert usage.used_bytes == usage.entries * chunk.nbytes
    assert usage.used_bytes == sum(path.stat().st_size for path in files(tmp_path))
    tier.close()


def test_the_sweep_at_start(tmp_path):
    tier = started(tmp_path)
    for n in range(4):
        tier.put(make_key(n), make_chunk(seed=n))
    tier.close()
    paths = [chunk_path(tmp_path, make_key(n)) for n in range(4)]
    (tmp_path / "tmp" / f"{make_key(9)}.0").write_bytes(b"half")
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    damaged = bytearray(paths[1].read_bytes())
    damaged[40] ^= 1
    paths[1].write_bytes(damaged)
    paths[2].rename(paths[2].with_name("not-a-key.safetensors"))
    (tmp_path / "README").write_text("not ours, not touched")
    tier.start()
    assert (tier.scan.kept, tier.scan.removed_unreadable, tier.scan.swept_temporary) == (1, 3, 1)
    assert files(tmp_path) == [paths[3]] and (tmp_path / "README").exists()
    assert tier.usage().used_bytes == paths[3].stat().st_size
    tier.close()


def test_the_sweep_removes_chunks_of_the_first_format(tmp_path):
    path = chunk_path(tmp_path, make_key())
    path.parent.mkdir(parents=True)
    path.write_bytes(VERSION_1)
    tier = started(tmp_path)
    assert tier.scan.removed_refused == 1 and not path.exists()
    assert tier.read(make_key()) is None
    tier.close()


def test_removal_behind_our_back_is_a_miss(tmp_path):
    tier = started(tmp_path)
    tier.put(make_key(), make_chunk())
    files(tmp_path)[0].unlink()
    assert tier.read(make_key()) is None
    assert (tier.usage().entries, tier.usage().used_bytes) == (0, 0)
    tier.put(make_key(), make_chunk())
    assert same_chunk(tier.read(make_key()), make_chunk())
    tier.close()


def test_a_failed_write_leaves_nothing(tmp_path):
    tier = started(tmp_path)
    key = make_key()
    (tmp_path / key[:2]).write_text("a file where a directory should be")
    with pytest.raises(TierFull, match="in the way"):
        tier.put(key, make_chunk())
    assert not list((tmp_path / "tmp").iterdir())
    assert (tier.usage().entries, tier.usage().used_bytes) == (0, 0)
    tier.close()


def test_one_owner_per_directory(tmp_path):
    first, second = started(tmp_path), SsdTier(tmp_path, 1 << 20)
    with pytest.raises(TierUnavailable, match="its own directory"):
        second.start()
    first.close()
    second.start()
    second.close()


def test_durable_before_visible(tmp_path, monkeypatch):
    """The page cache survives a killed process, so only the order of calls can show an fsync."""
    events: list[str] = []

    def spy(name: str, label) -> None:
        original = getattr(os, name)

        def call(*args):
            events.append(label(*args))
            return original(*args)

        monkeypatch.setattr(os, name, call)

    def kind(fd: int) -> str:
        return "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"

    spy("writev", lambda fd, buffers: "write")
    spy("fsync", lambda fd: f"fsync {kind(fd)}")
    spy("replace", lambda source, target: "rename")
    tier = SsdTier(tmp_path, 1 << 20)
    tier.start()
    for end in "01":
        tier.put(make_key()[:-1] + end, make_chunk())
    tier.close()
    first, second = events[:6], events[6:]
    assert first == ["write", "fsync file", "rename"] + ["fsync directory"] * 3
    assert second == ["write", "fsync file", "rename", "fsync directory"], "directory known already"
