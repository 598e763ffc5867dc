"""The first tests run for every codec, so also for a new one."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from kvstitch.kvstore import ChunkSpecError, encode_chunk
from kvstitch.kvstore.format.codecs import CODECS, codec
from kvstitch.kvstore.format.tensor_layout import ROLES
from kvstitch.service.settings import Settings
from tests.kvstore.chunks import make_spec, make_tensors

pytestmark = pytest.mark.exhaustive

DTYPES = ["bfloat16", "float16", "float32"]


def test_registry():
    assert {"raw", "int8", "int4", "int2"} <= set(CODECS)
    assert list(CODECS) == sorted(CODECS)
    for name in ("base", "_kivi", "__init__", "..raw", ""):
        with pytest.raises(ChunkSpecError, match="unknown codec"):
            codec(name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CODECS)
def test_contract(name, dtype):
    spec = make_spec(name, dtype)
    k, v = make_tensors(spec)
    for role, x in zip(ROLES, (k[0], v[0]), strict=True):
        stored = codec(name).encode(role, x)
        parts = codec(name).parts(role, spec)
        assert [(tuple(t.shape), t.dtype) for t in stored] == [(p.shape, p.dtype) for p in parts]
        assert parts[0].suffix == "" and len({p.suffix for p in parts}) == len(parts)
        back = codec(name).decode(role, stored, spec)
        assert back.shape == x.shape and back.dtype == x.dtype
        # Much looser than the bound of any codec; it catches swapped axes and roles.
        assert torch.cosine_similarity(back.float().flatten(), x.float().flatten(), dim=0) > 0.8


@pytest.mark.parametrize("tokens", [1, 31, 64, 65, 97, 200])
@pytest.mark.parametrize("name", CODECS)
def test_blocks_of_64_tokens_are_independent(name, tokens):
    """A block encoded alone has the same rows as in the chunk, and can be decoded alone."""
    spec = make_spec(name, tokens=tokens)
    k, v = make_tensors(spec)
    for role, x in zip(ROLES, (k[0], v[0]), strict=True):
        whole = codec(name).encode(role, x)
        parts = codec(name).parts(role, spec)
        for part in parts:
            assert 64 % part.tokens_per_row == 0
            assert part.shape[0] == -(-tokens // part.tokens_per_row)
        for start in range(0, tokens, 64):
            block = x[start : start + 64]
            alone = codec(name).encode(role, block)
            rows = [
                stored[start // part.tokens_per_row :][: len(small)]
                for part, stored, small in zip(parts, whole, alone, strict=True)
            ]
            assert all(torch.equal(a, b) for a, b in zip(rows, alone, strict=True))
            back = codec(name).decode(role, rows, replace(spec, tokens=len(block)))
            assert torch.equal(back, codec(name).decode(role, whole, spec)[start : start + 64])


@pytest.mark.parametrize("role", ["k", "v"])
@pytest.mark.parametrize("name", CODECS)
def test_strided_tensors(name, role):
    spec = make_spec(name)
    x = make_tensors(spec)[0][0]
    strided = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strided.is_contiguous()
    for a, b in zip(codec(name).encode(role, strided), codec(name).encode(role, x), strict=True):
        assert torch.equal(a, b)


def test_the_setting_offers_every_codec():
    assert set(get_args(Settings.model_fields["codec"].annotation)) == set(CODECS)


@pytest.mark.parametrize("name", CODECS)
def test_extremes_survive(name):
    spec = make_spec(name, "float32")
    for x in (torch.zeros(spec.shape), torch.full(spec.shape, -3.0)):
        back = codec(name).decode("k", codec(name).encode("k", x), spec)
        assert torch.allclose(back, x, rtol=1e-3, atol=0)


def half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    return (x.abs() * info.eps / 2).clamp_min(info.smallest_normal * info.eps / 2)


@pytest.mark.parametrize("magnitude", [1e-9, 3e-6, 1e-4, 1.0, 1e3, 6e4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_error_bound(dtype, magnitude):
    spec = make_spec("int8", dtype, tokens=257)
    generator = torch.Generator().manual_seed(1)
    x = ((torch.rand(spec.shape, generator=generator) * 2 - 1) * magnitude).to(spec.torch_dtype)
    quantised, scale = codec("int8").encode("k", x)
    back = codec("int8").decode("k", (quantised, scale), spec)
    wide, step = x.double(), scale.double().unsqueeze(-1)
    bound = step / 2 * (1 + 1e-6) + half_ulp(wide.abs() + step, spec.torch_dtype)
    assert ((back.double() - wide).abs() <= bound).all()
    assert quantised.abs().max() <= 127


def test_int8_zero_rows_are_exact_and_scaled_by_one():
    x = torch.zeros(4, 2, 8)
    x[0, 0] = 1.0
    quantised, scale = codec("int8").encode("v", x)
    assert scale[1, 1] == 1 and not quantised[1:].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_int8_refuses_what_it_cannot_carry(bad):
    spec = make_spec("int8", "float32")
    k, v = make_tensors(spec)
    k[1][3, 1, 2] = bad
    with pytest.raises(ChunkSpecError, match="NaN"):
        encode_chunk(spec, k, v)


def test_int8_is_about_half_of_bf16():
    raw, small = make_spec("raw"), make_spec("int8")
    tensors = make_tensors(raw)
    ratio = encode_chunk(raw, *tensors).data.numel() / encode_chunk(small, *tensors).data.numel()
    assert ratio == pytest.approx(2 / (1 + 2 / 8))
