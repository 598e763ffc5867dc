"""A database of the service's own tables, whose errors are the service's."""

from collections.abc import Sequence
from pathlib import Path

from kvstitch.retriever.errors import AlreadyThere as AlreadyThere
from kvstitch.retriever.errors import DatabaseError, Unreachable, ValueRefused, WrongSchema
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.revisions import Schema
from kvstitch.service.errors import (
    DatabaseUnavailable,
    DiskFull,
    InternalError,
    InvalidRequest,
    InvalidSetting,
    KvstitchError,
)
from kvstitch.service.gateway.data_folder import FILE_MODE, DiskGuard
from kvstitch.service.gateway.tables import ENCRYPTION, JOBS, KEYS, NAMESPACE
from kvstitch.service.plugins import hooks, load_object

RETRY_S = 2.0


class ServiceDatabase(Database):
    """An SQLite file, or a schema (`namespace`) of PostgreSQL. Thread-safe; every call blocks.

    Its transactions raise DiskFull, DatabaseUnavailable where PostgreSQL does not answer,
    AlreadyThere where a rule of uniqueness is broken, InvalidRequest for a value that PostgreSQL
    cannot store, and else InternalError. `gateway_id` is that of this process among those that
    share the database ("": it is not shared), `connections` the most that are open to PostgreSQL at
    a time, and `disk` recognises that the file's disk is full.
    """

    def __init__(
        self,
        where: Path | str,
        schemas: Sequence[Schema],
        *,
        namespace: str = NAMESPACE,
        gateway_id: str = "",
        connections: int = 16,
        disk: DiskGuard | None = None,
    ) -> None:
        super().__init__(where, schemas, namespace=namespace, connections=connections)
        self.gateway_id = gateway_id
        self._file = None if isinstance(where, str) else where
        self._disk = disk or (None if self._file is None else DiskGuard(self._file.parent))

    def start(self) -> None:
        """Open the database and create its tables, or bring them up to date; once is enough. Raises
        InvalidSetting: it cannot be used, or a later release has written it; DiskFull: there is no
        room for the files beside it."""
        try:
            if self._file is not None and not self._file.exists():
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.touch(mode=FILE_MODE)  # the files beside it get the same
            super().start()
        except (InvalidSetting, DiskFull):
            raise
        except (KvstitchError, OSError) as error:
            if self._disk is not None and (full := self._disk.recognise(error)) is not None:
                raise full from error
            raise InvalidSetting(
                f"database (KVSTITCH_DATABASE): {error}"
                if self._file is None
                else f"{self._file} cannot be used ({error}): restore it from a backup, or move it "
                "away, which forgets what it holds (docs/operations.md)"
            ) from error

    def _translate_error(self, error: DatabaseError) -> Exception:
        if self._disk is not None and (full := self._disk.recognise(error)) is not None:
            return full
        match error:
            case AlreadyThere():
                return error
            case Unreachable():
                return DatabaseUnavailable(str(error), retry_after_s=RETRY_S)
            case ValueRefused():
                return InvalidRequest(str(error))
            case WrongSchema():
                return InvalidSetting(str(error))
        return InternalError(str(error))


def jobs_database(file: Path, disk: DiskGuard | None = None) -> ServiceDatabase:
    """The file jobs.sqlite3, not opened."""
    return ServiceDatabase(file, [JOBS], disk=disk)


def tables_of_plugins() -> dict[str, Schema]:
    """Return the tables that plugins have, by the file that holds them without PostgreSQL."""
    return {tables.file: load_object(tables.schema) for tables in hooks().database_tables()}


def shared_database(url: str, gateway_id: str = "", *, connections: int = 16) -> ServiceDatabase:
    """PostgreSQL with all tables of gateways, not opened."""
    schemas = [JOBS, KEYS, ENCRYPTION, *tables_of_plugins().values()]
    return ServiceDatabase(url, schemas, gateway_id=gateway_id, connections=connections)
