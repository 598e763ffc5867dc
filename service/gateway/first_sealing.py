"""Encrypts a data folder that a service has filled in the clear: `kvstitch encryption encrypt`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from encryption.keyring import Keyring
from encryption.sealed_files import FileSealer, is_sealed_file
from encryption.values import is_sealed, is_sealed_text
from retriever.catalog.catalog import Catalog
from retriever.catalog.first_sealing import seal_catalog
from retriever.errors import IndexCorrupt, IndexMissing, RetrieverError
from retriever.index.index_files import seal_saved
from service.errors import InvalidSetting
from service.gateway.data_folder import lock_folder
from service.gateway.documents.deletion.deletion_store import purge_place
from service.gateway.documents.jobs.job_database import sealed_for, warnings_place
from service.gateway.documents.jobs.job_records import NO_WARNINGS, spool_place
from service.gateway.encryption.sealed_rows import SealedRows
from service.gateway.encryption.tenant_keys import TenantKeys
from service.gateway.service_database import ServiceDatabase, jobs_database
from service.gateway.tables import documents, jobs, purges, sizes
from service.settings import Settings

_READ_BYTES = 1 << 20
_SEALING = ".sealing"  # a file of this suffix is being written, and is sealed


def encrypt_folder(settings: Settings, keys: TenantKeys) -> dict[str, int]:
    """Seal what a data folder holds in the clear, and remove its KV, which is computed again.

    Every step leaves alone what is sealed, so after an interruption it is called again.

    Args:
        settings: Of a service that does not run.
        keys: Started.

    Returns:
        How many documents, rows of jobs, uploads and files of the index were in the clear, and how
        many files of KV were removed, in how many bytes.

    Raises:
        InvalidSetting: A gateway serves from the folder, or it holds no catalog.
    """
    folder = settings.data_dir
    if not (folder / "catalog.db").is_file():
        raise InvalidSetting(f"{folder} holds no catalog: give the --data-dir of a service")
    lock = lock_folder(folder)
    try:
        # KV does not say whose it is, and is only a copy.
        files, size = _remove_kv(settings.kv_dir)
        catalog = Catalog(folder / "catalog.db", keys.ring)
        catalog.start()
        try:
            stored = seal_catalog(catalog)
        finally:
            catalog.close()
        database = jobs_database(folder / "jobs.sqlite3")
        database.start()
        try:
            rows = _seal_rows(database, keys.ring)
            uploads = _seal_uploads(database, folder / "spool", keys.ring)
            database.scrub()
        finally:
            database.close()
        return {
            "documents": stored, "job_rows": rows, "uploads": uploads,
            "index_files": _seal_index(folder / "index", keys.ring),
            "kv_files": files, "kv_bytes": size,
        }  # fmt: skip
    except RetrieverError as error:
        raise InvalidSetting(str(error)) from error
    finally:
        lock.close()


def _remove_kv(folder: Path) -> tuple[int, int]:
    """Remove the SSD tier and the kept prompts; return their files and bytes."""
    sizes_of = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return len(sizes_of), sum(sizes_of)


def _seal_index(folder: Path, keys: Keyring) -> int:
    (folder / "index.tmp").unlink(missing_ok=True)  # of a save that was cut off
    try:
        return seal_saved(folder, keys)
    except IndexMissing:
        return 0
    except IndexCorrupt:  # the next start makes it again, from the catalog
        shutil.rmtree(folder)
        return 0


def _seal_rows(database: ServiceDatabase, keys: Keyring) -> int:
    """Seal rows of jobs, warnings and purges; return how many had something in the clear."""
    sealed = SealedRows(keys)
    columns = documents.c["number", "job_id", "collection", "doc_id", "meta", "error", "warnings"]
    of_tenants = documents.join(jobs)
    with database.read() as read:
        numbers = list(read.scalars(sa.select(documents.c.number)))
    changed = 0
    for number in numbers:  # one by one: their contents may be long
        with database.write() as write:
            query = sa.select(jobs.c.tenant, *columns, documents.c.content).select_from(of_tenants)
            row = write.execute(query.where(documents.c.number == number)).one()
            said = sealed_for("said", row.job_id, row)
            new: dict[str, Any] = {
                "meta": _text(sealed, row.tenant, row.meta, sealed_for("meta", row.job_id, row)),
                "error": _text(sealed, row.tenant, row.error, said),
            }
            if row.warnings != NO_WARNINGS:
                new["warnings"] = _text(sealed, row.tenant, row.warnings, said)
            if row.content and not is_sealed(row.content):
                where = sealed_for("content", row.job_id, row)
                new["content"] = sealed.content(row.tenant, row.content, *where)
            changed += _update(write, documents, row, new, "number")
    with database.write() as write:
        for row in write.execute(sa.select(sizes).where(sizes.c.warnings != NO_WARNINGS)).all():
            where = warnings_place(row.tenant, row.collection, row.doc_id)
            new = {"warnings": _text(sealed, row.tenant, row.warnings, where)}
            changed += _update(write, sizes, row, new, "tenant", "collection", "doc_id")
        for row in write.execute(sa.select(purges)).all():
            named = row.tenant, row.collection, row.doc_id, row.chunk_id
            new = {
                what: _text(sealed, row.tenant, getattr(row, what), purge_place(what, *named))
                for what in ("ids", "copies")
            }
            changed += _update(write, purges, row, new, "number")
    return changed


def _text(sealed: SealedRows, tenant: str, text: str | None, where: tuple[object, ...]) -> Any:
    return text if text and is_sealed_text(text) else sealed.text(tenant, text, *where)


def _update(
    write: sa.Connection, table: sa.Table, row: Any, new: dict[str, Any], *key: str
) -> bool:
    """Write the values of a row that are new; return whether there are any."""
    new = {name: value for name, value in new.items() if value != getattr(row, name)}
    if new:
        own = sa.and_(*(table.c[name] == getattr(row, name) for name in key))
        write.execute(table.update().where(own).values(new))
    return bool(new)


def _seal_uploads(database: ServiceDatabase, folder: Path, keys: Keyring) -> int:
    """Seal files that rows name, and remove the others; return how many were in the clear."""
    query = sa.select(documents.c.spooled, jobs.c.tenant).select_from(documents.join(jobs))
    with database.read() as read:
        rows = read.execute(query.where(documents.c.spooled.is_not(None)))
        owners = {row.spooled: row.tenant for row in rows}
    sealed = 0
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in owners:
            path.unlink()
        elif not is_sealed_file(path):
            partial = path.with_name(path.name + _SEALING)
            sealer = FileSealer(keys.current(owners[path.name]), spool_place(path.name))
            with path.open("rb") as source, partial.open("wb") as target:
                while block := source.read(_READ_BYTES):
                    target.write(sealer.update(block))
                target.write(sealer.finish())
                target.flush()
                os.fsync(target.fileno())
            partial.replace(path)
            sealed += 1
    return sealed
