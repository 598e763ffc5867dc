"""The rotary table is the config's formulas, and one rotation in fp32 is all a key ever gets."""

from __future__ import annotations

import pytest
import torch

from tests.service.worker.tiny import (
    ROPES,
    Tiny,
    assert_close,
    random_model,
    tiny,
    tiny_config,
    tiny_of,
)


@pytest.mark.parametrize("rope", ROPES)
def test_rotation_is_the_formula(rope: str) -> None:
    """Against rotation matrices computed in float64 from the config alone, far positions too."""
    made = tiny("llama", rope)
    positions = [0, 1, 2, 7, 31, 64, 130, 255]
    x = torch.randn(len(positions), 3, 16, generator=torch.Generator().manual_seed(0))
    ours = made.decoder.ropes[0].rotate(x, torch.tensor(positions))
    assert_close(f"rotation, {rope}", ours, made.reference.rotate(x, positions))


@pytest.mark.parametrize("rope", ROPES)
def test_scores_depend_on_distance_only(rope: str) -> None:
    """Why a stored key may be moved: q·k at (100, 90) equals q·k at (30, 20)."""
    table = tiny("llama", rope).decoder.ropes[0]
    q, k = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(1))

    def score(i: int, j: int) -> float:
        at_i, at_j = torch.tensor([i]), torch.tensor([j])
        return float((table.rotate(q, at_i) * table.rotate(k, at_j)).sum())

    assert score(100, 90) == pytest.approx(score(30, 20), abs=1e-3)
    assert abs(score(100, 90) - score(100, 80)) > 1e-2


def test_attention_factor_is_applied_once(model: Tiny) -> None:
    """YaRN scales cos and sin; the key at position 0 is the stored one times that factor."""
    factor = model.reference.rope_factor
    assert factor > 1.1
    x = torch.randn(1, 2, 16)
    turned = model.decoder.ropes[0].rotate(x, torch.tensor([0]))
    assert_close("yarn factor", turned, x * factor, 1e-6)


def test_a_model_cast_to_bfloat16_keeps_exact_angles() -> None:
    """The table is built afresh from the config: casting the model cannot have rounded it."""
    exact = tiny_of(random_model(tiny_config("llama", "llama3")))
    cast = tiny_of(random_model(tiny_config("llama", "llama3"), dtype=torch.bfloat16))
    assert cast.decoder.ropes[0].cos.dtype == torch.float32
    assert cast.decoder.ropes[0].cos.equal(exact.decoder.ropes[0].cos)
    assert cast.decoder.ropes[0].sin.equal(exact.decoder.ropes[0].sin)


def test_rotates_in_float32_and_rounds_once(model: Tiny) -> None:
    """A bf16 key is turned in fp32 and cast at the end, whether or not `out` is given."""
    x = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    positions = torch.tensor([3, 90, 91, 200])
    once = model.decoder.ropes[0].rotate(x.float(), positions).bfloat16()
    assert model.decoder.ropes[0].rotate(x, positions).equal(once)
    strided = torch.full((2, 9, 16), 7.0, dtype=torch.bfloat16)
    target = strided[:, 2:6].transpose(0, 1)
    returned = model.decoder.ropes[0].rotate(x, positions, out=target)
    assert returned.data_ptr() == target.data_ptr()
    assert strided[:, 2:6].transpose(0, 1).equal(once)
    assert bool((strided[:, :2] == 7).all() and (strided[:, 6:] == 7).all())


def test_the_argument_is_not_changed(model: Tiny) -> None:
    x = torch.randn(2, 2, 16)
    before = x.clone()
    model.decoder.ropes[0].rotate(x, torch.tensor([5, 6]))
    assert x.equal(before)


def test_no_rows(model: Tiny) -> None:
    empty = torch.empty(0, 2, 16)
    assert model.decoder.ropes[0].rotate(empty, torch.empty(0, dtype=torch.long)).shape == (
        0,
        2,
        16,
    )


def test_table_covers_the_context(model: Tiny) -> None:
    assert len(model.decoder.ropes[0].cos) == model.decoder.max_context == 256
