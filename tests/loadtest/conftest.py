"""One running service for the tests that need one: real processes, the demo's model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.command_line import DEMO
from loadtest.traffic.corpus_reader import CorpusQuestion, read_documents, read_questions
from loadtest.traffic.routes import CorpusDocument
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import demo_or_tiny
from tests.e2e.service import Service


@pytest.fixture(scope="session")
def documents() -> list[CorpusDocument]:
    """A dozen of the demo's, of all kinds."""
    return read_documents(DEMO / "corpus")[::6]


@pytest.fixture(scope="session")
def questions() -> list[CorpusQuestion]:
    return read_questions(DEMO / "questions.jsonl")


@pytest.fixture(scope="session")
def service(
    tmp_path_factory: pytest.TempPathFactory, documents: list[CorpusDocument]
) -> Iterator[Service]:
    """Knows `documents`; its answers have as many tokens as were asked for."""
    folder = tmp_path_factory.mktemp("load")
    model = demo_or_tiny(folder / "demo", [document.text for document in documents])
    with Service(model, folder / "data", **IN_PROCESS) as running:
        running.ingest([document.body() for document in documents])
        yield running
