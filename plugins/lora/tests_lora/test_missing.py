"""What is said where adapters are set and nothing reads them."""

from __future__ import annotations

from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from kvstitch.service.cli.serve import _require_loadable
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import manager
from kvstitch.service.settings import demo_model, load
from tests.service.plugins.loaded import plugins


def test_without_the_plugin_a_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(manager, "entry_points", lambda group: EntryPoints([]))
    with plugins():
        _require_loadable(demo_model(), load())
        with pytest.raises(InvalidSetting, match=r"lora needs .* pip install kvstitch-lora"):
            _require_loadable(demo_model(), load(lora=f"legal={tmp_path}"))
