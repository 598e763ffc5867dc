from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstitch.service.cli import main
from tests.data_folder import data_folder
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import Rig, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


@pytest.fixture
def rig(folder: Path, data: Path, database: str) -> Iterator[Rig]:
    """A fresh service with a fake worker, ready, without documents."""
    with running(folder, data, database=database) as rig:
        yield rig


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One service for the tests of a module that change nothing, with three documents."""
    folder = make_folder(tmp_path_factory.mktemp("shared") / "model")
    with data_folder() as data, running(folder, data) as rig:
        rig.ingest()
        yield rig


@pytest.fixture
def create(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """create("--tenant", "red"): a key, made as an operator makes it."""

    def make(*arguments: str) -> str:
        assert main(["keys", "create", "--data-dir", str(data), *arguments]) == 0
        return capsys.readouterr().out.strip()

    return make
