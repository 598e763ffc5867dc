"""When a gateway's vectors are in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import hooks
from kvstitch.service.settings import load
from kvstitch_pgvector.pgvector_index import PgvectorIndex
from tests.service.plugins.loaded import plugins

URL = "postgresql://nobody@localhost/none"


def test_vectors_are_in_the_database_where_the_settings_say_so(tmp_path: Path) -> None:
    with plugins("kvstitch_pgvector"):
        index = hooks().vector_index(
            settings=load(database=URL, vectors="pgvector"), database=catalog_database(URL)
        )
        assert isinstance(index, PgvectorIndex)
        database = catalog_database(tmp_path / "catalog.db")
        assert hooks().vector_index(settings=load(), database=database) is None
        with pytest.raises(InvalidSetting, match="pgvector needs a database"):
            load(vectors="pgvector")
