"""The members that share a database, each with its last sign of life, by the server's clock.

Members are gateways, and the actors of `kvstitch bulk`, which only ingest.

    silent for LEASE_S             what it had taken goes on with others
    silent for FORGET_S            deletions no longer wait for it
    silent for FORGET_MEMORY_S     likewise, if it keeps no KV on disk

A gateway that was forgotten does not know which deletions it has missed. So it must not serve what
it holds: it ends, and empties its folder of KV before it serves again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retriever.sql.connection import Connection
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.jobs.job_database import JobDatabase

logger = logging.getLogger(__name__)

ID_FILE = "gateway.id"
BEAT_S = 1.0
LEASE_S = 15.0
FORGET_S = 600.0
FORGET_MEMORY_S = 60.0  # more than a busy machine holds up one that is there
IN_MEMORY, ON_DISK, NOWHERE = 0, 1, 2  # where a member keeps KV of its own: `keeps_kv`
_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
# Purges that some gateway has made, and no other one still has to make.
_MADE = f"""
    SELECT number FROM purges WHERE {{which}}
    AND EXISTS (SELECT 1 FROM confirmations WHERE confirmations.number = purges.number)
    AND NOT EXISTS (SELECT 1 FROM gateways WHERE keeps_kv <> {NOWHERE} AND NOT EXISTS (
        SELECT 1 FROM confirmations WHERE confirmations.number = purges.number
        AND confirmations.gateway_id = gateways.gateway_id))
"""


@dataclass(frozen=True)
class OpenWork:
    """What a member learns when it gives a sign of life.

    Attributes:
        member: It was not forgotten.
        pending: Documents wait to be indexed that no gateway has taken.
        indexed: Documents wait for their KV that no gateway has taken.
        purges: Purges wait for this gateway.
    """

    member: bool
    pending: bool = False
    indexed: bool = False
    purges: bool = False


class Membership:
    """This member among the others. Thread-safe; every call blocks.

    Args:
        database: It names this member, anew in each process.
        name: Of this member, for people.
        data_dir: Where a gateway remembers the id that it had before; None: it only ingests, and
            deletions do not wait for it.
        kv_dir: Where it keeps KV on a disk of its own; None: it keeps none there.
    """

    def __init__(
        self, database: JobDatabase, name: str, data_dir: Path | None, *, kv_dir: Path | None = None
    ) -> None:
        self._database = database
        self._me = database.gateway_id
        self._name = name
        self._file = None if data_dir is None else data_dir / ID_FILE
        self._kv_dir = kv_dir

    def join(self) -> None:
        """Become a member, before anything is served; the database must have been started.

        Purges that this gateway made earlier still count, unless it was forgotten: then its KV is
        deleted.
        """
        known_before = self._file is not None and self._file.exists()
        before = self._file.read_text(encoding="ascii") if self._file and known_before else ""
        keeps_kv = ON_DISK if self._kv_dir else NOWHERE if self._file is None else IN_MEMORY
        with self._database.transaction() as write:
            query = "SELECT keeps_kv FROM gateways WHERE gateway_id = ?" + write.for_update
            known = write.execute(query, (before,)).fetchone()
            for table in ("gateways", "confirmations"):
                write.execute(
                    f"UPDATE {table} SET gateway_id = ? WHERE gateway_id = ?", (self._me, before)
                )
            write.execute(
                f"INSERT INTO gateways VALUES (?, ?, ?, {_NOW}) ON CONFLICT (gateway_id) DO UPDATE "
                "SET name = excluded.name, keeps_kv = excluded.keeps_kv, seen = excluded.seen",
                (self._me, self._name, keeps_kv),
            )
            if before:
                _release(write, [before])  # by the process before, if it died
        missed = known is None or not known["keeps_kv"]
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
        with self._database.transaction() as write:
            _release(write, [self._me])
            if self._kv_dir is None:
                _forget(write, [self._me])

    def beat(self) -> OpenWork:
        """Give a sign of life, and release what silent gateways have taken."""
        with self._database.transaction() as write:
            before = write.execute(
                f"SELECT seen, {_NOW} AS now FROM gateways WHERE gateway_id = ?", (self._me,)
            ).fetchone()
            if before is None:
                return OpenWork(member=False)
            write.execute(f"UPDATE gateways SET seen = {_NOW} WHERE gateway_id = ?", (self._me,))
            # A member that was silent itself, perhaps because the database was, judges no other.
            if before["now"] - before["seen"] < LEASE_S / 2:
                _judge(write)
            free = "SELECT EXISTS (SELECT 1 FROM documents WHERE state = ? AND owner = '') AS free"
            return OpenWork(
                member=True,
                pending=write.execute(free, ("pending",)).fetchone()["free"],
                indexed=write.execute(free, ("indexed",)).fetchone()["free"],
                purges=write.execute(
                    "SELECT EXISTS (SELECT 1 FROM purges WHERE NOT EXISTS (SELECT 1 "
                    "FROM confirmations WHERE confirmations.number = purges.number "
                    "AND gateway_id = ?)) AS owed",
                    (self._me,),
                ).fetchone()["owed"],
            )


def _emptied(folder: Path) -> bool:
    """Remove everything below a folder; False if there was nothing."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return bool(paths)


def expect(write: Connection, gateway_id: str, name: str) -> None:
    """A gateway will join within FORGET_S that has what was deleted so far deleted, too."""
    write.execute(f"INSERT INTO gateways VALUES (?, ?, 1, {_NOW})", (gateway_id, name))


def settle_made(write: Connection, numbers: list[int]) -> list[int]:
    """Those of these purges that all gateways have made; their rows must be locked."""
    rows = write.execute(_MADE.format(which=f"number {write.in_numbers}"), (write.listed(numbers),))
    return [row["number"] for row in rows]


def silent_owing(read: Connection, receipt_id: str) -> list[str]:
    """Names of gateways that are silent and have not made all purges of a receipt."""
    rows = read.execute(
        f"SELECT name FROM gateways WHERE keeps_kv <> {NOWHERE} AND seen < {_NOW} - {LEASE_S} "
        "AND EXISTS "
        "(SELECT 1 FROM purges WHERE receipt_id = ? AND NOT EXISTS (SELECT 1 FROM confirmations "
        "WHERE confirmations.number = purges.number "
        "AND confirmations.gateway_id = gateways.gateway_id)) ORDER BY name",
        (receipt_id,),
    )
    return [row["name"] for row in rows]


def _judge(write: Connection) -> None:
    rows = write.execute(
        f"SELECT gateway_id, seen < {_NOW} - CASE keeps_kv WHEN {ON_DISK} THEN {FORGET_S} "
        f"ELSE {FORGET_MEMORY_S} END AS long FROM gateways WHERE seen < {_NOW} - {LEASE_S}"
        + write.skip_locked
    ).fetchall()
    if rows:
        _release(write, [row["gateway_id"] for row in rows])
        _forget(write, [row["gateway_id"] for row in rows if row["long"]])


def _release(write: Connection, gateway_ids: list[str]) -> None:
    """Let others take what these gateways had taken; forget what they had not accepted."""
    ids = write.listed(gateway_ids)
    write.execute(
        "UPDATE documents SET owner = '' WHERE state IN ('pending', 'indexed') "
        f"AND owner {write.in_texts}",
        (ids,),
    )
    write.execute(f"DELETE FROM jobs WHERE state = 'spooling' AND owner {write.in_texts}", (ids,))


def _forget(write: Connection, gateway_ids: list[str]) -> None:
    """Deletions no longer wait for these gateways: those that only they owed are done."""
    if not gateway_ids:
        return
    write.execute(
        f"DELETE FROM gateways WHERE gateway_id {write.in_texts}", (write.listed(gateway_ids),)
    )
    rows = write.execute(_MADE.format(which="true") + " ORDER BY number" + write.for_update)
    numbers = [row["number"] for row in rows]
    receipts = write.execute(
        f"DELETE FROM purges WHERE number {write.in_numbers} RETURNING receipt_id",
        (write.listed(numbers),),
    )
    complete(write, {row["receipt_id"] for row in receipts} - {None})


def complete(write: Connection, receipt_ids: set[str]) -> None:
    """Complete those of these receipts that nothing is owed of."""
    for receipt_id in sorted(receipt_ids):
        query = "SELECT 1 FROM receipts WHERE receipt_id = ?"
        write.execute(query + write.for_update, (receipt_id,))
        write.execute(
            f"UPDATE receipts SET completed = {_NOW} WHERE receipt_id = ? AND completed IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM purges WHERE receipt_id = receipts.receipt_id)",
            (receipt_id,),
        )


class Heartbeat:
    """Gives signs of life between start() and close().

    Args:
        membership: Joined.
        on_beat: Called after each sign of life, with the work that waits.
        on_forgotten: Called with what to say when the others have forgotten this member.
    """

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
