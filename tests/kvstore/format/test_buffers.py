import gc
import itertools
import mmap
import random
import threading

import pytest
import torch

from kvstitch.kvstore.format.buffers import (
    BufferPool,
    ByteRange,
    _size_class,
    allocate,
    coalesced,
    gather,
    total_bytes,
    typed_view,
    view_bytes,
)


@pytest.mark.parametrize("nbytes", [1, 1000, (8 << 20) + 3])
@pytest.mark.parametrize("pin", [False, True])
def test_allocated_memory_is_shared_with_its_view(nbytes, pin):
    tensor = allocate(nbytes, pin=pin)
    assert tensor.shape == (nbytes,) and tensor.dtype == torch.uint8
    view_bytes(tensor)[-1] = 7
    assert tensor[-1] == 7 and tensor.data_ptr() % 64 == 0


def test_large_buffers_without_huge_pages(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert allocate(9 << 20).numel() == 9 << 20


def test_typed_view_copies_only_what_is_not_aligned():
    raw = torch.arange(9, dtype=torch.uint8)
    aligned = typed_view(raw[2:6], torch.int16, (2,))
    assert aligned.data_ptr() == raw.data_ptr() + 2
    odd = typed_view(raw[1:5], torch.int16, (2, 1))
    assert odd.flatten().tolist() == [0x0201, 0x0403]


def test_a_pool_gives_again_what_nobody_holds():
    pool = BufferPool()
    first = pool.allocate(3 << 20)
    address = first.data_ptr()
    assert first.shape == (3 << 20,) and address % 4096 == 0 and pool.idle_bytes == 0
    part = view_bytes(first[5:])[7:]
    del first
    gc.collect()
    assert pool.idle_bytes == 0, "a view holds it"
    assert pool.allocate(3 << 20).data_ptr() != address
    part[0] = 9
    part.release()
    del part
    assert pool.idle_bytes >= 3 << 20
    assert pool.allocate((3 << 20) - 1000).data_ptr() in (
        address,
        pool.allocate(3 << 20).data_ptr(),
    )


def test_live_buffers_never_share_memory():
    pool = BufferPool()
    rng = random.Random(3)
    live: list[tuple[torch.Tensor, int]] = []
    for number in range(300):
        if live and rng.random() < 0.5:
            live.pop(rng.randrange(len(live)))
        tensor = pool.allocate(rng.choice([1 << 20, (1 << 20) + 1, 3 << 19, 1 << 21]))
        tensor[0] = tensor[-1] = number % 256
        live.append((tensor, number % 256))
        assert all(t[0] == n and t[-1] == n for t, n in live)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t, _ in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_pool_keeps_no_more_than_its_bound():
    pool = BufferPool(idle_bytes=5 << 20)
    several = [pool.allocate(2 << 20) for _ in range(4)]
    del several
    assert 0 < pool.idle_bytes <= 5 << 20
    pool.clear()
    assert pool.idle_bytes == 0


class Cuda:
    """A fake of CUDA's runtime: it records the pinned addresses and returns `code`."""

    def __init__(self, code=0):
        self.code, self.pinned = code, {}

    def cudaHostRegister(self, address, size, flags):
        assert address % mmap.PAGESIZE == 0 and address not in self.pinned and flags == 1
        if self.code == 0:
            self.pinned[address] = size
        return self.code

    def cudaHostUnregister(self, address):
        del self.pinned[address]
        return 0


@pytest.fixture
def cuda(monkeypatch, request):
    runtime = Cuda(getattr(request, "param", 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_pages_are_pinned_as_long_as_they_are_there(cuda):
    tensor = allocate(3 << 20, pin=True)
    assert cuda.pinned == {tensor.data_ptr(): 3 << 20}
    part = tensor[100:]
    del tensor
    gc.collect()
    assert cuda.pinned, "a view holds them"
    del part
    gc.collect()
    assert not cuda.pinned


def test_a_pool_gives_pinned_pages_to_who_wants_them_pinned(cuda):
    pool = BufferPool()
    pinned, plain = pool.allocate(2 << 20, pin=True), pool.allocate(2 << 20)
    first, second = pinned.data_ptr(), plain.data_ptr()
    assert set(cuda.pinned) == {first}
    del pinned, plain
    gc.collect()
    assert set(cuda.pinned) == {first}, "idle pages stay pinned"
    assert pool.allocate(2 << 20).data_ptr() == second
    assert pool.allocate(2 << 20, pin=True).data_ptr() == first
    pool.clear()
    gc.collect()
    del pool
    gc.collect()
    assert not cuda.pinned


@pytest.mark.parametrize("cuda", [2], indirect=True)
def test_pages_that_cuda_refuses_are_ordinary_ones(cuda, caplog):
    tensor = allocate(2 << 20, pin=True)
    tensor[-1] = 5
    assert tensor[-1] == 5 and "CUDA error 2" in caplog.text
    del tensor
    gc.collect()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("nbytes", [1000, (8 << 20) + 3])
def test_pinned_on_the_gpu(nbytes):
    tensor = BufferPool().allocate(nbytes, pin=True)
    assert tensor.is_pinned()
    tensor.fill_(3)
    assert bool((tensor.to("cuda", non_blocking=True) == 3).all())


def test_a_pool_of_several_threads():
    pool, wrong = BufferPool(), []

    def work(number):
        for _ in range(200):
            tensor = pool.allocate(1 << 20)
            tensor[0] = tensor[-1] = number
            if tensor[0] != number or tensor[-1] != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not wrong


@pytest.mark.parametrize("nbytes", [1 << 20, (1 << 20) + 1, 1_500_000, (64 << 20) + 9280])
def test_size_classes_waste_less_than_an_eighth(nbytes):
    assert nbytes <= _size_class(nbytes) < nbytes * 1.125 + 1


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
