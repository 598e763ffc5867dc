"""Whole decode steps by the kernel: against fp64 where that can be said in a line, against the same
step operation by operation, and that a sequence's result is its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward import decode
from kvstitch.service.worker.forward.decode import kernel_weights
from kvstitch.service.worker.kernels.cpu import decode_step
from kvstitch.service.worker.kernels.cpu.decode_step import DecoderWeights, Kernel, LayerWeights
from kvstitch.service.worker.kernels.cpu.weight import Weight
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from tests.service.worker.forward.test_decode import LENGTHS, decoded
from tests.service.worker.tiny import (
    FAMILIES,
    NO_HEAD_DIM,
    PLAIN_FAMILIES,
    assert_close,
    random_model,
    rope_of,
    tiny_config,
)

pytestmark = pytest.mark.exhaustive

WIDTHS = {"hidden_size": 192, "intermediate_size": 96, "vocab_size": 101}
LONG = (*LENGTHS, 127, 128, 129, 300)  # around a block of keys, and a tile


def model_of(family: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> DecoderModel:
    head_dim = {} if family in NO_HEAD_DIM else {"head_dim": 32}
    if family == "phi3":  # whose heads the kernel rotates whole
        changes.setdefault("partial_rotary_factor", 1.0)
    config = tiny_config(
        family, rope_of(family), **{"max_position_embeddings": 512, **WIDTHS, **head_dim, **changes}
    )
    return decoder_for(random_model(config, dtype=dtype))


def steps(decoder: DecoderModel, lengths: tuple[int, ...] = LONG, ragged: bool = False) -> Tensor:
    return decoded(SimpleNamespace(decoder=decoder), lengths, ragged)


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch, bf16_dot: None) -> None:
    def made(weights: DecoderWeights, k: list[Tensor], v: list[Tensor]) -> Kernel:
        assert decode_step.supports(weights, k, v)
        return Kernel(weights, k, v)

    monkeypatch.setattr(decode, "kernel_for", made)


def test_heads_that_rotate_in_part_decode_by_operations() -> None:
    assert kernel_weights(model_of("phi3", partial_rotary_factor=0.5)) is None


BY_KERNEL = [*PLAIN_FAMILIES, "phi3"]


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(BY_KERNEL)))
def test_families_with_other_layers_decode_by_operations(family: str) -> None:
    assert kernel_weights(model_of(family)) is None


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("family", BY_KERNEL)
def test_it_computes_what_the_operations_compute(
    by_kernel: None, monkeypatch: pytest.MonkeyPatch, family: str, ragged: bool
) -> None:
    """All families, with all their biases and norms: as near to fp32 as the operations are."""
    narrow, exact = model_of(family), model_of(family, torch.float32)
    for ours, theirs in zip(exact.model.parameters(), narrow.model.parameters(), strict=True):
        ours.copy_(theirs)
    ours = steps(narrow, ragged=ragged)
    monkeypatch.setattr(decode, "kernel_for", lambda *_: None)
    operations, expected = steps(narrow, ragged=ragged), steps(exact, ragged=ragged)
    spread = float(expected.std())
    off = float((operations - expected).abs().max()) / spread
    assert_close("a decode step, in spreads", ours / spread, expected / spread, 1.5 * off)
    assert not ours.equal(operations)  # or the kernel did not run


@pytest.mark.parametrize(
    "head_dim, heads, kv_heads", [(32, 1, 1), (32, 9, 1), (64, 4, 4), (96, 6, 2), (128, 7, 1)]
)
def test_heads_of_every_kind(
    by_kernel: None, monkeypatch: pytest.MonkeyPatch, head_dim: int, heads: int, kv_heads: int
) -> None:
    changes: dict[str, Any] = {
        "head_dim": head_dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "num_hidden_layers": 2,
    }  # fmt: skip
    decoder = model_of("qwen3", **changes)
    ours = steps(decoder)
    monkeypatch.setattr(decode, "kernel_for", lambda *_: None)
    operations = steps(decoder)
    spread = float(operations.std())
    assert_close("a decode step, in spreads", ours / spread, operations / spread, 0.1)


@pytest.mark.parametrize("ragged", [False, True])
def test_windows(by_kernel: None, monkeypatch: pytest.MonkeyPatch, ragged: bool) -> None:
    """The kernel reads only the entries that a window leaves."""
    decoder = model_of("mistral", sliding_window=40)
    ours = steps(decoder, ragged=ragged)
    monkeypatch.setattr(decode, "kernel_for", lambda *_: None)
    operations = steps(decoder, ragged=ragged)
    spread = float(operations.std())
    assert_close("a decode step, in spreads", ours / spread, operations / spread, 0.1)
    decoder.windows = ()
    assert float((steps(decoder, ragged=ragged) - operations).abs().max()) > 0.1 * spread


@pytest.fixture
def layer(bf16_dot: None) -> SimpleNamespace:
    """One layer that only attends: its head reads the first head's output, others nothing."""
    d, rows = 64, 40
    eye, nothing = torch.eye(d).bfloat16(), torch.zeros(d, d).bfloat16()
    one = torch.ones(d).bfloat16()
    weights = DecoderWeights(
        [
            LayerWeights(
                norm=one, q_norm=None, k_norm=None, mlp_norm=one,
                qkv=Weight(torch.cat([eye, eye, eye])), o=Weight(eye),
                gate_up=Weight(torch.cat([nothing, nothing])), down=Weight(nothing),
            )
        ],
        norm=one, head=Weight(eye), cos=torch.ones(99, d // 2), sin=torch.zeros(99, d // 2),
        heads=1, kv_heads=1, eps=1e-6, scale=0.3,
    )  # fmt: skip
    random = torch.Generator().manual_seed(1)
    k, v = ([torch.randn(rows, d, generator=random).bfloat16()] for _ in range(2))
    kernel = Kernel(weights, k, v)
    return SimpleNamespace(kernel=kernel, weights=weights, k=k[0], v=v[0], d=d)


def test_the_new_token_goes_into_the_last_row_of_its_run(layer: SimpleNamespace) -> None:
    """And nowhere else; then it is attended to like the others."""
    random = torch.Generator().manual_seed(2)
    x = torch.randn(2, layer.d, generator=random).bfloat16()
    before_k, before_v, embedded = layer.k.clone(), layer.v.clone(), x.clone()
    runs = torch.tensor([[[3, 20], [7, 1]]])
    layer.kernel.step(x, torch.tensor([5, 9]), runs)
    normed = torch.nn.functional.rms_norm(embedded.double(), (layer.d,), eps=1e-6)
    for before, after in ((before_k, layer.k), (before_v, layer.v)):
        changed = (before != after).any(1).nonzero().flatten().tolist()
        assert changed == [9, 20]
        assert_close("new KV", after[changed].double(), normed, 2**-7)
    scores = normed[0] @ layer.k[3:10].double().t() * 0.3
    attended = scores.softmax(-1) @ layer.v[3:10].double()
    assert_close("attention", x[0].double(), embedded[0].double() + attended, 0.05)
    assert_close("attention", x[1].double(), embedded[1].double() + normed[1], 0.05)


def test_what_is_no_number_shows(layer: SimpleNamespace) -> None:
    """A broken cache is seen, not averaged away, and by nobody else."""
    layer.k[4, 7] = float("nan")
    x = torch.ones(2, layer.d).bfloat16()
    out = layer.kernel.step(x, torch.tensor([5, 9]), torch.tensor([[[3, 20], [7, 5]]]))
    assert out[0].isnan().all() and not out[1].isnan().any()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(
    by_kernel: None, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(decode_step, "MIN_PARALLEL", 0)
    decoder = model_of("llama", vocab_size=1000)
    expected = steps(decoder)
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            assert steps(decoder).equal(expected)
    finally:
        torch.set_num_threads(1)


@contextmanager
def one_core() -> Iterator[None]:
    """All threads of this process share a core, and those that it starts."""
    before = os.sched_getaffinity(0)
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(before)})
        yield
    finally:
        for name in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(name), before)


def test_threads_that_wait_sleep(by_kernel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that yields instead gives its share of the core away to whatever else runs there:
    beside four processes of the lowest priorities a decode step took eight times as long."""
    monkeypatch.setattr(decode_step, "MIN_PARALLEL", 0)
    layers = 32
    decoder = model_of("llama", num_hidden_layers=layers)
    try:
        torch.set_num_threads(2)
        steps(decoder)
        with one_core():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            steps(decoder)
            slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    finally:
        torch.set_num_threads(1)
    assert slept > 2 * layers  # there are eight places to wait in each


@pytest.mark.parametrize("columns", [192, 1568])
def test_a_sequence_does_not_depend_on_its_batch(by_kernel: None, columns: int) -> None:
    """To the bit, for every number of rows that has a path of its own."""
    decoder = model_of("qwen2", intermediate_size=columns, num_hidden_layers=2)
    lengths = (7, 300, 40, 1, 129, 12, 5, 90, 64, 31)
    together = steps(decoder, lengths)
    for size in range(1, len(lengths)):
        assert steps(decoder, lengths[:size]).equal(together[:, :size])


def test_what_it_does_not_take(compiled: Any) -> None:
    decoder = model_of("qwen3")
    pool = [torch.zeros(9, 32, dtype=torch.bfloat16) for _ in range(decoder.layers)]
    weights = kernel_weights(decoder)
    assert weights is not None and decode_step.supports(weights, pool, pool)
    assert decode_step.kernel_for(weights, pool, pool) is not None
    assert decode_step.kernel_for(None, pool, pool) is None
    assert not decode_step.supports(weights, [x.float() for x in pool], pool)
    assert not decode_step.supports(replace(weights, cos=weights.cos.double()), pool, pool)
    assert not decode_step.supports(replace(weights, norm=weights.norm[::2]), pool, pool)
    for size, value in (("head_dim", 16), ("intermediate_size", 80), ("hidden_size", 48)):
        changes: dict[str, Any] = {size: value}
        other = kernel_weights(model_of("qwen3", **changes))
        assert other is not None and not decode_step.supports(other, pool, pool)
    assert kernel_weights(model_of("qwen3", hidden_act="gelu")) is None


def test_as_many_threads_as_cores_have_one_each(
    by_kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who asks for the step, and starts threads of other kinds, may run everywhere again."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("one core")
    monkeypatch.setattr(decode_step, "MIN_PARALLEL", 0)
    decoder = model_of("qwen2", num_hidden_layers=2)
    try:
        torch.set_num_threads(len(cores))
        steps(decoder)
        assert os.sched_getaffinity(0) == cores
        tasks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
        kept = [core for (core, *others) in tasks if not others]
        assert sorted(kept) == sorted(cores)[1:]
    finally:
        torch.set_num_threads(1)
