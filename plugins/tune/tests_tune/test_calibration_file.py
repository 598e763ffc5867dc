"""What stays in a calibration file that is written again."""

from __future__ import annotations

import json
from pathlib import Path

from kvstitch_tune.model_calibration import merge


def test_another_models_fields_do_not_stay(tmp_path: Path) -> None:
    """Its head scores have another shape, and the worker would refuse to start."""
    path = tmp_path / "calibration.json"
    merge(path, head_scores={"R": [[1.0]]})  # made before calibrations said whose they are
    merge(path, model="a", stable_layers=[1])
    merge(path, model="a", defaults={})
    assert json.loads(path.read_text()) == {
        "head_scores": {"R": [[1.0]]}, "model": "a", "stable_layers": [1], "defaults": {},
    }  # fmt: skip
    merge(path, model="b", defaults={})
    assert json.loads(path.read_text()) == {"model": "b", "defaults": {}}
