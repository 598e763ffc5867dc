"""`kvstitch.toml`: where it is found, what comes before what, and what is wrong in it."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import all_settings, load, loading, unknown_variables
from kvstitch.service.settings.fields import hidden, is_address, masked
from kvstitch.service.settings.loading import find_file, read_file, sources
from kvstitch.service.settings.settings import Settings


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No file and no variable of the machine that the tests run on."""
    for name in [name for name in os.environ if name.upper().startswith("KVSTITCH_")]:
        monkeypatch.delenv(name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(loading, "SYSTEM_FILE", tmp_path / "etc" / "kvstitch.toml")


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_first_file_that_is_there_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_file(None, {}) is None and load().max_top_k == 64
    written(tmp_path / "etc/kvstitch.toml", "max_top_k = 1")
    assert load().max_top_k == 1
    written(tmp_path / "here/kvstitch.toml", "max_texts = 2")
    assert (load().max_texts, load().max_top_k) == (2, 64), "one file alone is read"
    named = written(tmp_path / "named.toml", "max_top_k = 3")
    monkeypatch.setenv("KVSTITCH_CONFIG", str(named))
    assert load().max_top_k == 3
    assert load(written(tmp_path / "given.toml", "max_top_k = 4")).max_top_k == 4
    assert load("/dev/null").max_top_k == 64, "no file at all"


def test_a_file_that_is_named_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidSetting, match="--config names"):
        load(tmp_path / "none.toml")
    with pytest.raises(InvalidSetting, match="no such file"):
        load(tmp_path)
    monkeypatch.setenv("KVSTITCH_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(InvalidSetting, match="KVSTITCH_CONFIG names"):
        load()


VALUES: dict[str, tuple[Any, Any, Any]] = {
    "max_top_k": (1, 2, 3),
    "codec": ("int2", "int4", "int8"),
    "rerank_deadline_s": (0.1, 0.2, 0.4),
    "planner": (False, True, False),
    "lora": ("a=/a", "b=/b", "c=/c"),
    "top_k": (1, 2, 3),
}


@pytest.mark.parametrize("name", VALUES)
def test_one_precedence(name: str, tmp_path: Path) -> None:
    """Every combination of places in which a setting may be."""
    by_option, by_variable, by_file = VALUES[name]
    for option, variable, file in itertools.product((False, True), repeat=3):
        toml = str(by_file).lower() if isinstance(by_file, bool) else repr(by_file)
        path = written(tmp_path / "x.toml", f"{name} = {toml}" if file else "")
        environment = {f"kvstitch_{name}": str(by_variable)} if variable else {}
        given = {name: by_option} if option else {}
        with pytest.MonkeyPatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            settings = load(path, **given)
        came_from = sources(given, environment, read_file(path, Settings).toml_data, path)[name]
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        expected, place = next(
            (value, place)
            for there, value, place in (
                (option, by_option, "option"),
                (variable, by_variable, f"kvstitch_{name}"),
                (file, by_file, str(path)),
                (True, default, "default"),
            )
            if there
        )
        assert (getattr(settings, name), came_from) == (expected, place)
        assert (name in settings.model_fields_set) is (place != "default")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory_teir_mib = 1", "memory_teir_mib is no setting: did you mean memory_tier_mib?"),
        ("memory-tier-mib = 1", "did you mean memory_tier_mib?"),
        ("KVSTITCH_CODEC = 'raw'", "did you mean codec?"),
        ("sky = 1", "sky is no setting"),
        ("[tiers]\nredis_url = 'redis://r'", "[tiers] is a table: settings stand at the top"),
        ("port = 'web'", "port (in {path}) = 'web': input should be a valid integer"),
        ("max_top_k = 0", "max_top_k (in {path}) = 0"),
        ("port = ", "{path} is not TOML: Invalid value"),
        ("port = 1\nport = 2", "Cannot overwrite a value"),
        ("tenant_secret = 'hunter2'", "tenant_secret (in {path}) = …:"),
        ("database = 'mysql://u:hunter2@h/d'", "database (in {path}) = …: must start with"),
        ("redis_url = 'cache:6379'", "= 'cache:6379': must start with redis://"),
    ],
)
def test_what_is_wrong_in_a_file(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.toml", text)
    with pytest.raises(InvalidSetting) as error:
        load(path)
    assert message.format(path=path) in error.value.message
    assert "hunter2" not in error.value.message


def test_all_unknown_names_are_told_at_once_and_a_file_in_latin1_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting) as error:
        load(written(tmp_path / "x.toml", "prot = 1\ncodek = 2\nport = 3"))
    assert len(error.value.message.splitlines()) == 2
    path = tmp_path / "y.toml"
    path.write_bytes(b"model = '\xe4'")
    with pytest.raises(InvalidSetting, match="is not TOML"):
        load(path)


def test_settings_that_are_made_without_load_read_no_file(tmp_path: Path) -> None:
    written(tmp_path / "here/kvstitch.toml", "max_top_k = 2")
    assert load().max_top_k == 2 and Settings().max_top_k == 64
    assert unknown_variables({"KVSTITCH_CONFIG": "x"}) == []


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("redis_url", "redis://:hunter2@cache:6379/0", "redis://…@cache:6379/…"),
        ("redis_url", "redis+cluster://u:hunter2@a:1,b:2", "redis+cluster://…@a:1,b:2"),
        ("redis_url", "redis://cache", "redis://cache"),
        ("otlp_endpoint", "https://hooks/T0/hunter2", "https://hooks/…"),
        ("otlp_endpoint", "https://hooks?token=hunter2", "https://hooks/…"),
        ("otlp_endpoint", "https://[hunter2", "…"),
        ("fleet_secret", "hunter2", "…"),
        ("fleet_secret", "", ""),
        ("model", "hunter2", "hunter2"),
    ],
)
def test_secrets_are_masked(name: str, value: str, shown: str) -> None:
    assert masked(name, value, Settings) == shown


def test_what_sounds_like_a_secret_is_hidden() -> None:
    settings = all_settings()
    named = {n for n in settings.model_fields if n.endswith(("_secret", "_key", "_password"))}
    assert {each for each in named if not each.endswith("_per_key")} <= hidden(settings)
    assert not any(is_address(name, settings) for name in named)
