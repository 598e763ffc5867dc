"""What all tests may use: one PostgreSQL server per test process, started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgresql_server import PostgresqlServer
from tests.postgresql_server import postgresql_server as running_server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> str:
    """The address of an empty database."""
    return postgresql_server.database()
