"""The probe of SamKV's stable layers, on made-up decays and on a real folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.fidelity.stable_layers import main
from service.settings import demo_model
from service.worker.api import read_calibration
from tuning.model_calibration import deviations, stable_layers


def test_deviations_by_hand() -> None:
    """Two layers, four blocks: block 2 is lowest in both, by √3 deviations where the others are
    alike; a block that was not scored does not count."""
    inf = float("inf")
    alpha = torch.tensor([[1.0, 1.0, 0.5, 1.0, inf], [1.0, 0.8, 0.7, 1.1, inf]])
    found = deviations(alpha)
    assert float(found[0]) == pytest.approx(3**0.5)
    second = alpha[1, :4].double()
    assert float(found[1]) == pytest.approx(float((second.mean() - 0.7) / second.std(correction=0)))


def test_outliers_before_means() -> None:
    """A layer where the block is an outlier once beats one where it is lower on average."""
    found = [torch.tensor([0.0, 2.9, 3.1, 0.0]), torch.tensor([0.0, 2.9, 0.0, 0.0])]
    assert stable_layers(found, 4) == (2,)
    assert stable_layers([f.repeat(4) for f in found], 16) == (2, 6)


def test_it_is_written_beside_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And read by the service; what else the calibration holds stays."""
    folder = tmp_path / "model"
    shutil.copytree(demo_model(), folder)
    scores = {"R": [[1.0] * 4] * 12}
    (folder / "calibration.json").write_text(json.dumps({"head_scores": scores}))
    assert main([str(folder), "--samples", "2", "--tokens", "500"]) == 0
    facts = read_calibration(folder, layers=12, heads=4, kv_heads=2)
    assert len(facts.stable_layers) == 2
    assert set(facts.head_scores) == {"R"}
    assert "written to" in capsys.readouterr().out


def test_documents_that_are_too_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_model(), folder, ignore=shutil.ignore_patterns("calibration.json"))
    (tmp_path / "short.jsonl").write_text('{"text": "Velen lives in Mirton."}\n')
    assert main([str(folder), "--documents", str(tmp_path / "short.jsonl")]) == 1
    assert "longer" in capsys.readouterr().err
    assert not (folder / "calibration.json").exists()
