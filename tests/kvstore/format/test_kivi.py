"""int4 and int2: bounds of the error, exact cases, groups and sizes."""

import pytest
import torch

from kvstitch.kvstore import ChunkSpec, ChunkSpecError, encode_chunk
from kvstitch.kvstore.format.codecs import KiviCodec, codec
from kvstitch.kvstore.format.tensor_layout import ROLES
from tests.kvstore.chunks import make_tensors

pytestmark = pytest.mark.exhaustive

NAMES = ["int4", "int2"]
DTYPES = ["bfloat16", "float16", "float32"]


def spec_of(name: str = "int4", dtype: str = "float32", tokens: int = 70, head_dim: int = 64):
    return ChunkSpec("f", name, dtype, layers=1, kv_heads=2, head_dim=head_dim, tokens=tokens)


def per_element(role: str, groups: torch.Tensor, like: torch.Tensor, group: int) -> torch.Tensor:
    """A scale or minimum repeated for every element of its group."""
    axis = 0 if role == "k" else 2
    return groups.repeat_interleave(group, dim=axis).narrow(axis, 0, like.shape[axis])


def half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    return (x.abs() * info.eps / 2).clamp_min(info.smallest_normal * info.eps / 2)


def noise(spec: ChunkSpec, magnitude: float, offset: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(spec.shape, generator=generator, dtype=torch.float64) * magnitude + offset
    return x.to(spec.torch_dtype)


# Models with a bias on keys have offsets that are large compared with the spread.
@pytest.mark.parametrize(
    ("magnitude", "offset"),
    [(1.0, 0.0), (1.0, 300.0), (1e-7, 0.0), (1e-3, 1.0), (5e3, -2e4), (1e-3, -3e4)],
)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_error_bound_and_idempotence(name, dtype, role, magnitude, offset):
    spec = spec_of(name, dtype, tokens=257)
    x = noise(spec, magnitude, offset)
    packed, scale, minimum = codec(name).encode(role, x)
    back = codec(name).decode(role, (packed, scale, minimum), spec)
    assert back.dtype == x.dtype and back.isfinite().all()
    step = per_element(role, scale, x, 32).double()
    wide = x.double()
    # The second term is the rounding of the result to its dtype, the third float32 arithmetic.
    bound = step / 2 + half_ulp(wide.abs() + step, x.dtype) + (wide.abs() + step) * 2.0**-22
    assert ((back.double() - wide).abs() <= bound).all()
    # The scale is tight: the largest code of a full group lies at the group's largest value.
    kivi = codec(name)
    assert isinstance(kivi, KiviCodec)
    full, axis = x[:256], 0 if role == "k" else 2
    grouped = full.double().unflatten(axis, (-1, 32))
    span = grouped.amax(axis + 1) - grouped.amin(axis + 1)
    reach = (2**kivi.bits - 1) * scale[: span.shape[0]].double()
    off = (reach - span).abs()[span > 0]
    assert (off <= 0.01 * span[span > 0] + half_ulp(grouped.abs().amax(), x.dtype)).all()
    again = codec(name).encode(role, back)
    assert torch.equal(again[1], scale) and torch.equal(again[2], minimum)
    assert torch.equal(codec(name).decode(role, again, spec), back)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_whole_range_of_the_dtype(name, dtype):
    """Rounding the scale up must not turn the largest value into infinity."""
    spec = spec_of(name, dtype, tokens=64)
    limit = torch.finfo(spec.torch_dtype).max * (1.0 if dtype == "float16" else 0.49)
    x = torch.linspace(-limit, limit, 64, dtype=torch.float64).view(64, 1, 1)
    x = x.expand(spec.shape).to(spec.torch_dtype).clone()
    x[::2, :, ::2], x[1::2, :, 1::2] = -limit, limit  # from end to end in every group
    for role in ROLES:
        stored = codec(name).encode(role, x)
        back = codec(name).decode(role, stored, spec)
        assert back.isfinite().all()
        step = per_element(role, stored[1], x, 32).double()
        wide = x.double()
        assert ((back.double() - wide).abs() <= step / 2 + half_ulp(wide.abs(), x.dtype)).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 300.3, 6.5e4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_constant_group_is_exact(name, role, dtype, value):
    spec = spec_of(name, dtype)
    x = torch.full(spec.shape, value, dtype=spec.torch_dtype)
    x[0, 0, 0] += 1  # and one group that is not constant
    packed, scale, minimum = codec(name).encode(role, x)
    back = codec(name).decode(role, (packed, scale, minimum), spec)
    assert torch.equal(back[40:, 1], x[40:, 1]) and (scale[-1, -1] == 1).all()
    assert torch.equal(minimum[-1, -1], x[-1, -1, : minimum.shape[-1]])


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_grouped_by_channel_and_values_by_token(name):
    """An outlier channel of keys, or an outlier token of values, does not harm the rest."""
    spec = spec_of(name, tokens=64)
    x = noise(spec, 1.0, 0.0)
    channel, token = x.clone(), x.clone()
    channel[:, :, 5] *= 1000
    token[7] *= 1000
    for role, spoiled, other in zip(ROLES, (channel, token), (token, channel), strict=True):
        kept = torch.ones(spec.shape, dtype=torch.bool)
        kept[:, :, 5] = False
        kept[7] = False
        errors = []
        for tensor in (spoiled, other):
            back = codec(name).decode(role, codec(name).encode(role, tensor), spec)
            errors.append((back - tensor)[kept].abs().mean())
        assert 3 * errors[0] < errors[1]


@pytest.mark.parametrize(
    ("tokens", "head_dim"),
    [(1, 80), (2, 33), (31, 31), (32, 8), (33, 1), (63, 3), (64, 33), (65, 80), (127, 8)],
)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_any_size(name, role, head_dim, tokens):
    """A last group of tokens or channels that is not full has a scale of its own."""
    spec = spec_of(name, tokens=tokens, head_dim=head_dim)
    x = noise(spec, 1.0, 0.0)
    axis = 0 if role == "k" else 2
    last = (x.shape[axis] - 1) // 32 * 32
    x.narrow(axis, last, x.shape[axis] - last).mul_(1e-3)
    stored = codec(name).encode(role, x)
    back = codec(name).decode(role, stored, spec)
    step = per_element(role, stored[1], x, 32)
    assert ((back - x).abs() <= step / 2 + 1e-6).all()
    assert step.narrow(axis, last, x.shape[axis] - last).max() < 1e-2 or x.shape[axis] - last == 1


@pytest.mark.parametrize("group", [1, 16, 64])
@pytest.mark.parametrize("role", ROLES)
def test_other_group_sizes(role, group):
    spec = spec_of(tokens=70, head_dim=24)
    x = noise(spec, 1.0, 0.0)
    tested = KiviCodec(bits=4, group=group)
    stored = tested.encode(role, x)
    assert [s.shape for s in stored] == [p.shape for p in tested.parts(role, spec)]
    back = tested.decode(role, stored, spec)
    assert ((back - x).abs() <= per_element(role, stored[1], x, group) / 2 + 1e-6).all()
    assert group > 1 or torch.equal(back, x)


def test_no_tokens_at_all():
    with pytest.raises(ChunkSpecError, match="tokens"):
        spec_of(tokens=0)
    for role in ROLES:
        packed, scale, minimum = codec("int4").encode(role, torch.zeros(0, 2, 64))
        assert packed.shape == (0, 2, 32) and scale.shape[0] == minimum.shape[0] == 0
        back = codec("int4").decode(role, (packed, scale, minimum), spec_of())
        assert back.shape == (0, 2, 64)


@pytest.mark.parametrize(("name", "bits"), [("int4", 5.0), ("int2", 3.0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_per_element(name, dtype, bits):
    spec = spec_of(name, dtype, tokens=128)
    chunk = encode_chunk(spec, *make_tensors(spec))
    assert chunk.data.numel() * 8 / (2 * 128 * 2 * 64) == bits


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", NAMES)
def test_refuses_what_it_cannot_carry(name, bad):
    spec = spec_of(name)
    k, v = make_tensors(spec)
    v[0][69, 1, 2] = bad
    with pytest.raises(ChunkSpecError, match="v holds NaN"):
        encode_chunk(spec, k, v)


def test_refuses_a_range_above_float32():
    spec = spec_of()
    k, v = make_tensors(spec)
    k[0][0, 0, 0], k[0][1, 0, 0] = 3e38, -3e38
    with pytest.raises(ChunkSpecError, match="k holds"):
        encode_chunk(spec, k, v)
