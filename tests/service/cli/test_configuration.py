"""`kvstitch config` and `--version`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstitch.service import __version__
from kvstitch.service.cli import main
from kvstitch.service.settings import all_settings


def test_show_names_every_setting_and_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kvstitch.toml"
    file.write_text("redis_url = 'redis://:hunter2@r:1/0'\nmax_top_k = 5\nport = 1\n")
    monkeypatch.setenv("KVSTITCH_PORT", "2")
    monkeypatch.setenv("KVSTITCH_FLEET_SECRET", "hunter2" * 5)
    shown = ["config", "show", "--config", str(file), "--host", "::1"]
    assert main([*shown, "--json"]) == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    rows = {row["name"]: row for row in told["settings"]}
    assert rows.keys() == all_settings().model_fields.keys() and told["file"] == str(file)
    assert rows["max_top_k"] == {
        "name": "max_top_k", "value": 5, "source": str(file), "reloadable": True
    }  # fmt: skip
    found = {name: (rows[name]["value"], rows[name]["source"]) for name in rows}
    assert found["port"] == (2, "KVSTITCH_PORT") and found["host"] == ("::1", "option")
    assert found["redis_url"] == ("redis://…@r:1/…", str(file))
    assert found["fleet_secret"] == ("…", "KVSTITCH_FLEET_SECRET")
    assert found["max_running"] == (32, "default") and found["top_k"] == (None, "default")
    assert main(shown) == 0
    table = capsys.readouterr().out
    assert "hunter2" not in out + table
    assert all(name in table for name in all_settings().model_fields) and f"file: {file}" in table


def test_check_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kvstitch.toml"
    check = ["config", "check", "--config", str(file)]
    file.write_text("max_top_k = 5\nredis_url = 'redis://r'\n")
    assert main(check) == 0 and "2 settings" in capsys.readouterr().out
    file.write_text("max_top_k = 0\nport = -1\n")
    assert main(check) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    file.write_text("embedder_key = 'x'\n")
    file.chmod(0o644)
    assert main(check) == 1
    assert "embedder_key, and every user can read it: chmod o-r" in capsys.readouterr().out
    file.chmod(0o640)
    assert main(check) == 0
    monkeypatch.setenv("KVSTITCH_CODEK", "raw")
    assert main([*check, "--json"]) == 1
    assert "did you mean KVSTITCH_CODEC?" in capsys.readouterr().out
    monkeypatch.delenv("KVSTITCH_CODEK")
    assert main([*check, "--port", "70000", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["wrong"][0].startswith("port (")
    assert main(["config", "show", "--config", str(tmp_path / "none.toml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"kvstitch {__version__}\n"


def test_all_that_is_wrong_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in the file, its values, those of variables, and what only shows with right ones."""
    file = tmp_path / "kvstitch.toml"
    file.write_text("bogus = 1\ntop_k = -3\ngate_window = 0\ngate_min_checks = 50\n")
    monkeypatch.setenv("KVSTITCH_CODEC", "zip")
    monkeypatch.setenv("KVSTITCH_TYPO", "1")
    assert main(["config", "check", "--config", str(file), "--json"]) == 1
    wrong = json.loads(capsys.readouterr().out)["wrong"]
    for name in ("KVSTITCH_TYPO", "bogus", "top_k", "gate_window", "gate_min_checks", "codec"):
        assert sum(line.startswith(name) or f": {name} " in line for line in wrong) == 1, wrong
