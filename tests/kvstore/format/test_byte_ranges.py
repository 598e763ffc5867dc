import torch

from kvstore.format.byte_ranges import ByteRange, coalesced, gather, total_bytes

RANGES = [ByteRange(0, 0, 3), ByteRange(0, 5, 8), ByteRange(1, 8, 9), ByteRange(3, 20, 24)]


def test_runs_join_neighbours_across_layers():
    assert list(coalesced(RANGES)) == [(0, 3), (5, 9), (20, 24)]
    assert list(coalesced([])) == []
    assert total_bytes(RANGES) == sum(one.nbytes for one in RANGES) == 11


def test_gather():
    data = torch.arange(30, dtype=torch.uint8)
    target, seen = torch.zeros(12, dtype=torch.uint8), []
    gather(data, RANGES, target, lambda done: seen.append((done, target.tolist()[:done])))
    want = [0, 1, 2, 5, 6, 7, 8, 20, 21, 22, 23]
    assert target.tolist() == [*want, 0]
    assert seen == [(6, want[:6]), (7, want[:7]), (11, want)], "once per layer"
    gather(data, [], target)
