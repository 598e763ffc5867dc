"""The kernel for RMSNorm against the stock modules and fp64, and that a row's result is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from service.worker.kernels.cpu import rms_norm
from service.worker.kernels.cpu.rms_norm import Kernel
from service.worker.model.adapters.base import adapter_for
from service.worker.model.adapters.norms import KNOWN, add_and_norm, norm
from tests.service.worker.tiny import FAMILIES, assert_close, random_model, tiny_config

WIDTHS = [16, 64, 80, 128, 896, 2048, 4096]
EPS = 1e-6
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def kernel(compiled: Any) -> Kernel:
    return Kernel(compiled)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def weight_of(width: int) -> Tensor:
    return (1 + 0.2 * drawn(width, seed=width).float()).bfloat16()


def stock(family: str, weight: Tensor) -> Any:
    """A family's own module."""
    module = type(random_model(tiny_config(family)).model.norm)(len(weight), EPS).bfloat16()
    module.weight.copy_(weight)
    return module


def assert_alike(ours: Tensor, theirs: Tensor) -> None:
    """What is rounded last may round otherwise where the sums differ, once in a few thousand; and
    what is rounded twice shows it in at most two units of the last place."""
    assert ours.dtype == theirs.dtype == torch.bfloat16 and ours.shape == theirs.shape
    gap = (ours.double() - theirs.double()).abs()
    assert bool((gap <= theirs.double().abs() * 2**-6).all())
    assert (gap > 0).double().mean() < 2e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_as_the_modules(kernel: Kernel, family: str, width: int) -> None:
    module = stock(family, weight_of(width))
    assert type(module).__name__ in KNOWN
    x, y = drawn(37, width, seed=1) * 3, drawn(37, width, seed=2)
    parts = (module.weight, module.variance_epsilon)
    assert_alike(kernel.norm(x, *parts), module(x))
    added, normed = kernel.add_and_norm(x, y, *parts)
    assert added.equal(x + y)
    assert_alike(normed, module(x + y))
    assert normed.equal(kernel.norm(added, *parts))


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_exact_norm_rounded_twice(kernel: Kernel, width: int) -> None:
    """eps large enough to be seen."""
    x, weight, eps = drawn(19, width, seed=1), weight_of(width), 0.25
    exact_x = x.double()
    exact = weight.double() * exact_x / (exact_x.square().mean(-1, keepdim=True) + eps).sqrt()
    gap = (kernel.norm(x, weight, eps).double() - exact).abs()
    assert bool((gap <= exact.abs() * 2 * 2**-8 * 1.02).all())


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1e4, 1e18])
def test_sizes(kernel: Kernel, size: float) -> None:
    """Below eps, and where one square more would be too large for fp32."""
    module = stock("qwen3", weight_of(896))
    x = (drawn(5, 896, seed=1) * size).clamp(-1e18, 1e18)
    assert_alike(kernel.norm(x, module.weight, EPS), module(x))


def test_what_is_zero_too_large_or_no_number(kernel: Kernel) -> None:
    """Infinities at places that every path of the loop sees; a row's are its own."""
    module = stock("llama", weight_of(144))
    x, y = drawn(9, 144, seed=1), drawn(9, 144, seed=2)
    x[0], y[0] = 0.0, 0.0
    x[1, 3], x[2, 143], x[3, 20], x[4, 50] = INF, -INF, NAN, 3e38
    y[4, 50], x[5, 130], y[5, 130], y[6, 1] = 3e38, INF, -INF, NAN
    for ours, theirs in [
        (kernel.norm(x, module.weight, EPS), module(x)),
        (kernel.add_and_norm(x, y, module.weight, EPS)[0], x + y),
        (kernel.add_and_norm(x, y, module.weight, EPS)[1], module(x + y)),
    ]:
        assert ours.isnan().equal(theirs.isnan())
        assert ours.isnan().any() and not ours[0].any() and ours[7:].isfinite().all()
        assert_alike(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("width", [64, 128])
def test_heads_are_read_where_they_lie(kernel: Kernel, width: int) -> None:
    """Queries and keys in one product's rows."""
    module, both = stock("qwen3", weight_of(width)), drawn(23, 9, width, seed=1)
    for x in (both[:, :6], both[:, 6:8], both[::2, 1::3]):
        ours = kernel.norm(x, module.weight, EPS)
        assert ours.is_contiguous()
        assert ours.equal(kernel.norm(x.reshape(-1, width), module.weight, EPS).view(x.shape))
        assert_alike(ours, module(x))


def test_rows_are_read_where_they_lie(kernel: Kernel) -> None:
    weight, wider = weight_of(64), drawn(20, 200, seed=1)
    x, y = wider[::2, 3:67], wider[10:, 100:164]
    added, normed = kernel.add_and_norm(x, y, weight, EPS)
    assert added.equal(x + y) and normed.equal(kernel.norm(x + y, weight, EPS))
    assert kernel.norm(x, weight, EPS).equal(kernel.norm(x.contiguous(), weight, EPS))
    assert kernel.norm(x[:0], weight, EPS).shape == (0, 64)


def results(kernel: Kernel, x: Tensor, y: Tensor, heads: Tensor) -> list[Tensor]:
    of_heads = kernel.norm(heads, weight_of(heads.shape[2]), EPS)
    weight = weight_of(x.shape[1])
    return [kernel.norm(x, weight, EPS), *kernel.add_and_norm(x, y, weight, EPS), of_heads]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(kernel: Kernel, threads: int) -> None:
    x, y = drawn(211, 896, seed=1), drawn(211, 896, seed=2)
    heads = drawn(211, 14, 64, seed=3)[:, :10]
    assert min(x.numel(), heads.numel()) >= rms_norm.MIN_PARALLEL
    before = torch.get_num_threads()
    expected = results(kernel, x, y, heads)
    try:
        torch.set_num_threads(threads)
        again = results(kernel, x, y, heads)
    finally:
        torch.set_num_threads(before)
    assert all(ours.equal(one) for ours, one in zip(again, expected, strict=True))


def test_few_rows_wake_no_threads(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, weight = Mock(), weight_of(64)
    monkeypatch.setattr(kernel, "_rows", asked)
    monkeypatch.setattr(kernel, "_sums", asked)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for rows, threads in ((1, 1), (rms_norm.MIN_PARALLEL // 64, 3)):
        x = torch.zeros(rows, 64).bfloat16()
        kernel.norm(x, weight, EPS)
        kernel.add_and_norm(x, x, weight, EPS)
        assert [call.args[-1] for call in asked.call_args_list[-2:]] == [threads] * 2


def test_a_row_does_not_depend_on_its_batch(kernel: Kernel) -> None:
    x, y, heads = drawn(33, 896, seed=1), drawn(33, 896, seed=2), drawn(33, 3, 64, seed=3)
    together = results(kernel, x, y, heads)
    for row in (slice(0, 1), slice(7, 8), slice(20, 33)):
        alone = results(kernel, x[row], y[row], heads[row])
        assert all(ours.equal(every[row]) for ours, every in zip(alone, together, strict=True))


def test_others_are_left_to_the_module(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rms_norm, "kernel", lambda: kernel)
    weight, x = weight_of(64), drawn(5, 64, seed=1)
    assert rms_norm.kernel_for(weight, x) is rms_norm.kernel_for(weight, x, x) is kernel
    assert rms_norm.kernel_for(weight, drawn(5, 2, 64, seed=1)[:, 1:]) is kernel
    refused: list[tuple[Tensor, ...]] = [
        (weight.float(), x.float()),
        (weight.float(), x),
        (weight, x.half()),
        (weight[:40], x[:, :40]),
        (weight[:32], x),
        (weight, x[0]),
        (weight, x[None, None]),
        (weight, drawn(64, 5, seed=1).t()),
        (weight_of(128)[::2], x),
        (weight, x.to("meta")),
        (weight, x, x.float()),
        (weight, x, x[:1]),
        (weight, x, drawn(64, 5, seed=1).t()),
        (weight, x[None], x[None]),
    ]
    for parts in refused:
        assert rms_norm.kernel_for(*parts) is None


def test_a_module_of_other_arithmetic_is_called(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma's has the parameters and the name's ending, and adds one to the weight."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    monkeypatch.setattr(rms_norm, "kernel", lambda: kernel)
    module, x = GemmaRMSNorm(64).bfloat16(), drawn(5, 64, seed=1)
    assert norm(module, x).equal(module(x))
    added, normed = add_and_norm(module, x, x)
    assert added.equal(x + x) and normed.equal(module(x + x))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_agrees_with_and_without(
    kernel: Kernel, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every norm of a layer and the last one; and all of them go through the kernel."""
    sizes = {"hidden_size": 96, "rms_norm_eps": 0.5}
    adapter = adapter_for(random_model(tiny_config(family, **sizes), dtype=torch.bfloat16))
    x, attended = drawn(11, 96, seed=1), drawn(11, adapter.heads * adapter.head_dim, seed=2)

    def layer(found: Callable[[], Any]) -> list[Tensor]:
        monkeypatch.setattr(rms_norm, "kernel", found)
        return [*adapter.qkv(1, x), adapter.finish(1, x, attended), adapter.logits(x)]

    used = Mock(wraps=kernel)
    ours, theirs = layer(lambda: used), layer(lambda: None)
    assert used.norm.call_count == (4 if family == "qwen3" else 2)
    assert used.add_and_norm.call_count == 1
    for one, other in zip(ours, theirs, strict=True):
        scale = float(other.abs().max())
        assert_close("with the kernel for norms", one / scale, other / scale, 2**-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_of_a_family_is_known(family: str) -> None:
    model = random_model(tiny_config(family))
    norms = [m for name, m in model.named_modules() if name.endswith("norm")]
    assert len(norms) == 1 + 5 * (4 if family == "qwen3" else 2)
    assert all(type(module).__name__ in KNOWN for module in norms)
