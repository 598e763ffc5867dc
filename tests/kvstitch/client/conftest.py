"""A gateway with a fake worker, three documents, and the client under test, blocking and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvstitch.client import Client
from tests.data_folder import data_folder
from tests.kvstitch.client.blocking import Blocking
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import Rig, running

CLIENTS = [pytest.param(Client, id="sync"), pytest.param(Blocking, id="async")]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = make_folder(tmp_path_factory.mktemp("client") / "model")
    with data_folder() as data, running(folder, data) as rig:
        rig.ingest()
        yield rig


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def client(rig: Rig, kind: Any) -> Iterator[Any]:
    made = kind(rig.url)
    yield made
    made.close()
