"""Fixtures of the end-to-end tests: documents, model folders, and one service for all tests that
do not kill it. Everything is real: processes, sockets, Redis, disk, SQLite, FAISS, MiniLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from demo.corpus_files import read_documents
from tests.e2e.console.browser import Console, chromium
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import demo_or_tiny, tiny
from tests.e2e.service import Service

Documents = list[dict[str, Any]]
Serve = Callable[..., AbstractContextManager[Service]]


@pytest.fixture(scope="session")
def corpus() -> Documents:
    """The demo's documents as they are handed in."""
    return [{"doc_id": d.doc_id, "title": d.title, "text": d.text} for d in read_documents()]


@pytest.fixture(scope="session")
def twelve(corpus: Documents) -> Documents:
    """A dozen of them, of all kinds."""
    return corpus[:: len(corpus) // 12][:12]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, corpus: Documents) -> Path:
    """The demo model if it is there, else a random one; it never ends an answer by itself."""
    return demo_or_tiny(tmp_path_factory.mktemp("model") / "demo", [d["text"] for d in corpus])


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory, corpus: Documents) -> Path:
    """A random model with a context so long that its answers have to be interrupted."""
    folder = tmp_path_factory.mktemp("endless") / "endless"
    return tiny(folder, [d["text"] for d in corpus], context=65_536)


@pytest.fixture(scope="session")
def service(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[Service]:
    """A running service that knows `twelve`. Tests leave it running and its documents alone."""
    data = tmp_path_factory.mktemp("shared") / "data"
    with Service(model, data, sketches=True, **IN_PROCESS) as running:
        running.ingest(twelve)
        yield running


@pytest.fixture
def serve(tmp_path: Path, model: Path) -> Serve:
    """serve(memory_tier_mib=0): a service for one test, on a data folder of its own."""

    @contextmanager
    def start(model: Path = model, **settings: object) -> Iterator[Service]:
        with Service(model, tmp_path / "data", **settings) as running:
            yield running

    return start


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not longer than a module: Playwright leaves its event loop running on this thread."""
    with chromium() as running:
        yield running


@pytest.fixture
def console(browser: Browser, service: Service) -> Iterator[Console]:
    """The shared service's console. It may neither log an error nor break its policy."""
    console = Console(browser, service)
    yield console
    console.close()
    assert console.wrong == []
