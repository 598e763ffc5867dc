"""Files and directories that the tier's user may not read or change."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from kvstitch.kvstore import SsdTier, TieredStore
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, same_chunk

KEYS = [make_key(n) for n in range(2)]
NOBODY = 65534


@pytest.fixture
def root():
    """A directory of the user that runs the test, who is not root: nothing is forbidden to root."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    shutil.rmtree(folder)


@pytest.fixture
def store(root):
    with TieredStore([SsdTier(root, 1 << 24, fsync=False)]) as store:
        for key in KEYS:
            store.put(key, make_chunk())
        yield store


def test_a_file_that_may_not_be_read_is_damage_of_this_file_alone(root, store):
    for _ in range(5):
        chunk_path(root, KEYS[0]).chmod(0)
        assert store.read(KEYS[0]).problems == (("ssd", "corrupt"),)
        assert store.put(KEYS[0], make_chunk()) and same_chunk(
            store.read(KEYS[0]).chunk, make_chunk()
        )
    assert store.stats().tier("ssd").healthy


def test_a_file_that_may_not_be_read_is_removed_at_start(root, store):
    store.close()
    chunk_path(root, KEYS[0]).chmod(0)
    store.start()
    assert store.contains(KEYS) == {KEYS[1]} and not chunk_path(root, KEYS[0]).exists()
    assert store.stats().tier("ssd").count("scan", "corrupt") == 1


def test_what_cannot_be_reached_is_not_reported_as_deleted(root, store):
    """The deletion is owed until the directory can be searched again."""
    folder = chunk_path(root, KEYS[0]).parent
    folder.chmod(0)
    assert store.delete([KEYS[0]]) == {} and store.stats().tier("ssd").pending_deletes == 1
    assert store.read(KEYS[0]).chunk is None and same_chunk(store.read(KEYS[1]).chunk, make_chunk())
    folder.chmod(0o700)
    assert chunk_path(root, KEYS[0]).exists()
    assert store.delete([KEYS[0]]) == {"ssd": 1} and not chunk_path(root, KEYS[0]).exists()
