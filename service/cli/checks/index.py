"""Checks that the index was made with the embedder that will embed the questions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retriever import EndpointEmbedder
from retriever.catalog.tables import SCHEMA
from retriever.embedders.sentence_model_folder import SentenceModelFolder
from retriever.errors import RetrieverError
from service.cli.checks.finding import Finding, fail, ok, warn
from service.settings import Settings

_SPACES = (
    "SELECT name, spaces.revision, dim, count(*) FROM spaces JOIN documents USING (space_id) "
    "GROUP BY space_id"
)


def check(settings: Settings) -> Iterator[Finding]:
    try:
        name, revision = _embedder(settings)
    except RetrieverError as error:
        yield fail("embedder", str(error), "give another --embedder")
        return
    yield ok("embedder", f"{name}@{revision[:12]}" + (
        f" at {settings.embedder_url}" if settings.embedder_url else ""))  # fmt: skip
    if settings.database:  # `serve` compares the embedders when it opens the catalog
        return
    file = settings.data_dir / "catalog.db"
    if not file.is_file():
        yield ok("index", "no documents yet")
        return
    try:
        revision_there, spaces, generation = _catalog(file)
    except sqlite3.Error as error:
        yield fail("index", f"{file} cannot be read: {error}", "restore it from a backup")
        return
    if revision_there != SCHEMA.head:
        yield warn("index", f"{file} is of another release", "`kvstitch serve` brings an older one "
                   "up to date; for a newer one, update kvstitch")  # fmt: skip
        return
    if others := [s for s in spaces if (s[0], s[1]) != (name, revision)]:
        made = ", ".join(f"{n} documents by {other}@{r[:12]}" for other, r, _, n in others)
        yield fail("index", f"embedded: {made}; the embedder is {name}@{revision[:12]}",
                   "start with that embedder, or ingest into an empty data folder")  # fmt: skip
        return
    yield _saved(settings.data_dir / "index" / "manifest.json", generation, spaces)


def _embedder(settings: Settings) -> tuple[str, str]:
    """The embedder's name and revision.

    Raises:
        EmbedderUnsupported: Its folder is missing or cannot be used.
    """
    if settings.embedder_url:
        endpoint = EndpointEmbedder(
            settings.embedder_url,
            settings.embedder or "default",
            revision=settings.embedder_revision,
        )
        return endpoint.name, endpoint.revision
    folder = SentenceModelFolder.read(Path(settings.embedder) if settings.embedder else None)
    return folder.name, folder.revision()


def _catalog(file: Path) -> tuple[str, list[Any], int]:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)
    try:
        named = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(named).fetchone() is None:
            return "", [], 0
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        if revision != SCHEMA.head:
            return str(revision), [], 0
        (generation,) = connection.execute("SELECT generation FROM state").fetchone()
        return str(revision), connection.execute(_SPACES).fetchall(), int(generation)
    finally:
        connection.close()


def _saved(manifest: Path, generation: int, spaces: list[Any]) -> Finding:
    documents = sum(space[3] for space in spaces)
    try:
        saved = json.loads(manifest.read_text(encoding="utf-8"))["generation"]
    except (OSError, ValueError, KeyError, TypeError):
        saved = None
    text = f"{documents} documents, all by this embedder"
    if documents and saved != generation:
        text += "; the next start rebuilds the index from the catalog"
    return ok("index", text)
