"""Quantised weights that are kept in the model's folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstitch.service.worker.kernels.cpu.weight import Weight, quantised
from kvstitch.service.worker.model import kept_weights, projection
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.model.projection import QuantisedProjection
from tests.service.worker.tiny import random_model, tiny_config

WIDTHS: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 96, "head_dim": 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model(tiny_config("llama", **WIDTHS), dtype=torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


class Rounded:
    """Counts weights that are rounded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(projection, "quantised", self)

    def __call__(self, weight: torch.Tensor, bits: int) -> Weight:
        self.count += 1
        return quantised(weight, bits)

    def during(self, folder: Path, method: str) -> tuple[int, list[torch.Tensor]]:
        """Load the model; return how many weights were rounded for it, and all their numbers."""
        before, decoder = self.count, load(str(folder), device="cpu", quantize=method)
        tensors = []
        for layer in decoder.projections:
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down):
                assert isinstance(part, QuantisedProjection) and part.stored.scales is not None
                tensors += [part.stored.values.clone(), part.stored.scales.clone()]
        return self.count - before, tensors


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> Rounded:
    return Rounded(monkeypatch)


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_the_next_start_rounds_nothing_and_has_the_same_weights(
    folder: Path, rounded: Rounded, method: str
) -> None:
    many, first = rounded.during(folder, method)
    none, second = rounded.during(folder, method)
    assert many > 30 and none == 0
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert {path.name for path in folder.iterdir() if "quantised" in path.name} == {
        f"{method}{kept_weights.SUFFIX}"
    }
    other, _ = rounded.during(folder, "int8" if method == "int4" else "int4")
    assert other == many


def spoilt_in_the_middle(file: Path, folder: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut_short(file: Path, folder: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def of_other_weights(file: Path, folder: Path) -> None:
    config = tiny_config("llama", **WIDTHS)
    torch.manual_seed(7)
    random_model(config, dtype=torch.bfloat16, seed=7).save_pretrained(folder)


@pytest.mark.parametrize(
    "harm, said, level",
    [
        (spoilt_in_the_middle, "is damaged", logging.WARNING),
        (cut_short, "cannot be read", logging.WARNING),
        (of_other_weights, "another revision", logging.WARNING),
    ],
)
def test_what_is_wrong_is_made_again_and_said(
    folder: Path, rounded: Rounded, caplog: pytest.LogCaptureFixture, harm, said: str, level: int
) -> None:
    many, _ = rounded.during(folder, "int4")
    harm(folder / f"int4{kept_weights.SUFFIX}", folder)
    with caplog.at_level(logging.INFO, "kvstitch.worker"):
        again, remade = rounded.during(folder, "int4")
    assert again == many
    assert [r.levelno for r in caplog.records if said in r.getMessage()] == [level]
    none, kept = rounded.during(folder, "int4")
    assert none == 0 and all(a.equal(b) for a, b in zip(remade, kept, strict=True))


def test_a_folder_that_cannot_be_written_is_served(
    folder: Path,
    rounded: Rounded,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_weights, "save_file", full)
    with caplog.at_level(logging.INFO, "kvstitch.worker"):
        many, _ = rounded.during(folder, "int8")
        again, _ = rounded.during(folder, "int8")
    assert many == again and "No space left" in caplog.text
    assert not list(folder.glob("*quantised*"))
