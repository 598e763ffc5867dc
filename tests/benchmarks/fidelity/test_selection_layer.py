"""The calibration of A3's selection layer on a copy of the demo model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.fidelity.selection_layer import main
from service.settings import demo_model
from service.worker.api import read_calibration

pytestmark = pytest.mark.slow


def test_the_best_layer_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one with the least divergence of those printed; the service still reads the file."""
    folder = tmp_path / "model"
    shutil.copytree(demo_model(), folder)
    assert main([str(folder), "--samples", "1", "--deepest", "3", "--ratio", "0.3"]) == 0
    written = json.loads((folder / "calibration.json").read_text())
    kl = written["selection_layer_from"]["kl"]
    assert set(kl) == {"1", "2", "3"}
    assert kl[str(written["selection_layer"])] == min(kl.values())
    assert f"best: {written['selection_layer']}" in capsys.readouterr().out
    read_calibration(folder, layers=12, heads=4, kv_heads=2)


def test_a_layer_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(demo_model()), "--deepest", "12"]) == 1
    assert "below 12" in capsys.readouterr().err
