"""calibration.json as the service reads it: whose it is, what it decides, what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import load
from kvstitch.service.settings.calibration import find
from kvstitch.service.shared.model_fingerprint import fingerprint


def row(method: str, operations: float, low: float, **fields: Any) -> dict[str, Any]:
    agreement = {"mean": (1 + low) / 2, "low": low, "high": 1.0}
    usual = {"prefix_mode": "system", "codec": "int8"}
    return {
        "fusion": {"method": method}, "operations": operations, "agreement": agreement,
        **usual, **fields,
    }  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def written(folder: Path, model: Path, /, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    fields = {
        "model": fingerprint(str(model)),
        "defaults": {
            "fusion": {"method": "pie"}, "eviction": None, "prefix_mode": "system",
            "codec": "int8", "gate_min_agreement": 0.6, "gate_max_kl": 0.25,
            "exact_below": 0.3,
        },
        "measured": [row("pie", 0.05, 0.8), row("a3", 0.2, 0.9), row("legolink", 0.3, 0.85)],
    }  # fmt: skip
    path = folder / "calibration.json"
    path.write_text(json.dumps({**fields, **changes}))
    return path


def test_defaults_are_for_what_is_not_set(model: Path, tmp_path: Path) -> None:
    written(tmp_path / "data", model)
    given = load(data_dir=tmp_path / "data", codec="raw")
    found = find(given, model)
    assert found is not None
    settings = found.settings(given)
    assert settings.codec == "raw"  # set, though to what is the default without a calibration
    assert (settings.prefix_mode, settings.gate_min_agreement) == ("system", 0.6)
    assert settings.exact_below == 0.3
    assert settings.gate_max_kl == 0.25 and settings.gate_window == given.gate_window


def test_the_data_folder_comes_before_the_model_folder(model: Path, tmp_path: Path) -> None:
    theirs = written(model, model)
    settings = load(data_dir=tmp_path / "data")
    found = find(settings, model)
    assert found is not None and found.path == theirs
    ours = written(tmp_path / "data", model)
    found = find(settings, model)
    assert found is not None and found.path == ours
    assert find(load(data_dir=tmp_path / "data", calibration="off"), model) is None


def test_another_models_is_not_used(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "data", model)
    (model / "config.json").write_text('{"changed": true}')
    assert find(load(data_dir=tmp_path / "data"), model) is None
    assert "made for another model" in caplog.text
    with pytest.raises(InvalidSetting, match="kvstitch tune"):
        find(load(calibration=str(path)), model)


@pytest.mark.parametrize(
    "changes",
    [
        {"defaults": {"fusion": "a3"}},
        {"defaults": {"fusion": {"method": "a3"}, "codec": "int3"}},
        {"measured": [{"fusion": {"method": "a3"}}]},
        {"model": None},
    ],
)
def test_damaged_ones_are_refused(changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "data", model, **changes)
    with pytest.raises(InvalidSetting, match="kvstitch tune"):
        find(load(calibration=str(path)), model)


def test_one_without_defaults_is_the_workers_alone(model: Path, tmp_path: Path) -> None:
    (model / "calibration.json").write_text('{"head_scores": {}}')
    assert find(load(data_dir=tmp_path), model) is None


def test_the_cheapest_that_surely_agrees(model: Path, tmp_path: Path) -> None:
    """By the lower end of the interval, and only among what is served: prefix mode and codec."""
    other = row("full_reuse", 0.01, 0.99, codec="raw")
    path = written(tmp_path / "data", model, measured=[
        other, row("pie", 0.05, 0.8), row("a3", 0.2, 0.9), row("legolink", 0.3, 0.95),
    ])  # fmt: skip
    found = find(load(calibration=str(path)), model)
    assert found is not None

    def cheapest(quality: float) -> Any:
        return found.cheapest(quality, prefix_mode="system", codec="int8")

    assert cheapest(0.5) == {"method": "pie"}
    assert cheapest(0.85) == {"method": "a3"}
    assert cheapest(0.95) == {"method": "legolink"}
    assert cheapest(0.99) is None
