"""What all tests may use: one PostgreSQL server per test process, started when first asked for.
And their order where several processes run them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from tests.data_folder import data_folder
from tests.postgresql_server import DATABASES, PostgresqlServer
from tests.postgresql_server import postgresql_server as running_server

# `make test` draws the same examples every time, so that a change fails by what it changed; other
# examples are drawn by `make test-slow`.
settings.register_profile("same", derandomize=True)
settings.register_profile("other", derandomize=False)
settings.load_profile("same")

# What starts processes: files of few tests that take longest.
FIRST = (
    "tests/e2e/",
    "tests/loadtest/",
    "tests/ops/",
    "tests/demo/",
    "tests/benchmarks/gpu/",
    "plugins/gguf/",
    "plugins/tune/",
    "tests/service/worker/test_process.py",
    "tests/service/worker/test_shared_process.py",
)


# Of an exhaustive module's combinations, one in so many is part of `make test`.
EXHAUSTIVE_PART = 8


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_choose_of_exhaustive(items: list[pytest.Item]) -> None:
    """The others are slow. It is always the same ones, and the first of every test."""
    seen: set[str] = set()
    for item in items:
        if item.get_closest_marker("exhaustive"):
            test = item.nodeid.partition("[")[0]
            if test in seen and crc32(item.nodeid.encode()) % EXHAUSTIVE_PART:
                item.add_marker(pytest.mark.slow)
            seen.add(test)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files, long ones come first and short ones fill the end."""
    if hasattr(config, "workerinput"):
        files = [item.nodeid.partition("::")[0] for item in items]
        tests = Counter(files)
        order = {file: (not file.startswith(FIRST), -tests[file]) for file in tests}
        items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """What all tests share is left out of every later search for garbage, a second each."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says BOTH_DATABASES runs its tests over SQLite and over PostgreSQL."""
    for fixture in ("database", "open_database"):
        if fixture in metafunc.fixturenames and hasattr(metafunc.module, "BOTH_DATABASES"):
            metafunc.parametrize(fixture, DATABASES, indirect=True)


@pytest.fixture
def data() -> Iterator[Path]:
    """An empty data folder."""
    with data_folder() as path:
        yield path


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> str:
    """The address of an empty database."""
    return postgresql_server.database()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """The setting `database`: files by default."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return ""
    return str(request.getfixturevalue("postgresql_url"))
