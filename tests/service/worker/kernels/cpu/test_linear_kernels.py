"""The kernels for linear layers against fp64, that a row's result is its own, and who uses them."""

from __future__ import annotations

from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.kernels.cpu import (
    cpu_linear,
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    native,
)
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.steps import run
from tests.service.worker.conftest import use_bf16_dot
from tests.service.worker.tiny import assert_close, random_model, tiny_config

pytestmark = pytest.mark.exhaustive

BF16 = 2**-7  # one rounding of a result of size about 1 to 2
BLOCK = linear_many_rows_bf16.TILES * linear_many_rows_bf16.ROWS  # that a weight goes by at once
WIDTHS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 320,
}  # fmt: skip

Kernel = tuple[ModuleType, bool | None]
"""And whether it runs by the CPU's bfloat16 dot products; None: it does not ask."""
FEW: list[Kernel] = [(linear_few_rows, False), (linear_few_rows, True)]
BY_DOTS: Kernel = (linear_many_rows_bf16, True)
IN_FP32: Kernel = (linear_many_rows_fp32, None)
EVERY = [*FEW, BY_DOTS, IN_FP32]
# Every number of rows that has a path of its own, whole and broken: registers of a tile, a second
# tile, a second block. The widest are gone through in four parts, of which the last is shorter.
SHAPES: list[tuple[Kernel, int, int, int]] = [
    *product(FEW, [*range(1, 10), 17, 64], [1, 3, 16, 61], [32, 96, 896, 2080]),
    *product(
        [BY_DOTS],
        [1, 15, 16, 17, 33, 48, 49, BLOCK, BLOCK + 1, 400],
        [32, 96],
        [32, 512, 896, 4800, 4864],
    ),
    *product(
        [IN_FP32], [1, 15, 16, 17, 32, 33, 48, 49, 96, 130], [16, 80], [32, 512, 896, 1056]
    ),
]  # fmt: skip


@pytest.fixture
def kernel(
    request: pytest.FixtureRequest, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    module, dots = request.param
    if dots is not None:
        use_bf16_dot(compiled, monkeypatch, dots)
    return module


def of_every(kernels: list[Kernel] = EVERY) -> pytest.MarkDecorator:
    ids = [f"{module.__name__.rpartition('.')[2]}-{dots}" for module, dots in kernels]
    return pytest.mark.parametrize("kernel", kernels, ids=ids, indirect=True)


@pytest.fixture
def fast_bf16(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This CPU multiplies bfloat16 faster than fp32."""
    use_bf16_dot(compiled, monkeypatch, True)


@pytest.fixture
def slow_bf16(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this CPU is, it multiplies bfloat16 slower than fp32, and has the kernel."""
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: True)


def drawn(*shape: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) / shape[-1] ** 0.5).bfloat16()


def assert_rounded(ours: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """ours is the exact product, off by what a sum in fp32 may be and by one rounding: half a unit
    in the last place."""
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert ours.dtype == torch.bfloat16 and ours.shape == expected.shape
    allowed = expected.abs() * 2**-8 * 1.01 + 1e-5
    assert bool(((ours.double() - expected).abs() <= allowed).all())


@pytest.mark.parametrize(
    ("kernel", "rows", "outs", "columns"),
    SHAPES,
    ids=[f"{k[0].__name__.rpartition('.')[2]}-{k[1]}-{m}-{n}-{c}" for k, m, n, c in SHAPES],
    indirect=["kernel"],
)
def test_it_is_the_exact_product_rounded(
    kernel: ModuleType, rows: int, outs: int, columns: int
) -> None:
    x, weight = drawn(rows, columns, seed=1) * 8, drawn(outs, columns, seed=2)
    for bias in (None, drawn(outs, seed=3)):
        assert_rounded(kernel.linear(x, weight, bias), x, weight, bias)


@of_every()
@pytest.mark.parametrize("columns", [896, 1056, 2080])
def test_a_row_does_not_depend_on_its_batch(kernel: ModuleType, columns: int) -> None:
    """Nor on the parts of the columns that more rows go through."""
    few = kernel is linear_few_rows
    x, weight = drawn(33 if few else 400, columns, seed=1), drawn(208, columns, seed=2)
    if kernel is linear_many_rows_bf16:
        weight = weight[:96]
    whole = kernel.linear(x, weight)
    for rows in (*range(1, 10), 33) if few else (1, 16, 20, 40, 48, 49, 100, BLOCK, BLOCK + 1):
        assert kernel.linear(x[:rows], weight).equal(whole[:rows])
        assert kernel.linear(x[-rows:], weight).equal(whole[-rows:])


@of_every()
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(kernel: ModuleType, threads: int) -> None:
    rows = 21 if kernel is linear_few_rows else 250
    x, weight, bias = drawn(rows, 1056, seed=1), drawn(1008, 1056, seed=2), drawn(1008, seed=3)
    assert weight.numel() >= linear_few_rows.MIN_PARALLEL
    parts = mlp(hidden=64, width=480)

    def computed() -> list[Tensor]:
        found = [kernel.linear(x, weight, bias)]
        if kernel is linear_many_rows_bf16:
            found.append(run(kernel.gated_mlp(x[:, :64], *parts)))
        return found

    before = torch.get_num_threads()
    expected = computed()
    try:
        torch.set_num_threads(threads)
        assert all(a.equal(b) for a, b in zip(computed(), expected, strict=True))
    finally:
        torch.set_num_threads(before)


@of_every()
@pytest.mark.parametrize("rows", [3, 50, 200])
def test_slices_are_read_where_they_lie(kernel: ModuleType, rows: int) -> None:
    """Rows of a weight that are further apart than they are long, and rows of x that are."""
    whole, wide_x = drawn(70, 128, seed=1), drawn(rows, 128, seed=2)
    x, weight = wide_x[:, :64], whole[5:69, 32:96]
    assert_rounded(kernel.linear(x, weight), x, weight)
    turned = wide_x.t().contiguous().t()[:, :64]
    assert kernel.linear(turned, weight).equal(kernel.linear(x, weight))


@of_every()
def test_ties_infinities_and_what_is_no_number(kernel: ModuleType) -> None:
    weight = torch.zeros(32, 32, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 1.0, 2**-9  # half a unit in the last place of 1: to even
    weight[1, 0], weight[1, 1] = 1 + 2**-7, 2**-9 + 2**-12
    weight[2, 0], weight[3, 0] = float("inf"), float("nan")
    rows = 1 if kernel is linear_few_rows else 50
    out = kernel.linear(torch.ones(rows, 32, dtype=torch.bfloat16), weight)
    assert bool((out == out[0]).all(0)[torch.arange(32) != 3].all())
    row = out[-1]
    assert row[0] == 1.0 and row[1] == 1 + 2**-7 and row[2] == float("inf") and row[3].isnan()


@of_every()
def test_other_products_are_torchs(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    few, rows = kernel is linear_few_rows, 2 if kernel is linear_few_rows else 60
    x, weight = drawn(rows, 64, seed=1), drawn(32, 64, seed=2)
    assert kernel.supports(x, weight)
    assert not kernel.supports(x.float(), weight.float())
    assert not kernel.supports(x[:, :40], weight[:, :40])
    assert not kernel.supports(x, weight.t().contiguous().t())
    if few:
        for most, batch in ((kernel.MAX_ROWS, False), (kernel.MAX_BATCH, True)):
            assert not kernel.supports(drawn(most + 1, 64, seed=1), weight, batch=batch)
        return
    assert not kernel.supports(x, weight[:20])
    assert not kernel.supports(x, weight, weight.float())
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    assert kernel.supports(x, weight) is (kernel is linear_many_rows_fp32)


@pytest.mark.parametrize("rows", [1, 50, 200])
def test_results_are_written_where_they_belong(fast_bf16: None, rows: int) -> None:
    """Into some columns and rows of more; what lies around them is left alone."""
    x, weight, bias = drawn(rows, 64, seed=1), drawn(32, 64, seed=2), drawn(32, seed=3)
    whole = torch.full((rows + 20, 96), 3.0, dtype=torch.bfloat16)
    part = whole[10:-10, 32:64]
    linear_many_rows_bf16.product(linear_many_rows_bf16.pack(x), weight, part, bias)
    assert part.equal(linear_many_rows_bf16.linear(x, weight, bias))
    part.fill_(3.0)
    assert bool((whole == 3.0).all())


# -- gated MLPs -----------------------------------------------------------------------------------


def mlp(hidden: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """gate and up, halves of one weight, and down; all with rows further apart than they are
    long."""
    gate, up = drawn(2 * width, hidden + 64, seed=2)[:, :hidden].chunk(2)
    return gate, up, drawn(hidden, width + 32, seed=3)[:, :width]


def weights() -> tuple[Tensor, Tensor, Tensor]:
    """gate, up and down."""
    return drawn(96, 64, seed=2), drawn(96, 64, seed=3), drawn(64, 96, seed=4)


# The rows of an MLP go through it in blocks, of which the last is broken.
@of_every([BY_DOTS, IN_FP32])
@pytest.mark.parametrize("rows", [1, 16, 47, 64, BLOCK, BLOCK + 1, 500])
@pytest.mark.parametrize("hidden, width", [(128, 1120), (96, 32), (896, 64)])
def test_an_mlp_is_the_exact_one_rounded(
    kernel: ModuleType, rows: int, hidden: int, width: int
) -> None:
    x, (gate, up, down) = drawn(rows, hidden, seed=1) * 8, mlp(hidden, width)
    ours = run(cpu_linear.gated_mlp(x, gate, up, down, F.silu))
    inner = F.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    assert ours.dtype == torch.bfloat16
    assert_close("mlp", ours.double(), inner @ down.double().t(), 2 * BF16)
    if kernel is linear_many_rows_bf16:
        # The inside is rounded, too: one that fp32 rounds to the other side is one of many.
        expected = inner.bfloat16().double() @ down.double().t()
        assert_close("mlp, inside rounded", ours.double(), expected, BF16)


@pytest.mark.parametrize("rows", [20, 193, 250])
def test_pauses_and_blocks_change_nothing(
    fast_bf16: None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, parts = drawn(rows, 96, seed=1) * 8, mlp(96, 480)
    whole = run(linear_many_rows_bf16.gated_mlp(x, *parts))
    # A strip at a time, and steps that the width and the rows of down are no multiple of.
    for pause in (1, 7 * 32 * rows * 192, 11 * 32 * rows * 192):
        monkeypatch.setattr(linear_many_rows_bf16, "PAUSE", pause)
        assert sum(1 for _ in linear_many_rows_bf16.gated_mlp(x, *parts)) > 0
        assert run(linear_many_rows_bf16.gated_mlp(x, *parts)).equal(whole)
    for tiles in (1, 3):
        room = tiles * 2 * linear_many_rows_bf16.ROWS * 96
        monkeypatch.setattr(linear_many_rows_bf16, "ROOM", room)
        assert run(linear_many_rows_bf16.gated_mlp(x, *parts)).equal(whole)


def test_it_pauses_for_many_rows_and_not_for_few(
    fast_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what they cost: 48 rows of this MLP are 45 million multiplications."""
    monkeypatch.setattr(linear_many_rows_bf16, "PAUSE", 60_000_000)
    parts = mlp(64, 4864)
    for rows, least, most in ((1, 0, 0), (48, 0, 0), (192, 2, 5), (400, 5, 11)):
        pauses = sum(1 for _ in linear_many_rows_bf16.gated_mlp(drawn(rows, 64, seed=1), *parts))
        assert least <= pauses <= most, (rows, pauses)


@pytest.mark.parametrize("value", [0.0, -0.0, 1, -1, 12, -12, -30, 80, -80, -100, -200, -3e38])
def test_silu_is_torchs(fast_bf16: None, value: float) -> None:
    ours, expected = activated(value), F.silu(torch.tensor(value).bfloat16().double())
    assert float((ours - expected).abs()) <= float(expected.abs()) * 2**-7 + 1e-30


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_silu_of_what_is_no_number_is_torchs(fast_bf16: None, value: float) -> None:
    expected = F.silu(torch.tensor(value, dtype=torch.bfloat16)).double()
    assert activated(value).equal(expected) or expected.isnan()
    assert bool(activated(value).isnan()) == bool(expected.isnan())


def activated(value: float) -> Tensor:
    """The one number of all rows of an MLP in which gate gives `value` and up gives 1."""
    x = torch.zeros(20, 32, dtype=torch.bfloat16)
    gate, up = torch.zeros(2, 32, 32, dtype=torch.bfloat16)
    x[:, 0], gate[:, 0], up[:, 0] = 1, value, 1
    out = run(linear_many_rows_bf16.gated_mlp(x, gate, up, torch.full_like(gate, 1 / 32)))
    same = out == out[0, 0]
    assert bool((same | out.isnan()).all()) and len(out.isnan().unique()) == 1
    return out[0, 0].double()


def test_other_mlps_are_not_its_own(fast_bf16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, (gate, up, down) = drawn(60, 64, seed=1), weights()
    supports = linear_many_rows_bf16.supports_gated_mlp
    assert supports(x, gate, up, down, F.silu)
    for others in (
        (x, gate, up, down, F.gelu),
        (x, gate, up, down, torch.nn.SiLU()),  # not known by its name
        (x.float(), gate.float(), up.float(), down.float(), F.silu),
        (x, gate, up.clone().float(), down, F.silu),
        (x[:, :40], gate[:, :40], up[:, :40], down[:40], F.silu),
        (x, gate[:80], up[:80], down[:, :80], F.silu),
        (x, gate, up, down[:40], F.silu),
        (x, gate, up, down.t().contiguous().t(), F.silu),
        (x, gate, torch.cat([up, up], 1)[:, :64], down, F.silu),  # further apart
    ):
        assert not supports(*others)
    monkeypatch.setattr(native, "has_bf16_dot", lambda: False)
    assert not supports(x, gate, up, down, F.silu)


# -- who uses them --------------------------------------------------------------------------------


@pytest.mark.parametrize("there, amd", [(1, 1), (1, 0), (0, 1)])
def test_what_the_cpu_is_decides_and_nothing_else(
    there: int, amd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts on one machine give the same numbers."""
    monkeypatch.setattr(native, "module", lambda: SimpleNamespace(cpu=lambda: (1, there, amd, 1)))
    assert native.has_bf16_dot.__wrapped__() is bool(there and amd)
    monkeypatch.setattr(native, "module", lambda: None)
    assert native.has_bf16_dot.__wrapped__() is False


def test_bfloat16_goes_through_dot_products(
    fast_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do not take goes through the kernel in fp32, or torch's in bfloat16."""
    monkeypatch.setattr(linear_few_rows, "supports", lambda *_, **__: False)
    x, bias, (gate, up, down) = drawn(70, 64, seed=1), drawn(96, seed=5), weights()
    assert cpu_linear.linear(x, gate, bias).equal(linear_many_rows_bf16.linear(x, gate, bias))
    assert cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)
    ours = run(cpu_linear.gated_mlp(x, gate, up, down, F.silu))
    assert ours.equal(run(linear_many_rows_bf16.gated_mlp(x, gate, up, down)))
    monkeypatch.setattr(
        cpu_linear, "_has_slow_bf16_products", cpu_linear._has_slow_bf16_products.__wrapped__
    )
    x, gate = x[:, :40], gate[:, :40]
    assert not cpu_linear.has_slow_16_bit_products(x)
    assert not cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)
    assert cpu_linear.linear(x, gate, bias).equal(F.linear(x, gate, bias))


def test_bfloat16_goes_through_fp32_where_it_is_slow(
    slow_bf16: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, bias, (gate, up, down) = drawn(70, 64, seed=1), drawn(96, seed=5), weights()
    assert cpu_linear.linear(x, gate, bias).equal(linear_many_rows_fp32.linear(x, gate, bias))
    assert cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)
    gated, upper = (linear_many_rows_fp32.linear(x, each) for each in (gate, up))
    expected = linear_many_rows_fp32.linear(F.silu(gated) * upper, down)
    for pause, pauses in ((cpu_linear.PAUSE, 2), (1, 2)):
        monkeypatch.setattr(cpu_linear, "PAUSE", pause)
        assert run(cpu_linear.gated_mlp(x, gate, up, down, F.silu)).equal(expected)
        assert sum(1 for _ in cpu_linear.gated_mlp(x, gate, up, down, F.silu)) == pauses
    monkeypatch.setattr(cpu_linear, "_has_slow_bf16_products", lambda: False)
    assert cpu_linear.linear(x, gate, bias).equal(F.linear(x, gate, bias))
    assert not cpu_linear.supports_gated_mlp(x, gate, up, down, F.silu)


@pytest.mark.parametrize("act, named", [("silu", True), ("swish", True), ("gelu", False)])
def test_silu_is_called_by_its_name(act: str, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_for(random_model(tiny_config("qwen3", hidden_act=act, **WIDTHS)))
    asked = Mock(return_value=False)
    monkeypatch.setattr(cpu_linear, "supports_gated_mlp", asked)
    decoder.finish(0, torch.ones(30, 64), torch.ones(30, 96))
    (call,) = asked.call_args_list
    assert call.args[4] is (F.silu if named else decoder.blocks[0].mlp.act_fn)


@pytest.mark.parametrize(
    ("cpu", "module"),
    [("fast_bf16", linear_many_rows_bf16), ("slow_bf16", linear_many_rows_fp32)],
    ids=["dots", "fp32"],
)
def test_rows_of_a_batch_do_not_depend_on_its_size(
    request: pytest.FixtureRequest,
    cpu: str,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to as many as are decoded together; a prompt's own rows take what is fastest for them."""
    request.getfixturevalue(cpu)
    decoder = decoder_for(random_model(tiny_config("qwen3", **WIDTHS), dtype=torch.bfloat16))
    most = linear_few_rows.MAX_BATCH
    x, attended = drawn(most, 64, seed=1), drawn(most, 96, seed=2)
    linear, gated = Mock(wraps=module.linear), Mock(wraps=cpu_linear.gated_mlp)
    monkeypatch.setattr(module, "linear", linear)
    monkeypatch.setattr(cpu_linear, "gated_mlp", gated)
    whole = steps_of(decoder, x, attended, batch=True)
    for size in (1, 7, linear_few_rows.MAX_ROWS, linear_few_rows.MAX_ROWS + 1):
        part = steps_of(decoder, x[:size], attended[:size], batch=True)
        assert all(some.equal(every[:size]) for some, every in zip(part, whole, strict=True))
    assert not linear.called and not gated.called
    own = steps_of(decoder, x, attended, batch=False)
    assert linear.call_count and gated.call_count
    for ours, theirs in zip(own, whole, strict=True):
        assert_close("either kernel", ours.double(), theirs.double(), 4 * BF16)


def steps_of(decoder: DecoderModel, x: Tensor, attended: Tensor, *, batch: bool) -> list[Tensor]:
    q, k, v = decoder.qkv(0, x, batch=batch)
    out = decoder.finish(0, x, attended, batch=batch)
    return [q, k, v, out, decoder.logits(x, batch=batch)]
