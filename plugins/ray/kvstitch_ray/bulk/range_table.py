"""The ranges of runs in PostgreSQL, claimed by one worker at a time.

    open ── claim ── claimed ── done, or failed: given up
     ^                  │ given back, or its worker is no member any more, or silent for LEASE_S
     └──────────────────┘

Workers are members of the gateways' database, and give signs of life there.

A range that its worker leaves half-way is simply done again: what is stored is found, because
documents have their ids and KV has content keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from kvstitch.retriever.sql.expressions import Name, among, required, upsert
from kvstitch.retriever.sql.revisions import Schema, add_column
from kvstitch.service.gateway import tables
from kvstitch.service.gateway.documents.membership import LEASE_S, NOW
from kvstitch.service.gateway.service_database import ServiceDatabase, shared_database
from kvstitch_ray.bulk.records import Counts, Progress, Range, Run

NAMESPACE = "kvstitch_bulk"  # of bulk alone: gateways neither need nor migrate it
MAX_ATTEMPTS = 5  # claims of one range in a run of the command, before it is given up
RATE_S = 300.0  # over which a rate is taken
CUTTING = 0x6B76_0005  # number of the advisory lock: of several drivers one cuts the input

metadata = sa.MetaData()


def _of_run(**options: Any) -> sa.Column[str]:
    run = sa.ForeignKey("runs.run_id", ondelete="CASCADE")
    return sa.Column("run_id", sa.Text, run, nullable=False, **options)


runs = sa.Table(
    "runs", metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    *required(sa.Text, "input", "tenant", "collection", "metadata"),
    *required(sa.Double, "created"),
)  # fmt: skip
files = sa.Table(
    "files", metadata,
    _of_run(primary_key=True),
    *required(Name, "path", primary_key=True),
    *required(sa.Text, "version"),
)  # fmt: skip
ranges = sa.Table(
    "ranges", metadata,
    sa.Column("number", sa.BigInteger, sa.Identity(), primary_key=True),
    _of_run(),
    *required(Name, "path"),
    *required(sa.BigInteger, "start", "length", "first_line"),
    *required(sa.Text, "files"),
    *required(sa.Integer, "documents"),
    *required(sa.Text, "state", default="open"),
    *required(sa.Text, "owner", default=""),
    *required(sa.Integer, "attempts", default="0"),
    *required(sa.Double, "seen", "began", default="0"),
    *required(sa.Integer, "done", "failed", default="0"),
    *required(sa.BigInteger, "chunks", "tokens", "stored", "present", "bytes", default="0"),
    *required(sa.Integer, "warned", default="0"),
    *required(sa.Text, "errors", default="[]"),
    *required(sa.Text, "warnings", default="[]"),
    sa.Index("ranges_left", "run_id", "number",
          postgresql_where=sa.text("state IN ('open', 'claimed')")),
    sa.Index("ranges_of_file", "run_id", "path"),
)  # fmt: skip


def _add_warnings(connection: sa.Connection) -> None:
    """Of ranges that were done before, nothing is said."""
    add_column(connection, "ranges", "warned", sa.Integer, "0")
    add_column(connection, "ranges", "warnings", sa.Text, "[]")


SCHEMA = Schema("bulk", metadata, "bulk_1", {"bulk_2": _add_warnings})
_members = tables.gateways.to_metadata(sa.MetaData(), schema=tables.NAMESPACE)
_there = sa.exists().where(
    _members.c.gateway_id == ranges.c.owner, _members.c.seen >= NOW - LEASE_S
)
_free = sa.or_(ranges.c.state == "open", sa.and_(ranges.c.state == "claimed", ~_there))
_COUNTS = ("done", "failed", "chunks", "tokens", "stored", "present", "bytes", "warned")


class RangeTable:
    """Thread-safe; every call blocks, and raises DatabaseUnavailable where PostgreSQL is away."""

    def __init__(self, url: str, *, connections: int = 4) -> None:
        self.database = ServiceDatabase(url, [SCHEMA], namespace=NAMESPACE, connections=connections)
        self._url = url

    def start(self) -> None:
        """Connect, and make the tables."""
        members = shared_database(self._url, connections=1)
        members.start()
        members.close()
        self.database.start()

    def close(self) -> None:
        self.database.close()

    # -- of the driver ---------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Note a run, unless it is there. What failed of it may be tried again."""
        metadata = json.dumps(run.metadata, sort_keys=True)
        row = {**asdict(run), "metadata": metadata, "created": time.time()}
        failed = sa.or_(
            ranges.c.state.in_(["open", "failed"]),
            sa.and_(ranges.c.state == "done", ranges.c.failed > 0),
        )
        with self.database.write() as write:
            upsert(write, runs, [row], replace=False)
            write.execute(_reopened(run.run_id).where(failed))

    def again(self, run_id: str) -> None:
        """Have all ranges done again, e.g. because a tier has lost its content."""
        with self.database.write() as write:
            write.execute(_reopened(run_id).where(ranges.c.state.in_(["done", "failed"])))

    def versions(self, run_id: str) -> dict[str, str]:
        """Return the versions of the files that were cut."""
        query = sa.select(files.c.path, files.c.version).where(files.c.run_id == run_id)
        with self.database.read() as read:
            return {path: version for path, version in read.execute(query)}

    def add(self, run_id: str, versions: dict[str, str], cut: Sequence[Range]) -> None:
        """Add the ranges of files, in place of those of their earlier versions; all or nothing."""
        names = ("path", "start", "length", "first_line", "documents")
        rows = [
            {"run_id": run_id, "files": json.dumps(each.files)}
            | {name: getattr(each, name) for name in names}
            for each in cut
        ]
        before = ranges.c.run_id == run_id, among(ranges.c.path, versions)
        with self.database.write() as write:
            write.execute(ranges.delete().where(*before))
            upsert(write, files, [{"run_id": run_id, "path": path, "version": version}
                                  for path, version in versions.items()])  # fmt: skip
            if rows:
                write.execute(ranges.insert(), rows)

    def free(self, run_id: str) -> list[int]:
        """Return the numbers of the ranges that can be taken now."""
        query = sa.select(ranges.c.number).where(ranges.c.run_id == run_id, _free)
        with self.database.read() as read:
            return list(read.scalars(query.order_by(ranges.c.number)))

    # -- of the workers --------------------------------------------------------------------------

    def claim(self, number: int, owner: str) -> Range | None:
        """Take a range; None if it is done, or another's."""
        query = sa.select(ranges).where(ranges.c.number == number, _free)
        taken = {
            **dict.fromkeys(_COUNTS, 0),
            "state": "claimed",
            "owner": owner,
            "seen": NOW,
            "began": NOW,
            "attempts": ranges.c.attempts + 1,
            "errors": "[]",
            "warnings": "[]",
        }
        with self.database.write() as write:
            row = write.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            if row.attempts >= MAX_ATTEMPTS:
                message = f"given up after {MAX_ATTEMPTS} attempts, in which its worker died"
                _end(write, number, "failed", message)
                return None
            write.execute(ranges.update().where(ranges.c.number == number).values(taken))
            return _range(row)

    def note_progress(self, number: int, owner: str, counts: Counts) -> bool:
        """Write how far a range is; False if it is another's by now."""
        return self._write(number, owner, counts, "claimed")

    def finish(self, number: int, owner: str, counts: Counts) -> bool:
        """Note that a range is done; False if it is another's by now."""
        return self._write(number, owner, counts, "done")

    def give_back(self, number: int, owner: str, reason: str) -> None:
        """Let others take a range that could not be done now."""
        query = sa.select(ranges.c.attempts).where(*_claimed(number, owner))
        with self.database.write() as write:
            attempts = write.scalar(query.with_for_update())
            if attempts is not None:
                _end(write, number, "failed" if attempts >= MAX_ATTEMPTS else "open", reason)

    def _write(self, number: int, owner: str, counts: Counts, state: str) -> bool:
        values: dict[str, Any] = {name: getattr(counts, name) for name in _COUNTS}
        values |= {"state": state, "seen": NOW}
        values |= {"errors": json.dumps(counts.errors), "warnings": json.dumps(counts.warnings)}
        with self.database.write() as write:
            own = ranges.update().where(*_claimed(number, owner))
            return write.execute(own.values(values)).rowcount == 1

    # -- for people ------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Return all runs, newest first."""
        with self.database.read() as read:
            rows = read.execute(sa.select(runs).order_by(runs.c.created.desc())).mappings()
            return [Run(**{**row, "metadata": json.loads(row["metadata"])}) for row in rows]

    def progress(self, run: Run) -> Progress:
        """Return how far a run is."""
        # Of bigints the sum is a decimal number.
        sums = [
            sa.cast(sa.func.coalesce(sa.func.sum(ranges.c[name]), 0), sa.BigInteger).label(name)
            for name in ("documents", *_COUNTS)
        ]
        own = ranges.c.run_id == run.run_id
        worked_on = sa.func.count(ranges.c.owner.distinct()).filter(
            sa.and_(ranges.c.state == "claimed", _there)
        )
        lately = own, ranges.c.began > 0, ranges.c.seen > NOW - RATE_S
        seconds = (sa.func.max(ranges.c.seen) - sa.func.min(ranges.c.began)).label("seconds")
        with self.database.read() as read:
            states = sa.select(ranges.c.state, sa.func.count()).where(own).group_by(ranges.c.state)
            counts = {state: count for state, count in read.execute(states)}
            total = read.execute(sa.select(*sums).where(own)).one()
            query = sa.select(seconds, worked_on.label("workers"), *sums).where(*lately)
            recent = read.execute(query).one()
        chunk_rate = token_rate = eta = None
        if recent.seconds and recent.seconds > 0 and recent.chunks:
            chunk_rate = recent.chunks / recent.seconds
            token_rate = recent.tokens / recent.seconds
            left = total.documents - total.done - total.failed
            worked = recent.done + recent.failed
            eta = left * recent.seconds / worked if worked and recent.workers else None
        return Progress(
            run=run,
            ranges=counts,
            workers=recent.workers,
            chunks_per_s=chunk_rate,
            tokens_per_s=token_rate,
            eta_s=eta,
            **total._mapping,
        )

    def errors(self, run_id: str, limit: int = 100) -> list[dict[str, str]]:
        """Return the first errors of documents, or of ranges ("")."""
        return self._said(ranges.c.errors, run_id, limit)

    def warnings(self, run_id: str, limit: int = 100) -> list[dict[str, str]]:
        """Return the first documents that are stored in part, and what of them is missing."""
        return self._said(ranges.c.warnings, run_id, limit)

    def _said(self, column: sa.Column[str], run_id: str, limit: int) -> list[dict[str, str]]:
        query = sa.select(column).where(ranges.c.run_id == run_id, column != "[]")
        with self.database.read() as read:
            lists = read.scalars(query.order_by(ranges.c.number).limit(limit)).all()
        found = [each for said in lists for each in json.loads(said)]
        return [{"doc_id": doc_id, "message": message} for doc_id, message in found[:limit]]


def _reopened(run_id: str) -> Any:
    return ranges.update().where(ranges.c.run_id == run_id).values(state="open", attempts=0)


def _claimed(number: int, owner: str) -> tuple[Any, ...]:
    return ranges.c.number == number, ranges.c.owner == owner, ranges.c.state == "claimed"


def _end(write: sa.Connection, number: int, state: str, error: str) -> None:
    values = {"state": state, "owner": "", "errors": json.dumps([["", error]])}
    write.execute(ranges.update().where(ranges.c.number == number).values(values))


def _range(row: sa.Row[Any]) -> Range:
    names = ("path", "start", "length", "first_line", "documents", "number")
    fields = {name: row._mapping[name] for name in names}
    return Range(**fields, files=json.loads(row.files), attempts=row.attempts + 1)
