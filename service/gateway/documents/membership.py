"""The members that share a database, each with its last sign of life, by the server's clock.

Members are gateways, and the actors of `kvstitch bulk`, which only ingest.

    silent for LEASE_S             what it had taken goes on with others
    silent for FORGET_S            deletions no longer wait for it
    silent for FORGET_MEMORY_S     likewise, if it keeps no KV on disk

A gateway that was forgotten does not know which deletions it has missed. So it must not serve what
it holds: it ends, and empties its folder of KV before it serves again.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from kvstitch.retriever.sql.expressions import among, upsert
from kvstitch.service.gateway.documents.background_loop import BackgroundLoop
from kvstitch.service.gateway.documents.jobs.document_queue import UNFINISHED, in_state
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.tables import (
    confirmations,
    documents,
    gateways,
    jobs,
    purges,
    receipts,
)

logger = logging.getLogger(__name__)

ID_FILE = "gateway.id"
BEAT_S = 1.0
LEASE_S = 15.0
FORGET_S = 600.0
FORGET_MEMORY_S = 60.0  # more than a busy machine holds up one that is there
IN_MEMORY, ON_DISK, NOWHERE = 0, 1, 2  # where a member keeps KV of its own: `keeps_kv`
NOW: sa.ColumnElement[float] = sa.literal_column(
    "CAST(extract(epoch FROM clock_timestamp()) AS double precision)", sa.Double()
)


@dataclass(frozen=True)
class OpenWork:
    """What a member learns when it gives a sign of life."""

    member: bool  # it was not forgotten
    pending: bool = False  # documents wait to be indexed that no gateway has taken
    indexed: bool = False  # documents wait for their KV that no gateway has taken
    purges: bool = False  # purges wait for this gateway


class Membership:
    """This member among the others. Thread-safe; every call blocks. Without `data_dir` it only
    ingests, and deletions do not wait for it."""

    def __init__(
        self,
        database: ServiceDatabase,
        name: str,
        data_dir: Path | None,
        *,
        kv_dir: Path | None = None,
    ) -> None:
        self._database = database
        self._me = database.gateway_id
        self._name = name
        self._file = None if data_dir is None else data_dir / ID_FILE
        self._kv_dir = kv_dir

    def join(self) -> None:
        """Become a member, before anything is served. Purges that this gateway made earlier still
        count, unless it was forgotten: then its KV is deleted."""
        known_before = self._file is not None and self._file.exists()
        before = self._file.read_text(encoding="ascii") if self._file and known_before else ""
        keeps_kv = ON_DISK if self._kv_dir else NOWHERE if self._file is None else IN_MEMORY
        with self._database.write() as write:
            query = sa.select(gateways.c.keeps_kv).where(gateways.c.gateway_id == before)
            known = write.scalar(query.with_for_update())
            for table in (gateways, confirmations):
                renamed = table.update().where(table.c.gateway_id == before)
                write.execute(renamed.values(gateway_id=self._me))
            row = {"gateway_id": self._me, "name": self._name, "keeps_kv": keeps_kv, "seen": 0.0}
            upsert(write, gateways, [row])
            self._seen(write)
            if before:
                _release(write, [before])  # by the process before, if it died
        missed = not known  # None: it was forgotten; 0: it kept none
        if self._kv_dir is not None and missed and _emptied(self._kv_dir):
            logger.warning(
                    "%s is emptied: this gateway was not there, so it does not know what was "
                    "deleted meanwhile", self._kv_dir,
                )  # fmt: skip
        # Last: a gateway that dies before this comes back as one that was forgotten.
        if self._file is not None:
            self._file.write_text(self._me, encoding="ascii")

    def leave(self) -> None:
        """Give back what was taken. Without KV on disk nothing is owed by this gateway."""
        with self._database.write() as write:
            _release(write, [self._me])
            if self._kv_dir is None:
                _forget(write, [self._me])

    def beat(self) -> OpenWork:
        """Give a sign of life, and release what silent gateways have taken."""
        own = gateways.c.gateway_id == self._me
        free = documents.c.owner == ""
        with self._database.write() as write:
            silent_s = write.scalar(sa.select(NOW - gateways.c.seen).where(own))
            if silent_s is None:
                return OpenWork(member=False)
            self._seen(write)
            # A member that was silent itself, perhaps because the database was, judges no other.
            if silent_s < LEASE_S / 2:
                _judge(write)
            pending, indexed, purging = write.execute(
                sa.select(
                    sa.exists().where(in_state("pending"), free),
                    sa.exists().where(in_state("indexed"), free),
                    sa.exists(purges.c.number).where(unconfirmed_by(self._me)),
                )
            ).one()
        return OpenWork(member=True, pending=pending, indexed=indexed, purges=purging)

    def _seen(self, write: sa.Connection) -> None:
        write.execute(gateways.update().where(gateways.c.gateway_id == self._me).values(seen=NOW))


def _emptied(folder: Path) -> bool:
    """Remove everything below a folder; False if there was nothing."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return bool(paths)


def expect(write: sa.Connection, gateway_id: str, name: str) -> None:
    """Add a gateway that is to join within FORGET_S: what was deleted before is not in its KV, and
    deletions wait for it from now on."""
    row = {"gateway_id": gateway_id, "name": name, "keeps_kv": ON_DISK, "seen": NOW}
    write.execute(gateways.insert().values(row))


def unconfirmed_by(gateway_id: str | sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return whether a gateway has not made a purge."""
    made = confirmations.c.number == purges.c.number, confirmations.c.gateway_id == gateway_id
    return ~sa.exists(confirmations.c.number).where(*made).correlate(purges, gateways)


def made_by_all() -> sa.Select[tuple[int]]:
    """Select the purges that some gateway has made, and no other one still has to make."""
    made = sa.exists(confirmations.c.number).where(confirmations.c.number == purges.c.number)
    owing = sa.exists(gateways.c.gateway_id).where(
        gateways.c.keeps_kv != NOWHERE, unconfirmed_by(gateways.c.gateway_id)
    )
    found = sa.select(purges.c.number).where(made.correlate(purges), ~owing.correlate(purges))
    return found.order_by(purges.c.number)


def silent_owing(read: sa.Connection, receipt_id: str) -> list[str]:
    """Return names of gateways that are silent and have not made all purges of a receipt."""
    owed = sa.exists(purges.c.number).where(
        purges.c.receipt_id == receipt_id, unconfirmed_by(gateways.c.gateway_id)
    )
    silent = gateways.c.keeps_kv != NOWHERE, gateways.c.seen < NOW - LEASE_S
    query = sa.select(gateways.c.name).where(*silent, owed).order_by(gateways.c.name)
    return list(read.scalars(query))


def _judge(write: sa.Connection) -> None:
    patience_s = sa.case((gateways.c.keeps_kv == ON_DISK, FORGET_S), else_=FORGET_MEMORY_S)
    query = sa.select(gateways.c.gateway_id, (gateways.c.seen < NOW - patience_s).label("long"))
    silent = query.where(gateways.c.seen < NOW - LEASE_S).with_for_update(skip_locked=True)
    rows = write.execute(silent).all()
    if rows:
        _release(write, [row.gateway_id for row in rows])
        _forget(write, [row.gateway_id for row in rows if row.long])


def _release(write: sa.Connection, gateway_ids: list[str]) -> None:
    """Let others take what these gateways had taken; forget what they had not accepted."""
    taken = UNFINISHED, among(documents.c.owner, gateway_ids)
    write.execute(documents.update().where(*taken).values(owner=""))
    spooling = jobs.c.state == "spooling", among(jobs.c.owner, gateway_ids)
    write.execute(jobs.delete().where(*spooling))


def _forget(write: sa.Connection, gateway_ids: list[str]) -> None:
    """Deletions no longer wait for these gateways: those that only they owed are done."""
    if not gateway_ids:
        return
    write.execute(gateways.delete().where(among(gateways.c.gateway_id, gateway_ids)))
    numbers = write.scalars(made_by_all().with_for_update()).all()
    removed = purges.delete().where(among(purges.c.number, numbers)).returning(purges.c.receipt_id)
    complete(write, set(write.scalars(removed)) - {None})


def complete(write: sa.Connection, receipt_ids: set[str]) -> None:
    """Complete those of these receipts that nothing is owed of."""
    for receipt_id in sorted(receipt_ids):
        named = receipts.c.receipt_id == receipt_id
        write.execute(sa.select(receipts.c.receipt_id).where(named).with_for_update()).all()
        owed = sa.exists().where(purges.c.receipt_id == receipt_id)
        change = receipts.update().where(named, receipts.c.completed.is_(None), ~owed)
        write.execute(change.values(completed=time.time()))


class Heartbeat:
    """Gives signs of life between start() and close(), and says what work waits, or that the others
    have forgotten this member."""

    def __init__(
        self,
        membership: Membership,
        on_beat: Callable[[OpenWork], None],
        on_forgotten: Callable[[str], None],
    ) -> None:
        self._membership = membership
        self._on_beat = on_beat
        self._on_forgotten = on_forgotten
        self._loop = BackgroundLoop("heartbeat", self._step, BEAT_S)

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        """Leave: what this gateway had taken goes on with others."""
        await self._loop.close()
        await asyncio.to_thread(self._membership.leave)

    async def _step(self) -> bool:
        work = await asyncio.to_thread(self._membership.beat)
        if not work.member:
            self._on_forgotten(
                "this gateway gave no sign of life for so long that deletions no longer waited for "
                "it: it ends, and empties its KV folder at the next start"
            )
        self._on_beat(work)
        return False
