import mmap

import pytest
import torch

from kvstore.buffers import allocate, typed_view, view_bytes


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
