"""The Triton kernels that rotate queries and write keys and values, against torch: the same to the
bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward.kv_placement import write_and_rotate, write_rows, write_tokens
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.methods.layer_view import Replaced
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import rotation_gpu
from tests_gpu.kernels.interpreter import needs_gpu

CASES = [(1, 1, 32), (70, 2, 64), (17, 3, 96), (40, 2, 80)]
"""Rows, KV heads, head dim."""
DTYPES = {"cpu": (torch.float16, torch.float32), "cuda": (torch.float16, torch.bfloat16)}
N = 200


def table(d: int, device: str) -> RotaryTable:
    return RotaryTable(10000.0 ** -(torch.arange(0, d, 2, device=device) / d), 1.25, N)


def fused(rows: int, heads: int, d: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Queries, keys and values as parts of one product, so that none is contiguous."""
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4 * heads, d, generator=random).to(device, dtype)
    return x[:, : 2 * heads], x[:, 2 * heads : 3 * heads], x[:, 3 * heads :]


def both(run: Callable[[], Tensor], expected: int) -> tuple[Tensor, Tensor]:
    """The result by the kernels, which `run` launches so many times, and by torch."""
    with (
        patch.object(rotation_gpu, "supports", lambda _: True),
        patch.object(rotation_gpu, "write", wraps=rotation_gpu.write) as written,
        patch.object(rotation_gpu, "rotate", wraps=rotation_gpu.rotate) as rotated,
        patch.object(
            rotation_gpu, "write_with_queries", wraps=rotation_gpu.write_with_queries
        ) as together,
    ):
        ours = run()
        assert written.call_count + rotated.call_count + together.call_count == expected
    with patch.object(rotation_gpu, "supports", lambda _: False):
        return ours, run()


def rotate(device: str) -> None:
    """Raises AssertionError where kernel and torch differ."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        q, *_ = fused(rows, heads, d, dtype, device)
        positions = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:rows].to(device)
        ours, theirs = both(lambda: table(d, device).rotate(q, positions), 1)  # noqa: B023
        assert ours.equal(theirs) and ours.is_contiguous(), (rows, heads, d, dtype)


def write(device: str) -> None:
    """Raises AssertionError where kernel and torch differ, or other rows are written."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        _, k, v = fused(rows, heads, d, dtype, device)
        at = torch.randperm(N, generator=torch.Generator().manual_seed(2))[:rows].sort().values

        def written() -> Tensor:
            cache = torch.zeros(2, heads, N + 3, d, dtype=dtype, device=device)  # noqa: B023
            k_all, v_all = cache[:, :, :N]
            write_rows(table(d, device), k_all, v_all, k, v, at.to(device))  # noqa: B023
            return cache

        ours, theirs = both(written, 1)
        assert ours.equal(theirs), (rows, heads, d, dtype)
        assert int(ours.flatten(2).any(-1).sum()) and not ours[:, :, N:].any()


def write_with_queries(device: str) -> None:
    """Raises AssertionError where kernel and torch differ, or other rows are written."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        q, k, v = fused(rows, heads, d, dtype, device)
        at = torch.randperm(N, generator=torch.Generator().manual_seed(2))[:rows].sort().values

        def written() -> Tensor:
            cache = torch.zeros(2, heads, N + 3, d, dtype=dtype, device=device)  # noqa: B023
            k_all, v_all = cache[:, :, :N]
            parts = q, k, v, at.to(device)  # noqa: B023
            rotated = write_and_rotate(table(d, device), (k_all, v_all), *parts)  # noqa: B023
            assert rotated.is_contiguous() and rotated.shape == q.shape  # noqa: B023
            return torch.cat([cache.flatten(), rotated.flatten()])

        ours, theirs = both(written, 1)
        assert ours.equal(theirs), (rows, heads, d, dtype)
        cache, rotated = ours.split([2 * heads * (N + 3) * d, q.numel()])
        assert int(cache.view(-1, d).any(-1).sum()) == 2 * rows * heads
        assert rotated.view(-1, d).any(-1).all()


def tokens(device: str) -> None:
    """Raises AssertionError where the pool or the queries are others than torch's."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        q, k, v = fused(rows, heads, d, dtype, device)
        positions = torch.arange(rows, device=device) * 2
        random = torch.Generator().manual_seed(3)
        into = torch.randperm(heads * N, generator=random)[: rows * heads].to(device)

        def written() -> Tensor:
            pool = KVPool(1, heads, d, N, dtype=dtype, device=torch.device(device))  # noqa: B023
            rotated = write_tokens(
                table(d, device), pool, 0, q, k, v, positions=positions, into=into  # noqa: B023
            )  # fmt: skip
            return torch.cat([pool.k[0], pool.v[0], rotated.flatten(0, 1)])

        ours, theirs = both(written, 1)
        assert ours.equal(theirs)
        in_pool = ours[: -q.shape[0] * q.shape[1]]
        assert int((in_pool != 0).any(-1).sum()) == 2 * rows * heads


def replaced(device: str) -> None:
    """Raises AssertionError where what a row took the place of is not kept."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        q, k, v = fused(rows, heads, d, dtype, device)
        random = torch.Generator().manual_seed(2)
        at = torch.randperm(N, generator=random)[:rows].sort().values.to(device)
        cache = torch.randn(2, heads, N + 3, d, generator=random).to(device, dtype)
        before, of = cache.clone(), table(d, device)
        kept = Replaced(k.new_empty(k.shape), v.new_empty(v.shape))
        with patch.object(rotation_gpu, "supports", lambda _: True):
            layer = cache[0][:, :N], cache[1][:, :N]
            write_and_rotate(of, layer, q, k, v, at, replaced=kept)
        for found, whole in zip(kept, before, strict=True):
            assert found.equal(whole[:, at].transpose(0, 1))
        assert cache[1][:, at].equal(v.transpose(0, 1))


def placed(device: str) -> None:
    """Raises AssertionError where a prompt in a pool gets other rows, or padding writes any."""
    for (rows, heads, d), dtype in product(CASES, DTYPES[device]):
        q, k, v = fused(rows + 5, heads, d, dtype, device)
        random = torch.Generator().manual_seed(2)
        at = torch.randperm(N, generator=random)[:rows].sort().values
        at = torch.cat([at, torch.zeros(5, dtype=at.dtype)]).to(device)
        pools = torch.zeros(2, 2, 4 + heads * (N + 3), d, dtype=dtype, device=device)
        of = table(d, device)
        extent = torch.tensor([4 * d, (N + 3) * d, N, rows], device=device)
        firsts = [x[:1].expand(heads, -1, -1) for x in pools[0]]
        ours = rotation_gpu.write_with_queries(
            q, k, v, *firsts, positions=at, cos=of.cos, sin=of.sin, extent=extent
        )
        caches = [x[4:].view(heads, N + 3, d)[:, :N] for x in pools[1]]
        given = q[:rows], k[:rows], v[:rows]
        theirs = rotation_gpu.write_with_queries(
            *given, *caches, positions=at[:rows], cos=of.cos, sin=of.sin
        )
        assert ours[:rows].equal(theirs) and pools[0].equal(pools[1]) and pools[0].any()


CHECKS = [rotate, write, write_with_queries, tokens, replaced, placed]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: Callable[[str], None]) -> None:
    assert rotation_gpu.supports(torch.zeros(2, 5, 64, dtype=torch.bfloat16, device="cuda"))
    check("cuda")
