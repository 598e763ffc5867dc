"""Things in the tier's directory that are not its files: skipped, reported, never in the way."""

import os
import socket
import stat

import pytest
import torch

from kvstitch.kvstore import SsdTier, TieredStore, TierFull
from kvstitch.kvstore.format.extra_tensors import encode_extra
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path, extra_path
from tests.kvstore.chunks import make_chunk, make_key, same_chunk

KEYS = [make_key(n) for n in range(3)]
SKETCH = encode_extra("sketch", 1, {"mean": torch.ones(9)}, key=KEYS[0]).raw


def directory(path):
    path.mkdir(parents=True)
    (path / "inside").write_text("somebody's")


def fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def loop(path):
    path.symlink_to(path.name)


def link_to_a_file(path):
    target = path.parent / "somebody's file"
    target.write_bytes(b"not ours")
    path.symlink_to(target)


FOREIGN = [directory, fifo, unix_socket, loop, link_to_a_file]


@pytest.fixture
def root(tmp_path):
    """A directory that holds KEYS[0] with a sketch, of a tier that is closed."""
    tier = started(tmp_path)
    tier.put(KEYS[0], make_chunk())
    tier.put_extra(KEYS[0], "sketch", SKETCH)
    tier.close()
    return tmp_path


def started(root):
    tier = SsdTier(root, 1 << 24, fsync=False)
    tier.start()
    return tier


@pytest.mark.parametrize("make", FOREIGN)
@pytest.mark.parametrize(
    "place", ["tmp/x", "x", "ab", "tmp", ".lock", "{dir}/x", "{dir}/x.safetensors", "{dir}/x.extra"]
)
def test_the_start_and_everything_after_it(root, place, make):
    key = KEYS[0]
    path = root / place.format(dir=f"{key[:2]}/{key[2:4]}")
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    make(path)
    before = os.lstat(path)
    for _ in range(2):
        tier = started(root)
        if not (place in ("ab", "tmp") and make is directory):  # those are directories of ours
            assert path in tier.scan.foreign
        assert same_chunk(tier.read(key), make_chunk()) and tier.scan.kept == 1
        assert tier.read_extra(key, "sketch").equal(SKETCH)
        tier.put(KEYS[1], make_chunk())
        assert same_chunk(tier.read(KEYS[1]), make_chunk())
        assert tier.delete([KEYS[1]]) == 1
        tier.close()
        after = os.lstat(path)
        assert (after.st_ino, stat.S_IFMT(after.st_mode)) == (
            before.st_ino,
            stat.S_IFMT(before.st_mode),
        )


def test_a_hidden_folder_is_no_news(root):
    directory(root / ".prompts")
    tier = started(root)
    assert tier.scan.foreign == [] and tier.scan.kept == 1
    tier.close()
    assert (root / ".prompts" / "inside").read_text() == "somebody's"


def test_two_owners_where_the_lock_file_is_taken(root):
    from kvstitch.kvstore import TierUnavailable

    (root / ".lock").unlink()
    (root / ".lock").mkdir()
    tier = started(root)
    with pytest.raises(TierUnavailable, match="in use"):
        started(root)
    tier.close()


@pytest.mark.parametrize("make", FOREIGN)
def test_under_the_name_of_a_chunk_or_sketch(root, make):
    """Before the start: the key is not there, and its bytes cannot be stored; the tier is well."""
    chunk, sketch = chunk_path(root, KEYS[1]), extra_path(root, KEYS[0], "other")
    for path in (chunk, sketch):
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    with TieredStore([SsdTier(root, 1 << 24)]) as store:
        tier = store._tiers[0]._tier
        assert isinstance(tier, SsdTier)
        assert {chunk, sketch} <= set(tier.scan.foreign)
        assert store.read(KEYS[1]).problems == () and store.read_extra(KEYS[0], "other", 1) is None
        for _ in range(8):
            store.put(KEYS[1], make_chunk())
        stats = store.stats().tier("ssd")
        assert stats.count("write", "rejected") == 8 and stats.healthy
        with pytest.raises(TierFull, match="in the way"):
            tier.put_extra(KEYS[0], "other", SKETCH)
        assert store.delete([KEYS[0], KEYS[1]]) == {"ssd": 1}
        assert tier.usage().used_bytes == 0 and os.path.lexists(chunk)


@pytest.mark.parametrize("make", FOREIGN)
def test_in_the_place_of_a_stored_chunk_while_running(root, make):
    """A read neither waits nor follows: the copy is counted as damaged and forgotten."""
    with TieredStore([SsdTier(root, 1 << 24)]) as store:
        assert store.put(KEYS[1], make_chunk()) and store.put(KEYS[2], make_chunk())
        for key in KEYS[1:]:
            chunk_path(root, key).unlink()
            make(chunk_path(root, key))
        assert store.read(KEYS[1]).problems == (("ssd", "corrupt"),)
        assert store.read_blocks(KEYS[2], {0: [0]}).problems == (("ssd", "corrupt"),)
        assert not store.contains(KEYS[1:])
        stats = store.stats().tier("ssd")
        assert stats.healthy and stats.pending_deletes == 0


def test_a_file_where_a_directory_should_be(root):
    (root / KEYS[1][:2]).write_text("somebody's")
    with TieredStore([SsdTier(root, 1 << 24)]) as store:
        store.put(KEYS[1], make_chunk())
        assert store.stats().tier("ssd").count("write", "rejected") == 1
        assert store.put(KEYS[2], make_chunk()) and store.read(KEYS[2]).chunk is not None


def test_only_this_user_may_see_what_is_stored(tmp_path):
    mask = os.umask(0)
    try:
        tier = started(tmp_path / "new" / "kv")
        tier.put(KEYS[0], make_chunk())
        tier.put_extra(KEYS[0], "sketch", SKETCH)
        tier.close()
    finally:
        os.umask(mask)
    assert modes(tmp_path / "new") == {"d0o700", "f0o600"}


def test_what_an_older_version_wrote_becomes_private(root):
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    tier = started(root)
    tier.close()
    assert modes(root) == {"d0o700", "f0o600"}


def modes(folder):
    return {
        ("d" if path.is_dir() else "f") + oct(stat.S_IMODE(path.stat().st_mode))
        for path in [folder, *folder.rglob("*")]
    }
