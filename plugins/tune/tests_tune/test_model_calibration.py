"""Heads and layers within a time limit, and where the worker reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvstitch.service.settings import demo_model
from kvstitch.service.worker.api import load_model, read_calibration
from kvstitch.service.worker.methods.api import ModelFacts
from kvstitch_tune.model_calibration import ModelCalibration, measured
from tests_tune.model_folders import DOCUMENTS

TEXTS = list(DOCUMENTS.values()) * 2


def test_layers_are_looked_at_and_kept(tmp_path: Path) -> None:
    folder = demo_model()
    decoder = load_model(str(folder), dtype="float32", device="cpu")
    path = tmp_path / "found.json"
    asked: list[int] = []

    def time_is_up() -> bool:
        asked.append(1)
        return len(asked) > 3  # two probes, then one text

    with torch.no_grad():
        found = measured(path, decoder, folder, TEXTS, seed=0, time_is_up=time_is_up)
    assert found.probes == 3 and not found.head_scores  # too few were answered
    again = measured(path, decoder, folder, TEXTS, seed=0, time_is_up=lambda: True)
    assert again == found == ModelCalibration(**json.loads(path.read_text()))


def test_the_data_folders_values_go_before_the_model_folders(tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    for folder, layers in ((model, [0]), (data, [1])):
        folder.mkdir()
        (folder / "calibration.json").write_text(json.dumps({"stable_layers": layers}))
    heads = {"R2": [[1.0, 0.0], [0.0, 1.0]]}
    (model / "calibration.json").write_text(
        json.dumps({"stable_layers": [0], "head_scores": heads})
    )
    first = data / "calibration.json"
    sizes = ModelFacts(2, 2, 1)
    facts = read_calibration(model, sizes, first)
    assert facts.stable_layers == (1,) and facts.head_scores["R2"][0, 0] == pytest.approx(0.5)
    assert read_calibration(model, sizes).stable_layers == (0,)
