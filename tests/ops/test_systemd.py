"""The systemd unit: systemd itself finds nothing wrong in it, and what it sets and runs is ours."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvstitch.service.cli import parser
from kvstitch.service.settings import load, unknown_variables
from tests.ops import tools

UNIT = tools.REPOSITORY / "docker" / "systemd" / "kvstitch.service"
PAGE = (tools.REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")
MEASURED_WITH = "systemd 252"  # others weigh what they know


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd-analyze on this machine")
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def entries(name: str) -> list[str]:
    return re.findall(rf"(?m)^{name}=(.*)$", UNIT.read_text())


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """With programs that are there, since kvstitch is not in /opt on this machine."""
    there = tmp_path / "kvstitch.service"
    there.write_text(UNIT.read_text().replace("/opt/kvstitch/bin/kvstitch", sys.executable))
    done = analyze("verify", "--man=no", there)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    there.write_text(there.read_text().replace("PrivateTmp=", "PrivateTemp="))
    assert "PrivateTemp" in analyze("verify", "--man=no", there).stderr, "mistakes are found"


def test_exposure_is_what_the_page_says() -> None:
    (said,) = re.findall(r"exposure (\d\.\d)", PAGE)
    if MEASURED_WITH not in analyze("--version").stdout:
        pytest.skip(f"the figure is of {MEASURED_WITH}")
    security = ["security", "--offline=true", "--no-pager"]
    done = analyze(*security, f"--threshold={said.replace('.', '')}", UNIT)
    assert done.returncode == 0 and f"exposure level for kvstitch.service: {said}" in done.stdout
    above = analyze(*security, f"--threshold={int(said.replace('.', '')) - 1}", UNIT)
    assert above.returncode != 0


def test_it_sets_settings_and_runs_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = dict(line.split("=", 1) for line in entries("Environment"))
    assert unknown_variables(environment) == []
    for name, value in environment.items():
        if name != "KVSTITCH_CONFIG":
            monkeypatch.setenv(name, value)
    assert str(load("/dev/null").data_dir) == environment["KVSTITCH_DATA_DIR"]
    commands = [*entries("ExecStartPre"), *entries("ExecStart"), *entries("ExecReload")]
    ours = [line.split()[1:] for line in commands if line.split()[0].endswith("/kvstitch")]
    assert [*map(tuple, ours)] == [("config", "check"), ("serve",), ("config", "check")]
    for arguments in ours:
        parser().parse_args(arguments)


def test_the_folders_it_may_write_are_those_that_are_set() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    environment = dict(line.split("=", 1) for line in entries("Environment"))
    assert environment["KVSTITCH_DATA_DIR"] == f"/var/lib/{service['StateDirectory']}"
    cache = f"/var/cache/{service['CacheDirectory']}/"
    assert environment["KVSTITCH_MODEL_CACHE"].startswith(cache)
    assert environment["HF_HOME"].startswith(cache)
    user = (UNIT.parent / "kvstitch.sysusers").read_text().split()
    assert user[:2] == ["u", service["User"]] and service["Group"] == service["User"]
