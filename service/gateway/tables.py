"""The tables of a gateway: all but the catalog's.

They are in jobs.sqlite3 and keys.sqlite3, or together in one schema of PostgreSQL, which several
gateways share. Only that has:

    documents.owner   the gateway that works on it; '': anybody may take it
    jobs.owner        the gateway that it is sent to, until it is accepted
    gateways          the members, each with its last sign of life (documents/membership.py)
    confirmations     which of them have made a purge
    secrets           what all of them have to know

Only a file has names of other files: large content is in the folder of spooled uploads, where no
other gateway could read it. Whatever makes a row forget its file, also the end of its job, leaves
the name in `freed_files` until the file is removed. `events` is what is owed to the webhook.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)

from retriever.sql.expressions import Name, Number, required
from retriever.sql.revisions import POSTGRESQL_ONLY, SQLITE_ONLY, Schema

NAMESPACE = "kvstitch_service"

metadata = MetaData()
_keys = MetaData()  # a file of its own


_owner = partial(required, Text, "owner", default="", info=POSTGRESQL_ONLY)
jobs = Table(
    "jobs", metadata,
    Column("job_id", Text, primary_key=True),
    Column("number", Number, Identity(), nullable=False, unique=True),
    *required(Text, "tenant", "state"),
    *required(Integer, "cancelled", default="0"),
    Column("idempotency_key", Text),
    Column("digest", LargeBinary),
    *required(Double, "created", "updated"),
    *_owner(),
    UniqueConstraint("tenant", "idempotency_key"),
    Index("jobs_by_state", "state"),
)  # fmt: skip
_OPEN = text("state IN ('pending', 'indexed')")
documents = Table(
    "documents", metadata,
    Column("number", Number, Identity(), primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    *required(Text, "collection"),
    *required(Name, "doc_id"),
    *required(Integer, "bytes"),
    Column("kind", Text),
    Column("meta", Text),
    Column("content", LargeBinary),
    *required(Text, "state"),
    Column("change", Text),
    *required(Integer, "chunks", default="0"),
    Column("error", Text),
    *required(Integer, "tokens", default="0"),
    Column("spooled", Text),
    *_owner(),
    Index("documents_of_job", "job_id"),
    Index("documents_open", "state", "number", sqlite_where=_OPEN, postgresql_where=_OPEN),
    # By which a gateway sees whether an earlier revision is to be indexed by another.
    Index("documents_waiting", "doc_id", "collection",
          postgresql_where=text("state = 'pending'")).ddl_if(dialect="postgresql"),
    sqlite_autoincrement=True,
)  # fmt: skip
# Of the documents that are indexed, by which tenants' quotas are counted.
sizes = Table(
    "sizes", metadata,
    *required(Text, "tenant", "collection", "doc_id", primary_key=True),
    *required(Integer, "bytes"),
    sqlite_with_rowid=False,
)  # fmt: skip
purges = Table(
    "purges", metadata,
    Column("number", Number, Identity(), primary_key=True),
    Column("receipt_id", Text),
    *required(Text, "tenant", "collection", "doc_id"),
    *required(Number, "chunk_id"),
    *required(Text, "ids"),
    *required(Text, "copies", default="[]"),
    Index("purges_of_receipt", "receipt_id"),
    sqlite_autoincrement=True,
)  # fmt: skip
confirmations = Table(
    "confirmations", metadata,
    Column("number", BigInteger, ForeignKey("purges.number", ondelete="CASCADE"),
           primary_key=True),
    *required(Text, "gateway_id", primary_key=True),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
contents = Table(
    "contents", metadata,
    Column("chunk_id", Number, primary_key=True, autoincrement=False),
    *required(LargeBinary, "digest"),
    Index("contents_by_digest", "digest"),
)  # fmt: skip
receipts = Table(
    "receipts", metadata,
    Column("receipt_id", Text, primary_key=True),
    *required(Text, "tenant", "collection", "doc_ids"),
    *required(Integer, "documents", "chunks"),
    *required(Text, "kv", "unreached"),
    *required(Double, "created"),
    Column("completed", Double),
)  # fmt: skip
events = Table(
    "events", metadata,
    Column("event_id", Text, primary_key=True),
    *required(LargeBinary, "body"),
    *required(Integer, "attempts"),
    *required(Double, "created", "due"),
)  # fmt: skip
freed_files = Table(
    "freed_files", metadata,
    Column("name", Text, primary_key=True),
    sqlite_with_rowid=False,
    info=SQLITE_ONLY,
)  # fmt: skip
gateways = Table(
    "gateways", metadata,
    Column("gateway_id", Text, primary_key=True),
    *required(Text, "name"),
    *required(Integer, "keeps_kv"),
    *required(Double, "seen"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
secrets = Table(
    "secrets", metadata,
    Column("name", Text, primary_key=True),
    *required(Text, "value"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
keys = Table(
    "keys", _keys,
    Column("key_id", Text, primary_key=True),
    *required(LargeBinary, "secret_sha256"),
    *required(Text, "name", "tenant", "scopes"),
    *required(Double, "created"),
    Column("expires", Double),
    Column("revoked", Double),
    *(Column(limit, BigInteger)
      for limit in ("documents", "bytes", "requests_per_minute", "tokens_per_minute")),
    *required(Text, "adapter", default=""),
)  # fmt: skip

# In one folder, because PostgreSQL has both.
_REVISIONS = Path(__file__).with_name("revisions")
JOBS = Schema("jobs", metadata, "jobs_1", _REVISIONS)
KEYS = Schema("keys", _keys, "keys_1", _REVISIONS)


@event.listens_for(metadata, "after_create")
def _create_triggers(target: MetaData, connection: Connection, **_: object) -> None:
    if connection.dialect.name == "sqlite":
        for name, when in (
            ("freed_by_update", "UPDATE OF spooled ON documents "
                                "WHEN OLD.spooled IS NOT NULL AND NEW.spooled IS NULL"),
            ("freed_by_delete", "DELETE ON documents WHEN OLD.spooled IS NOT NULL"),
        ):  # fmt: skip
            connection.exec_driver_sql(
                f"CREATE TRIGGER {name} AFTER {when} "
                "BEGIN INSERT OR IGNORE INTO freed_files VALUES (OLD.spooled); END"
            )
