"""What `--model` says, told apart without plugins: folders, the demo model, the hub's models."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstitch.service.errors import ModelRefused
from kvstitch.service.models import find_model, prepare_model
from kvstitch.service.settings import demo_model, load
from tests.service.gateway.model_folders import make_folder


def test_folders_and_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_folder(tmp_path / "m")
    given = load(model=str(folder))
    assert prepare_model(given) == find_model(given) == folder.resolve()
    assert find_model(load(model="")) == demo_model()
    for model, message in [
        (str(tmp_path), "no config.json"),
        (str(tmp_path / "none"), "neither a model folder"),
        ("./nothing", "neither a model folder"),
        ("justaname", r"nor a \.gguf file or a name"),
    ]:
        for look_up in (prepare_model, find_model):
            with pytest.raises(ModelRefused, match=message):
                look_up(load(model=model))
    assert find_model(load(model="owner/model")) is None, "it is the hub's"
    (tmp_path / "owner" / "model").mkdir(parents=True)
    with pytest.raises(ModelRefused, match=r"no config\.json"):
        find_model(load(model="owner/model"))
