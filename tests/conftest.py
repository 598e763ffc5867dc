"""What all tests may use: one PostgreSQL server per test process, started when first asked for.
And their order where several processes run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.postgresql_server import PostgresqlServer
from tests.postgresql_server import postgresql_server as running_server

DATABASES = ("sqlite", "postgresql")
# Whole services: files of few tests that take longest.
FIRST = ("tests/e2e/", "tests/chaos/", "tests/loadtest/", "tests/ops/", "tests/demo/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the files, long ones come first and short ones fill the end."""
    if hasattr(config, "workerinput"):
        files = [item.nodeid.partition("::")[0] for item in items]
        tests = Counter(files)
        order = {file: (not file.startswith(FIRST), -tests[file]) for file in tests}
        items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says BOTH_DATABASES runs its tests over SQLite and over PostgreSQL."""
    for fixture in ("database", "open_database"):
        if fixture in metafunc.fixturenames and hasattr(metafunc.module, "BOTH_DATABASES"):
            metafunc.parametrize(fixture, DATABASES, indirect=True)


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
