"""What all tests may use: one PostgreSQL server per test process, started when first asked for.
And their order where several processes run them."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.data_folder import data_folder
from tests.postgresql_server import DATABASES, PostgresqlServer
from tests.postgresql_server import postgresql_server as running_server

# A plugin's tests may be used by others', before pytest has come to them.
sys.path[:0] = [str(folder) for folder in sorted(Path(__file__).parent.glob("plugins/*/"))]

# `make test` draws the same examples every time, so that a change fails by what it changed; other
# examples are drawn by `make test-slow`.
settings.register_profile("same", derandomize=True)
settings.register_profile("other", derandomize=False)
settings.load_profile("same")

# What starts processes: files of few tests that take longest.
FIRST = (
    "tests/e2e/", "tests/loadtest/", "tests/ops/", "tests/demo/", "tests/benchmarks/gpu/",
    "plugins/gguf/", "plugins/tune/", "plugins/vllm/", "plugins/s3/tests_s3/test_sealed.py",
    "tests/service/worker/test_process.py", "tests/service/worker/test_shared_process.py",
)  # fmt: skip

# They ask the service that tests/e2e/conftest.py starts for a whole session: one process has it.
ONE_SERVICE = tuple(
    f"tests/e2e/{name}.py"
    for name in (
        "console/test_console", "console/test_console_access", "console/test_console_chat",
        "console/test_console_jobs", "console/test_console_layout",
        "console/test_console_markdown", "faults/test_bad_input", "test_gate", "test_reuse",
        "test_streaming",
    )
)  # fmt: skip


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """One file after the other goes to a process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "one service" if file in ONE_SERVICE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


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
