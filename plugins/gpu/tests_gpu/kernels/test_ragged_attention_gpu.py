"""The Triton kernel for one new token per sequence against fp64, run by run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.model.families import decoder_for
from kvstitch_gpu import ragged_attention_gpu
from kvstitch_gpu.ragged_attention_gpu import BLOCK, HEADS, KEYS, PARTS
from tests.service.worker.forward.test_decode import LENGTHS, STEPS, decoded
from tests.service.worker.tiny import assert_close, random_model, tiny_config
from tests_gpu.kernels.interpreter import needs_gpu, shapes

# Around what is read at once and what is one program's.
EDGES = [1, 2, KEYS - 1, KEYS, KEYS + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 9]
CASES = [
    # lengths, KV heads, group, head dim, size of q, k, v
    ([300, 17, 5, 260], 4, 1, 32, 1.0),
    ([90, BLOCK + 40], 1, 7, 128, 1.0),
    # More blocks than are put together at once.
    ([BLOCK * (PARTS + 1), 1], 1, 1, 32, 1.0),
    (EDGES, 2, 4, 64, 1.0),
    ([33, 70], 2, HEADS, 32, 1.0),
    ([400, 3], 1, 3, 32, 8.0),  # all weight on one key
    # About half of the heads find their highest score in the second half.
    ([BLOCK * PARTS * 2, 1], 1, 6, 32, 1.0),
]
# Of values of size one: fp32 sums in another order; on a GPU weights and result in bfloat16.
ALLOWED = {"cpu": 2**-17, "cuda": 2**-6}


@dataclass
class Case:
    """Runs scattered over a pool, in no order and with gaps."""

    q: Tensor
    k: Tensor
    v: Tensor
    starts: list[int]
    lengths: list[int]
    scale: float = 0.3

    @classmethod
    def of(cls, lengths: list[int], *, kv_heads: int, group: int, d: int, size: float = 1) -> Case:
        random = torch.Generator().manual_seed(d + group)
        runs = len(lengths)
        places = torch.randperm(runs, generator=random).tolist()
        apart = max(lengths) + 3

        def drawn(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=random) * size).bfloat16()

        rows = runs * apart
        starts = [place * apart for place in places]
        q = drawn(runs // kv_heads, kv_heads * group, d)
        return cls(q, drawn(rows, d), drawn(rows, d), starts, lengths)

    @property
    def runs(self) -> Tensor:
        return torch.tensor([self.starts, self.lengths])

    def expected(self) -> Tensor:
        """In fp64, run by run."""
        runs = len(self.starts)
        asked = self.q.double().view(runs, -1, self.q.shape[2])
        out = torch.empty_like(asked)
        for i, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            k, v = (x[start : start + length].double() for x in (self.k, self.v))
            out[i] = (asked[i] @ k.t() * self.scale).softmax(-1) @ v
        return out.view(self.q.shape)


def attend(case: Case, device: str) -> Tensor:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (x.to(device, dtype) for x in (case.q, case.k, case.v))
    runs, longest = case.runs.to(device), max(case.lengths)
    out = ragged_attention_gpu.attend(q, k, v, runs, longest, case.scale)
    assert out.dtype == dtype and out.shape == q.shape
    return out.cpu()


def compare(device: str) -> None:
    """Raises AssertionError where the kernel and fp64 differ."""
    for lengths, kv_heads, group, d, size in shapes(CASES, 3):
        case = Case.of(lengths, kv_heads=kv_heads, group=group, d=d, size=size)
        expected = case.expected()
        allowed = ALLOWED[device] * size
        assert_close("ragged attention", attend(case, device).double(), expected, allowed)


def alone(device: str) -> None:
    """Raises AssertionError where a sequence's result depends on the others."""
    case = Case.of([40, 3 * BLOCK, 129, 7], kv_heads=2, group=3, d=64)
    together = attend(case, device)
    for i in range(2):
        runs = slice(2 * i, 2 * i + 2)
        own = replace(
            case, q=case.q[i : i + 1], starts=case.starts[runs], lengths=case.lengths[runs]
        )
        assert attend(own, device).equal(together[i : i + 1])


def broken(device: str) -> None:
    """Raises AssertionError where what is no number does not show, or is read beside a run."""
    for tensor in ("k", "v"):
        case = Case.of([50, 50], kv_heads=1, group=2, d=32)
        getattr(case, tensor)[case.starts[0] + 10, 3] = float("nan")
        getattr(case, tensor)[case.starts[1] + 50] = float("nan")
        ours = attend(case, device)
        assert ours[0].isnan().any() and not ours[1].isnan().any(), tensor


def decode(device: str) -> None:
    """Raises AssertionError where decode steps do not use the kernel, or differ from torch's."""
    config = tiny_config("qwen3", head_dim=32, num_hidden_layers=2)
    exact = decoder_for(random_model(config))
    ours, allowed, lengths = exact, 1e-4, tuple(shapes((40, 1, *LENGTHS, 200), 2))
    if device == "cuda":
        narrow = random_model(config, dtype=torch.bfloat16)
        ours, allowed = decoder_for(narrow.to(device)), 0.1
        for wide, own in zip(exact.model.parameters(), narrow.parameters(), strict=True):
            wide.copy_(own)
    for ragged in (False, True) if device == "cuda" else (True,):  # the interpreter is slow
        expected = decoded(SimpleNamespace(decoder=exact), lengths, ragged)
        with (
            patch.object(ragged_attention_gpu, "supports", lambda *_: True),
            patch.object(ragged_attention_gpu, "attend", wraps=ragged_attention_gpu.attend) as used,
        ):
            found = decoded(SimpleNamespace(decoder=ours), lengths, ragged)
        assert used.call_count == STEPS * exact.layers
        spread = float(expected.std())
        assert_close("decoding, in spreads", found.cpu() / spread, expected / spread, allowed)


CHECKS = [compare, alone, broken, decode]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: Callable[[str], None]) -> None:
    check("cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("group", [1, 7, HEADS])
@pytest.mark.parametrize("d", [32, 64, 128, 256])
def test_a_gpu_takes_it(group: int, d: int) -> None:
    q = torch.zeros(1, 2 * group, d, dtype=torch.bfloat16, device="cuda")
    assert ragged_attention_gpu.supports(q, q[0], group)
