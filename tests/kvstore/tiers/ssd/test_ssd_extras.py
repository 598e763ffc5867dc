"""Files of extra tensors are counted, evicted, removed and found again with their chunk."""

import os

import pytest
import torch

from kvstitch.kvstore import ChunkCorrupt, TierFull
from kvstitch.kvstore.format.extra_tensors import encode_extra
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path, extra_path
from tests.kvstore.chunks import make_chunk, make_key
from tests.kvstore.tiers.ssd.test_ssd_tier import files, started


def sketch():
    return encode_extra("sketch", 1, {"mean": torch.zeros(90)}, key=make_key()).raw


def test_extras_are_counted_evicted_and_adopted_with_their_chunk(tmp_path):
    chunk, raw = make_chunk(), sketch()
    tier = started(tmp_path, 2 * chunk.nbytes + raw.numel() + 500)
    for n in range(2):
        tier.put(make_key(n), chunk)
    assert tier.put_extra(make_key(0), "sketch", raw)
    assert tier.usage().used_bytes == 2 * chunk.nbytes + raw.numel()
    before = tier.usage()
    tier.close()
    tier.start()
    assert tier.usage() == before and torch.equal(tier.read_extra(make_key(0), "sketch"), raw)
    assert (tier.scan.kept, tier.scan.removed_unreadable) == (2, 0)
    # Key 0 is in use, so the other chunk is evicted to make room for its second extra tensors.
    assert tier.put_extra(make_key(0), "second", raw)
    assert set(tier.keys()) == {make_key(0)} and tier.usage().evictions == 1
    tier.put(make_key(2), chunk)
    tier.put(make_key(3), chunk)
    assert set(tier.keys()) == {make_key(2), make_key(3)}
    assert not list(tmp_path.glob("??/??/*.extra"))
    assert tier.usage().used_bytes == 2 * chunk.nbytes
    with pytest.raises(TierFull):
        tier.put_extra(make_key(2), "sketch", torch.zeros(3 * chunk.nbytes, dtype=torch.uint8))
    assert tier.usage().used_bytes == 2 * chunk.nbytes
    tier.close()


def test_an_extra_whose_room_costs_its_own_chunk_is_not_kept(tmp_path):
    chunk = make_chunk()
    tier = started(tmp_path, chunk.nbytes + 10)
    tier.put(make_key(), chunk)
    assert not tier.put_extra(make_key(), "sketch", torch.zeros(100, dtype=torch.uint8))
    assert tier.usage().used_bytes == 0 and not list(tmp_path.glob("??/??/*"))
    assert not list((tmp_path / "tmp").iterdir())
    tier.close()


def test_the_sweep_of_extras(tmp_path):
    tier = started(tmp_path)
    for n in range(3):
        tier.put(make_key(n), make_chunk())
        tier.put_extra(make_key(n), "sketch", sketch())
    tier.close()
    chunk_path(tmp_path, make_key(0)).unlink()
    good = extra_path(tmp_path, make_key(1), "sketch")
    good.rename(good.with_name(f"{make_key(1)}.No.extra"))
    tier.start()
    assert (tier.scan.kept, tier.scan.removed_unreadable) == (2, 2)
    assert list(tmp_path.glob("??/??/*.extra")) == [extra_path(tmp_path, make_key(2), "sketch")]
    assert tier.usage().used_bytes == 2 * make_chunk().nbytes + sketch().numel()
    tier.close()


def test_a_chunk_removed_behind_our_back_takes_its_extra_along(tmp_path):
    tier = started(tmp_path)
    tier.put(make_key(), make_chunk())
    tier.put_extra(make_key(), "sketch", torch.zeros(9, dtype=torch.uint8))
    files(tmp_path)[0].unlink()
    assert tier.read_ranges(make_key(), make_chunk().header, []) is None
    assert tier.usage().used_bytes == 0 and not list(tmp_path.glob("??/??/*"))
    tier.close()


def test_a_failed_write_of_an_extra_leaves_nothing(tmp_path, monkeypatch):
    tier = started(tmp_path)
    tier.put(make_key(), make_chunk())
    used = tier.usage().used_bytes

    def fail(*_):
        raise OSError(28, "No space left on device")

    for call, error in (("writev", TierFull), ("replace", TierFull)):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(error):
                tier.put_extra(make_key(), "sketch", torch.zeros(9, dtype=torch.uint8))
        assert tier.usage().used_bytes == used and not list((tmp_path / "tmp").iterdir())
        assert tier.read_extra(make_key(), "sketch") is None
    tier.close()


def test_a_delete_while_an_extra_is_written_leaves_nothing(tmp_path, monkeypatch):
    tier = started(tmp_path)
    tier.put(make_key(), make_chunk())
    writev = os.writev

    def delete_first(fd, buffers):
        assert tier.delete([make_key()]) == 1
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", delete_first)
    assert not tier.put_extra(make_key(), "sketch", torch.zeros(9, dtype=torch.uint8))
    assert tier.usage().used_bytes == 0 and not list(tmp_path.glob("??/??/*"))
    assert not list((tmp_path / "tmp").iterdir())
    tier.close()


def test_an_extra_removed_behind_our_back_is_no_longer_counted(tmp_path):
    tier = started(tmp_path)
    tier.put(make_key(), make_chunk())
    tier.put_extra(make_key(), "sketch", torch.zeros(9, dtype=torch.uint8))
    extra_path(tmp_path, make_key(), "sketch").unlink()
    assert tier.read_extra(make_key(), "sketch") is None
    assert tier.usage().used_bytes == make_chunk().nbytes
    tier.close()


def test_room_is_made_at_the_cost_of_others_and_only_for_what_is_there(tmp_path):
    chunk, raw = make_chunk(), torch.zeros(100, dtype=torch.uint8)
    tier = started(tmp_path, 2 * chunk.nbytes)
    for n in range(2):
        tier.put(make_key(n), chunk)
    assert not tier.put_extra(make_key(7), "sketch", raw)
    assert tier.usage().evictions == 0
    assert tier.put_extra(make_key(0), "sketch", raw), "the oldest, but in use now"
    assert set(tier.keys()) == {make_key(0)}
    tier.close()


def test_extra_tensors_that_have_grown_enormously(tmp_path):
    """A sparse file of a TiB: neither read into memory nor counted, so that nothing is evicted."""
    tier = started(tmp_path, 1 << 30)
    tier.put(make_key(), make_chunk())
    tier.put_extra(make_key(), "sketch", sketch())
    path = extra_path(tmp_path, make_key(), "sketch")
    os.truncate(path, 1 << 40)
    with pytest.raises(ChunkCorrupt, match="1099511627776 bytes"):
        tier.read_extra(make_key(), "sketch")
    tier.close()
    tier.start()
    assert (tier.scan.kept, tier.scan.removed_unreadable) == (1, 1) and not path.exists()
    assert tier.usage().used_bytes == make_chunk().nbytes
    assert tier.put_extra(make_key(), "sketch", sketch())
    assert torch.equal(tier.read_extra(make_key(), "sketch"), sketch())
    tier.close()
