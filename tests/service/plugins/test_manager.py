"""Plugins are found and asked, and one that fails is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.cli import main
from kvstitch.service.errors import InvalidSetting, PluginFailed
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    file_kind,
    kind_of_media_type,
    suffixes_in_folders,
)
from kvstitch.service.gateway.documents.parsing.parser import FileLimits, parse_file
from kvstitch.service.plugins import hooks, load_object, manager, registered
from kvstitch.service.settings import Settings, load, unknown_variables
from kvstitch.service.settings.loading import Reload
from kvstitch.service.worker.methods.registry import fusion_methods
from tests.service.plugins.example import ExampleSettings
from tests.service.plugins.loaded import plugins

EXAMPLE = "tests.service.plugins.example"


@pytest.fixture
def example() -> Iterator[None]:
    with plugins(EXAMPLE):
        yield


def test_installed_plugins_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("example", EXAMPLE, "kvstitch")
    monkeypatch.setattr(manager, "entry_points", lambda group: EntryPoints([entry]))
    with plugins(EXAMPLE):
        assert list(registered()) == ["example"]  # once, though it is named as well


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("no.such.module", "the plugin no.such.module cannot be loaded .ModuleNotFoundError"),
        ("tests.service.plugins.wrong_argument", "wrong_argument cannot be loaded"),
        ("tests.service.plugins.unknown_hook", "unknown_hook cannot be loaded"),
    ],
)
def test_a_plugin_that_fails_is_named(
    module: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with plugins(module):
        with pytest.raises(PluginFailed, match=why):
            hooks()
        assert main(["config", "check"]) == 2
        assert module in capsys.readouterr().err


def test_what_a_plugin_names_wrongly_is_said() -> None:
    with pytest.raises(PluginFailed, match="json:nothing"):
        load_object("json:nothing")


@pytest.mark.usefixtures("example")
def test_settings_of_plugins_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kvstitch.toml"
    file.write_text('example_word = "hi"\nexample_key = "secret"\n')
    monkeypatch.setenv("KVSTITCH_EXAMPLE_LIMIT", "5")
    settings: Any = load(file)
    assert {Settings, ExampleSettings} <= set(type(settings).__mro__)
    assert (settings.example_word, settings.example_limit) == ("hi", 5)
    assert settings.worker(tmp_path, "ipc://x").plugins["example_word"] == "hi"
    assert unknown_variables({"KVSTITCH_EXAMPLE_LIMIT": "5"}) == []
    other = settings.model_copy(update={"example_word": "ho", "example_limit": 6})
    assert Reload.of(settings, other) == Reload(["example_limit"], ["example_word"])
    assert main(["config", "show", "--config", str(file), "--json"]) == 0
    shown = {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert shown["example_key"]["value"] == "…" and shown["example_limit"]["reloadable"]


def test_what_protects_is_never_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "entry_points", lambda group: EntryPoints([]))
    monkeypatch.setenv("KVSTITCH_AUDIT", "true")
    with plugins(), pytest.raises(InvalidSetting, match="setting of kvstitch-audit, which is not"):
        load()


@pytest.mark.usefixtures("example")
async def test_verbs_formats_and_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 7
    assert file_kind("a.shout", "", b"x") == file_kind("a", "", b"SHOUT x") == "shout"
    assert kind_of_media_type()["text/x-shout"] == "shout" and ".shout" in suffixes_in_folders()
    limits = FileLimits(pages=10, chars=10_000, cpu_s=5, memory_bytes=512 << 20)
    parsed = await parse_file("shout", "grün".encode("latin-1"), limits, "latin-1")
    assert (parsed.text, parsed.title) == ("GRÜN", "Shouted")
    assert fusion_methods()["example"] is fusion_methods()["full_reuse"]
