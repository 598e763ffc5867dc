"""The keys of all tenants, in a database, wrapped by the master key; a keyring holds them open.

A tenant gets a key when KV of it is first stored. A rotation adds one that seals from then on. A
deletion removes all of them; none of the tenant's stored KV can be read afterwards.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from kvstitch.encryption.aead import KEY_BYTES
from kvstitch.encryption.keyring import (
    KEY_ID_BYTES,
    DataKey,
    EncryptionError,
    Keyring,
    MasterKeyError,
)
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway.encryption.master_key import MasterKey, master_key
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.tables import ENCRYPTION, tenant_keys
from kvstitch.service.settings import Settings

FILE = "encryption.sqlite3"
DATA = "data"  # the purpose of a key; earlier versions also had some for "words"
_MAKING = 0x6B76_0007  # number of the advisory lock: two gateways make one key of a tenant


class TenantKeys:
    """The keys of tenants, which `master` wraps; `ring` is what seals and opens. Thread-safe; every
    call but those of `ring` blocks."""

    def __init__(self, database: ServiceDatabase, master: MasterKey) -> None:
        self._database = database
        self._master = master
        self._unwrapped: dict[bytes, DataKey] = {}
        self.ring = Keyring(make=self._make, reload=self._load)

    def start(self) -> None:
        """Open the database and unwrap all keys. Raises InvalidSetting: the master key is not the
        one that wrapped them, or an earlier version has sealed more than KV."""
        self._database.start()
        with self._database.read() as read:
            _require_clear_rows(read)
        try:
            self.ring.replace(self._load())
        except MasterKeyError as error:
            raise InvalidSetting(str(error)) from error

    def close(self) -> None:
        self._database.close()

    def refresh(self) -> bool:
        """Read the keys again, which others may have changed; return whether they had."""
        return self.ring.replace(self._load())

    def rotate(self, tenant: str) -> DataKey:
        """Give a tenant a new key that seals from now on; what is stored stays readable."""
        with self._database.write(_MAKING) as write:
            key = self._insert(write, tenant)
        self.refresh()
        return key

    def delete(self, tenant: str) -> list[bytes]:
        """Delete all keys of a tenant; return their ids."""
        own = tenant_keys.c.tenant == tenant
        with self._database.write() as write:
            found = write.scalars(sa.select(tenant_keys.c.key_id).where(own)).all()
            write.execute(tenant_keys.delete().where(own))
        self._database.scrub()
        self.refresh()
        return [bytes.fromhex(each) for each in found]

    def rewrap(self, master: MasterKey) -> int:
        """Wrap all keys by another master key; return how many there are. Raises MasterKeyError: it
        cannot wrap or unwrap; nothing is changed then."""
        with self._database.write(_MAKING) as write:
            count = 0
            for row in write.execute(sa.select(tenant_keys)).all():
                context = _context(row.tenant, row.key_id)
                secret = self._master.unwrap(row.wrapped, context)
                wrapped = master.wrap(secret, context)
                if master.unwrap(wrapped, context) != secret:
                    raise MasterKeyError("the new master key does not give back what it wrapped")
                change = tenant_keys.update().where(tenant_keys.c.key_id == row.key_id)
                write.execute(change.values(wrapped=wrapped))
                count += 1
        self._database.scrub()
        self._master = master
        return count

    def rows(self) -> list[tuple[str, str, float]]:
        """Return (tenant, key id, time of creation) of all keys, the oldest first."""
        query = sa.select(*tenant_keys.c["tenant", "key_id", "created"])
        with self._database.read() as read:
            return [tuple(row) for row in read.execute(query.order_by(tenant_keys.c.number))]

    def _make(self, tenant: str) -> Sequence[DataKey]:
        """Return a tenant's keys, of which one is made if there are none."""
        with self._database.write(_MAKING) as write:
            own = sa.select(tenant_keys.c.key_id).where(tenant_keys.c.tenant == tenant).limit(1)
            if write.scalar(own) is None:
                self._insert(write, tenant)
        return [key for key in self._load() if key.owner == tenant]

    def _insert(self, write: sa.Connection, tenant: str) -> DataKey:
        key = DataKey(os.urandom(KEY_ID_BYTES), tenant, os.urandom(KEY_BYTES))
        wrapped = self._master.wrap(key.secret, _context(tenant, key.id.hex()))
        last = sa.select(sa.func.coalesce(sa.func.max(tenant_keys.c.number), 0))
        row = {"key_id": key.id.hex(), "number": last.scalar_subquery() + 1, "tenant": tenant,
               "purpose": DATA, "created": time.time(), "wrapped": wrapped}  # fmt: skip
        write.execute(tenant_keys.insert().values(row))
        return key

    def _load(self) -> list[DataKey]:
        with self._database.read() as read:
            rows = read.execute(sa.select(tenant_keys).order_by(tenant_keys.c.number)).all()
        found: list[DataKey] = []
        for row in rows:
            key_id = bytes.fromhex(row.key_id)
            if (key := self._unwrapped.get(key_id)) is None:  # a KMS is slow
                secret = self._master.unwrap(row.wrapped, _context(row.tenant, row.key_id))
                key = DataKey(key_id, row.tenant, secret)
            found.append(key)
        self._unwrapped = {key.id: key for key in found}
        return found


def tenant_keys_of(settings: Settings, shared: ServiceDatabase | None) -> TenantKeys | None:
    """Return the keys of a service's tenants, not started; None: nothing is encrypted.

    Keys are in the database that gateways share, or in a file of the data folder. Raises
    InvalidSetting if the master key cannot be read.
    """
    try:
        master = master_key(settings)
    except EncryptionError as error:
        raise InvalidSetting(str(error)) from error
    if master is None:
        return None
    return TenantKeys(shared or keys_database(settings.data_dir), master)


def keys_database(folder: Path) -> ServiceDatabase:
    """The file of the keys of tenants, not opened."""
    return ServiceDatabase(folder / FILE, [ENCRYPTION])


def require_no_keys(settings: Settings, shared: ServiceDatabase | None) -> None:
    """Check that a service without a master key has stored no KV that is encrypted; `shared` is
    started. Raises InvalidSetting: tenants have keys, or an earlier version has sealed more than
    KV."""
    database = shared
    if database is None:
        if not (settings.data_dir / FILE).is_file():
            return
        database = keys_database(settings.data_dir)
        database.start()
    try:
        with database.read() as read:
            _require_clear_rows(read)
            found = read.execute(sa.select(tenant_keys.c.key_id).limit(1)).first()
    finally:
        if shared is None:
            database.close()
    if found is not None:
        raise InvalidSetting(
            "KV that is stored here is encrypted, and no master key is set: set "
            "encryption_key_file (KVSTITCH_ENCRYPTION_KEY_FILE), encryption_key or encryption_kms"
        )


def _require_clear_rows(read: sa.Connection) -> None:
    """Check that no earlier version has sealed documents, as it did where it made other keys."""
    others = sa.select(tenant_keys.c.key_id).where(tenant_keys.c.purpose != DATA).limit(1)
    if read.scalar(others) is not None:
        raise InvalidSetting(
            "the documents here were encrypted by an earlier version; this one encrypts KV alone, "
            "and leaves documents to an encrypted disk: ingest them into an empty data folder or "
            "database"
        )


def _context(tenant: str, key_id: str) -> dict[str, str]:
    return {"tenant": tenant, "key_id": key_id}
