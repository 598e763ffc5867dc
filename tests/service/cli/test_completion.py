"""`kvstitch completion` in the shells themselves."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstitch.service.cli import FILE_OPTIONS, SHELLS, parser
from kvstitch.service.cli.documents.jobs import JOB_STATES

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_kvstitch
printf '%s\\n' "${COMPREPLY[@]}"
"""


def commands(
    made: argparse.ArgumentParser, *path: str
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield every command and action with the words that lead there."""
    yield path, made
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from commands(below, *path, name)


COMMANDS = list(commands(parser()))


def script(shell: str) -> str:
    command = [sys.executable, "-m", "kvstitch.service.cli", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def bash_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "kvstitch.bash"
    file.write_text(script("bash"))
    return file


def bash(file: Path, *words: str, cwd: Path | None = None) -> list[str]:
    """What bash offers for the last word."""
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(file), "kvstitch", *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=True)
    return sorted(filter(None, ran.stdout.split("\n")))


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=lambda one: " ".join(one) if isinstance(one, tuple) else ""
)
def test_bash_offers_every_command_and_option(
    bash_file: Path, path: tuple[str, ...], command: argparse.ArgumentParser
) -> None:
    """All that the parser shows at each place, and nothing else."""
    shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
    options = sorted(name for action in shown for name in action.option_strings)
    assert bash(bash_file, *path, "--") == [o for o in options if o.startswith("--")]
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            assert bash(bash_file, *path, "") == sorted(action.choices)
        elif action.choices:
            for name in action.option_strings:
                assert bash(bash_file, *path, name, "") == sorted(action.choices)


def test_bash_knows_values_from_commands(bash_file: Path, tmp_path: Path) -> None:
    assert bash(bash_file, "jo") == ["jobs"] and bash(bash_file, "jobs", "c") == ["cancel"]
    assert bash(bash_file, "jobs", "list", "--state", "") == sorted(JOB_STATES)
    assert bash(bash_file, "documents", "--url", "http://x", "pi") == ["pin"]
    assert bash(bash_file, "ask", "--collection", "") == []  # any name: nothing to offer
    assert bash(bash_file, "completion", "z") == ["zsh"]
    (tmp_path / "my notes.md").touch()
    (tmp_path / "models").mkdir()
    assert bash(bash_file, "ingest", "m", cwd=tmp_path) == ["models", "my notes.md"]
    assert bash(bash_file, "serve", "--model", "mo", cwd=tmp_path) == ["models"]
    assert "--batch" in bash(bash_file, "ingest", "--", cwd=tmp_path)


def test_every_file_option_is_an_option() -> None:
    names = {n for _, made in COMMANDS for action in made._actions for n in action.option_strings}
    assert set(FILE_OPTIONS) <= names


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_can_read_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    ran = subprocess.run([shell, "-n"], input=script(shell), capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
