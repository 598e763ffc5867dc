"""Every Triton kernel compiles for GPUs, for which Triton needs none; its interpreter, which the
other tests use, is Python and takes what its compiler does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvstitch_gpu import (
    attention_scores_gpu,
    index_causal_attention,
    kv_placement_gpu,
    ragged_attention_gpu,
    rotation_gpu,
    row_kernels,
    shift_gpu,
)
from tests_gpu.kernels.interpreter import needs_triton

pytestmark = [needs_triton, pytest.mark.exhaustive]

# Bytes of shared memory that a program may have, by compute capability.
ROOM = {80: 166_912, 86: 101_376, 90: 232_448}
BF16, FP32, FP16, INT8, INT64 = "*bf16", "*fp32", "*fp16", "*i8", "*i64"


def compiled(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: Any,
    capability: int,
    types: list[str],
    constants: Mapping[str, object],
    **options: object,
) -> Any:
    """The kernel compiled for pointers and strides that are aligned, as most are. types: of the
    arguments that are not constant, in Triton's names."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    names = kernel.arg_names
    varying = dict(zip([n for n in names if n not in constants], types, strict=True))
    aligned = [n for n, of in varying.items() if of[0] == "*" or of == "i64"]
    source = ASTSource(
        kernel,
        {n: varying.get(n, "constexpr") for n in names},
        {(names.index(n),): value for n, value in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", ROOM)
@pytest.mark.parametrize("d", [128, 64, 256])
def test_attention_of_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, d: int, capability: int
) -> None:
    ours = ragged_attention_gpu
    shared = {"GROUP": 7, "D": d, "BLOCK": ours.BLOCK}
    types = [*[BF16] * 3, INT64, *[FP32] * 3, "fp32"]
    constants = {**shared, "HEADS": ours.HEADS, "KEYS": ours.KEYS}
    options = {"num_stages": ours.STAGES[d], **ours.OPTIONS}
    block = compiled(tmp_path, monkeypatch, ours._attend, capability, types, constants, **options)
    assert block.metadata.shared <= ROOM[capability]
    types = [*[FP32] * 3, INT64, BF16, "i32", "i32"]
    constants = {**shared, "PARTS": ours.PARTS}
    join = compiled(tmp_path, monkeypatch, ours._join, capability, types, constants, **ours.OPTIONS)
    assert join.metadata.shared <= ROOM[capability]


@pytest.mark.parametrize("codec", kv_placement_gpu.CODECS)
def test_placement_rounds_every_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """As torch does: no product is fused into a sum."""
    stored = INT8 if codec == "int8" else BF16
    types = [stored, FP16, INT64, INT64, FP32, FP32, BF16, BF16, INT64, *["i64"] * 2, *["i32"] * 2]
    constants = {
        "SCALED": codec == "int8", "HALF": 48, "WIDTH": 64, "ROWS": kv_placement_gpu.ROWS,
        "COLUMNS": kv_placement_gpu.COLUMNS,
    }  # fmt: skip
    made = compiled(
        tmp_path,
        monkeypatch,
        kv_placement_gpu._kernel,
        90,
        types,
        constants,
        **kv_placement_gpu.OPTIONS,
    )
    assert "mul" in made.asm["ptx"] and "fma" not in made.asm["ptx"]


@pytest.mark.parametrize("queries", [8, 0])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_rotation_rounds_every_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queries: int, scattered: bool, kept: bool
) -> None:
    types = [*[BF16] * 6, INT64, INT64, FP32, FP32, BF16, BF16, INT64, "i32", *["i64"] * 8]
    constants = {
        "QUERIES": queries, "SCATTERED": scattered, "KEPT": kept, "PLACED": not scattered,
        "HALF": 48, "WIDTH": 64, "ROWS": rotation_gpu.ROWS,
    }  # fmt: skip
    kernel, options = rotation_gpu._write, rotation_gpu.OPTIONS
    made = compiled(tmp_path, monkeypatch, kernel, 90, types, constants, **options)
    assert "mul" in made.asm["ptx"] and "fma" not in made.asm["ptx"]


def test_silu_and_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types, constants = [BF16, BF16, "i32"], {"COLUMNS": row_kernels.COLUMNS}
    made = compiled(tmp_path, monkeypatch, row_kernels._multiply, 80, types, constants)
    assert made.metadata.shared <= ROOM[80]


def test_sum_and_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = [*[BF16] * 5, "i32", "fp32", "i64"]
    constants = {"WIDTH": 4096, "ADDED": True}
    made = compiled(tmp_path, monkeypatch, row_kernels._normalise, 80, types, constants)
    assert made.metadata.shared <= ROOM[80]


@pytest.mark.parametrize("keys", [True, False])
def test_shift_rounds_every_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: bool
) -> None:
    types = [*[BF16] * 6, INT64, INT64, BF16, FP32, FP32, INT64, "i32", "i32", *["i64"] * 6]
    constants = {
        "OF_KEYS": keys, "OF_VALUES": True, "PLACED": keys, "HALF": 64, "WIDTH": 64,
        "ROWS": shift_gpu.ROWS, "PROBES": shift_gpu.PROBES, "COLUMNS": shift_gpu.COLUMNS,
    }  # fmt: skip
    kernel, options = shift_gpu._kernel, shift_gpu.OPTIONS
    made = compiled(tmp_path, monkeypatch, kernel, 80, types, constants, **options)
    assert made.metadata.shared <= ROOM[80]


@pytest.mark.parametrize("d", [128, 64, 256])
def test_scores_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, d: int) -> None:
    types = [BF16, BF16, INT64, FP32, FP32, FP32, INT64, "i32", "i32", "fp32", *["i64"] * 4]
    ours = attention_scores_gpu
    constants = {"GROUP": 4, "D": d, "ROWS": ours.ROWS, "KEYS": ours.KEYS, "PLACED": d < 256}
    made = compiled(tmp_path, monkeypatch, ours._kernel, 80, types, constants)
    assert made.metadata.shared <= ROOM[80]


@pytest.mark.parametrize("capability", ROOM)
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("form", ["MANY_ROWS", "FEW_ROWS"])
def test_attention_of_scattered_rows_reads_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, placed: bool, capability: int
) -> None:
    """Sixteen bytes at a time, from where the compiler has been told that prompts begin."""
    ours = index_causal_attention
    chosen = ours._fitting(getattr(ours, form), 128, ROOM[capability])
    types = [*[BF16] * 3, INT64, BF16, *[FP32] * 4, INT64, "i32", "i32", "fp32", *["i64"] * 6]
    constants = {
        "GROUP": 4, "D": 128, "ROWS": chosen.rows, "KEYS": chosen.keys, "SPANS": placed,
        "LOGSUMS": placed, "PLACED": placed,
    }  # fmt: skip
    options = {"num_warps": chosen.warps, "num_stages": chosen.stages, **ours.OPTIONS}
    made = compiled(tmp_path, monkeypatch, ours._kernel, capability, types, constants, **options)
    assert made.metadata.shared <= ROOM[capability]
    ptx = made.asm["ptx"]
    assert "cp.async.cg.shared.global" in ptx
    assert "ld.global.b16" not in ptx


@pytest.mark.parametrize("placed", [True, False])
def test_spans_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: bool) -> None:
    types = [*[FP32] * 3, INT64, BF16, FP32, INT64, *["i32"] * 3]
    constants = {"D": 128, "PARTS": 16, "LOGSUMS": True, "PLACED": placed}
    kernel, options = index_causal_attention._join, index_causal_attention.OPTIONS
    compiled(tmp_path, monkeypatch, kernel, 90, types, constants, num_warps=1, **options)
