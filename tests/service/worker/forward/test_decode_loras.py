"""Decode steps in which sequences have different LoRA adapters, and some none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward.decode import BatchDecoder
from kvstitch.service.worker.kv.pool import KVPool
from tests.service.worker.forward.test_decode import Running, filled
from tests.service.worker.lora_folders import ALL, merged, with_loras, write_lora
from tests.service.worker.tiny import (
    Tiny,
    assert_close,
    difference,
    random_model,
    tiny_config,
)

LENGTHS = (9, 40, 4, 20, 9)
NAMES = ("one", "", "two", "", "one")
DRAFTS: list[list[int]] = [[], [8], [11, 12], [], []]


def decoded(model: Tiny, wanted: list[int], names: tuple[str, ...] = NAMES) -> Tensor:
    """Logits of two steps of some of the sequences, and what follows their drafts."""
    decoder = model.decoder
    pool = KVPool(
        decoder.layers, decoder.kv_heads, decoder.head_dim, 200,
        dtype=decoder.dtype, device=decoder.device,
    )  # fmt: skip
    running = []
    for i in wanted:
        made = filled(model, pool, LENGTHS[i], ragged=i == 1, room=8)
        running.append(Running(made.kv, made.position, lora=names[i]))
    decoding, out = BatchDecoder(decoder, pool), []
    for step in range(2):
        for sequence in running:
            sequence.tokens.append(5 + step)
        drafts = [DRAFTS[i] for i in wanted]
        out.append(decoding.step(running, drafts).clone())
        for sequence, draft in zip(running, drafts, strict=True):
            sequence.kv.shrink(len(draft))
            sequence.position += 1
    return torch.stack(out)


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Tiny:
    """Of sizes that the kernel for whole steps takes in bfloat16."""
    config = tiny_config("qwen3", hidden_size=64, intermediate_size=96, head_dim=32)
    model = random_model(config)
    one = write_lora(tmp_path / "one", model, rank=4)
    two = write_lora(tmp_path / "two", model, modules=("q_proj", "up_proj"), rank=9, seed=2)
    return with_loras(model.to(request.param), one=one, two=two)


@pytest.mark.parametrize("model", [torch.float32, torch.bfloat16], indirect=True)
def test_two_adapters_and_the_base_in_one_batch_equal_their_separate_runs(model: Tiny) -> None:
    together = decoded(model, [0, 1, 2, 3, 4])
    first = 0
    for i in range(len(NAMES)):
        rows = slice(first, first + 1 + len(DRAFTS[i]))
        first = rows.stop
        alone = decoded(model, [i])
        if model.decoder.dtype == torch.bfloat16:  # kernels whose rows do not know one another
            assert torch.equal(together[:, rows], alone)
        else:
            assert_close("decoding with other adapters", together[:, rows], alone)


@pytest.mark.parametrize("model", [torch.float32], indirect=True)
def test_each_row_has_its_own_adapter(model: Tiny, tmp_path: Path) -> None:
    """Against models into which the adapters are merged, decoded alone."""
    together = decoded(model, [0, 1, 2, 3, 4])
    whole = merged(model.model, tmp_path / "one", dict.fromkeys(ALL, 3.0))
    none = ("",) * len(NAMES)
    expected = decoded(whole, [0, 4], none)
    assert_close("decoding with LoRA", together[:, [0, -1]], expected)
    assert difference(together[:, 0], decoded(model, [0], none)[:, 0]) > 0.1


def test_windows_hold_with_an_adapter_too(tmp_path: Path) -> None:
    config = tiny_config(
        "qwen3",
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    )
    base = random_model(config)
    one = write_lora(tmp_path / "one", base, rank=4)
    whole = merged(base, one, dict.fromkeys(ALL, 3.0))
    model = with_loras(base, one=one)
    assert model.decoder.windows
    ours = decoded(model, [3, 4], ("one",) * len(NAMES))
    assert_close("windows with LoRA", ours, decoded(whole, [3, 4], ("",) * len(NAMES)))
