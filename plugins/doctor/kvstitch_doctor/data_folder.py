"""Checks the data folder: writable, room for the SSD tier, databases whole, index fitting."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstitch.retriever import EndpointEmbedder
from kvstitch.retriever.catalog.tables import SCHEMA
from kvstitch.retriever.embedders.sentence_model_folder import SentenceModelFolder
from kvstitch.retriever.errors import RetrieverError
from kvstitch.service.cli.output import size
from kvstitch.service.gateway.search.async_retriever import named_folder
from kvstitch.service.settings import Settings
from kvstitch_doctor import Finding, fail, ok, warn

GIB = 1024**3
# Folders of the SSD tier below its own: by the first and second two digits of keys.
_OF_THE_TIER = re.compile(r"(tmp[^/]*|[0-9a-f]{2}(/[0-9a-f]{2})?)")
DATABASES = ("catalog.db", "jobs.sqlite3", "keys.sqlite3")
_SPACES = (
    "SELECT name, spaces.revision, dim, count(*) FROM spaces JOIN documents USING (space_id) "
    "GROUP BY space_id"
)


def check_folder(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".doctor-"):
            pass
    except OSError as error:
        yield fail("data folder", f"{there} cannot be written: {error.strerror}",
                   "give another --data-dir, or the right to write there")  # fmt: skip
        return
    state = f"{folder} is writable" if there == folder else f"{folder} will be made"
    if pid := served_by(folder):
        state += f"; process {pid} serves from it"
    yield ok("data folder", state)
    yield _disk(settings, there)
    yield from _kv_folder(settings.kv_dir)
    yield from _databases(folder)


def served_by(folder: Path) -> str:
    """Return the id of the process that serves from the folder; "" if there is none."""
    with contextlib.suppress(OSError), open(folder / "lock", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "?"
    return ""


def _disk(settings: Settings, there: Path) -> Finding:
    free, used = shutil.disk_usage(there).free, 0
    for path, _, names in os.walk(settings.kv_dir):
        for name in names:
            with contextlib.suppress(OSError):  # evicted meanwhile
                used += os.stat(os.path.join(path, name)).st_size
    if not settings.ssd_tier_gib:
        return ok("disk", f"{size(free)} free; no SSD tier")
    text = f"{size(free)} free, the SSD tier holds {size(used)} of {settings.ssd_tier_gib:g} GiB"
    if settings.ssd_tier_gib * GIB - used <= free:
        return ok("disk", text)
    room = max(0, int((used + free) * 0.8 / GIB))
    return warn("disk", f"{text}: it cannot grow to its bound",
                f"--ssd-tier-gib {room}, or a data folder on a larger disk")  # fmt: skip


def _kv_folder(folder: Path) -> Iterator[Finding]:
    """Name what is not a regular file among the KV files; the SSD tier skips it."""
    foreign: list[str] = []
    for path, directories, files in os.walk(folder):
        top = Path(path) == folder
        for name in list(directories):
            below = Path(path, name)
            if not _OF_THE_TIER.fullmatch(below.relative_to(folder).as_posix()):
                directories.remove(name)
                if not (top and name.startswith(".")):
                    foreign.append(str(below))
        for name in files:
            file = os.path.join(path, name)
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                if not stat.S_ISREG(os.lstat(file).st_mode):
                    foreign.append(file)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        yield warn("kv folder", f"not regular files, so skipped: {', '.join(foreign[:3])}{more}",
                   "remove them: KV whose place they take is not stored")  # fmt: skip


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database. SQLite writes only to recover a log that a crash has left."""
    uri = f"{file.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection


def _databases(folder: Path) -> Iterator[Finding]:
    files = [folder / name for name in DATABASES if (folder / name).is_file()]
    for file in files:
        try:
            with _opened(file) as connection:
                (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            result = str(error)
        if result != "ok":
            yield fail("databases", f"{file} is damaged: {result}",
                       "restore it from a backup (docs/deployment.md)")  # fmt: skip
            return
    if files:
        yield ok("databases", f"{', '.join(file.name for file in files)} are whole")


def check_index(settings: Settings) -> Iterator[Finding]:
    try:
        name, revision = _embedder(settings)
    except RetrieverError as error:
        yield fail("embedder", str(error), "give another --embedder")
        return
    place = f" at {settings.embedder_url}" if settings.embedder_url else ""
    yield ok("embedder", f"{name}@{revision[:12]}{place}")
    if not settings.database:  # `serve` compares the embedders when it opens the catalog
        yield _index(settings, name, revision)


def _embedder(settings: Settings) -> tuple[str, str]:
    """Return the embedder's name and revision."""
    if settings.embedder_url:
        endpoint = EndpointEmbedder(
            settings.embedder_url,
            settings.embedder or "default",
            revision=settings.embedder_revision,
        )
        return endpoint.name, endpoint.revision
    folder = SentenceModelFolder.read(named_folder(settings))
    return folder.name, folder.revision()


def _goes_on(settings: Settings, name: str, revision: str) -> bool:
    """Return whether the documents' embedder answers, as none was named and it was fetched."""
    if settings.embedder or settings.embedder_url:
        return False
    with contextlib.suppress(RetrieverError):
        return SentenceModelFolder.read(settings.model_cache / name).revision() == revision
    return False


def _index(settings: Settings, name: str, revision: str) -> Finding:
    data_dir = settings.data_dir
    file = data_dir / "catalog.db"
    if not file.is_file():
        return ok("index", "no documents yet")
    try:
        catalog = _catalog(file)
    except sqlite3.Error as error:
        return fail("index", f"{file} cannot be read: {error}", "restore it from a backup")
    if catalog is None:
        return warn("index", f"{file} is of another release", "`kvstitch serve` brings an older "
                    "one up to date; for a newer one, update kvstitch")  # fmt: skip
    spaces, generation = catalog
    if len(spaces) == 1 and _goes_on(settings, *spaces[0][:2]):
        name, revision = spaces[0][:2]
    if others := [s for s in spaces if (s[0], s[1]) != (name, revision)]:
        made = ", ".join(f"{n} documents by {other}@{r[:12]}" for other, r, _, n in others)
        return fail("index", f"embedded: {made}; the embedder is {name}@{revision[:12]}",
                    "start with that embedder, or let `serve` embed them anew, where it finds it; "
                    "else ingest into an empty data folder")  # fmt: skip
    try:
        manifest = (data_dir / "index" / "manifest.json").read_text(encoding="utf-8")
        saved = json.loads(manifest)["generation"]
    except (OSError, ValueError, KeyError, TypeError):
        saved = None
    documents = sum(space[3] for space in spaces)
    text = f"{documents} documents, all by {name}"
    if documents and saved != generation:
        text += "; the next start rebuilds the index from the catalog"
    return ok("index", text)


def _catalog(file: Path) -> tuple[list[Any], int] | None:
    """Return the embedding spaces of the documents, and the generation; None: another release's."""
    with _opened(file) as connection:
        named = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(named).fetchone() is None:
            return None
        (found,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        if found != SCHEMA.head:
            return None
        (generation,) = connection.execute("SELECT generation FROM state").fetchone()
        return connection.execute(_SPACES).fetchall(), int(generation)
