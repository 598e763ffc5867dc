"""The tables of a gateway: all but the catalog's.

They are in jobs.sqlite3, keys.sqlite3 and, where there is encryption, encryption.sqlite3, or
together in one schema of PostgreSQL, which several gateways share. Only that has:

    documents.owner   the gateway that works on it; '': anybody may take it
    jobs.owner        the gateway that it is sent to, until it is accepted
    gateways          the members, each with its last sign of life (documents/membership.py)
    confirmations     which of them have made a purge
    secrets           what all of them have to know

Only a file has names of other files: large content is in the folder of spooled uploads, where no
other gateway could read it. Whatever makes a row forget its file, also the end of its job, leaves
the name in `freed_files` until the file is removed.

Who may read and change what (retriever/scope.py): `keys.groups` and `jobs.view` are names of views,
of a key and of who sent a job; `writes` are groups of their pens, NULL: those of the view, and
`jobs.takes` says whether that one takes; `readers` of jobs and receipts are those of their
documents, as JSON.
"""

from functools import partial

import sqlalchemy as sa

from kvstitch.retriever.sql.expressions import Name, Number, required
from kvstitch.retriever.sql.revisions import POSTGRESQL_ONLY, SQLITE_ONLY, Schema, add_column

# What makes these tables of older ones. A new database gets the newest.


def jobs_from_0_2_0(connection: sa.Connection) -> None:
    """New are warnings and readers of documents; nothing is owed to a webhook.

    What was stored before is everybody's, was sent by somebody who could read everything, and
    nothing is known of what its text lacks.
    """
    for table, name, kind, default in (
        ("documents", "warnings", sa.Text, "[]"),
        ("sizes", "warnings", sa.Text, "[]"),
        ("jobs", "view", sa.Text, "*"),
        ("jobs", "readers", sa.Text, "[]"),
        ("receipts", "readers", sa.Text, "[]"),
        ("purges", "prompts", sa.Integer, "0"),
    ):
        add_column(connection, table, name, kind, default)
    connection.exec_driver_sql("DROP TABLE events")


def jobs_without_sources(connection: sa.Connection) -> None:
    """Where a document came from is known of those that are ingested from now on."""
    for name in ("source", "sha256"):
        add_column(connection, "sizes", name, sa.Text, "")
    connection.exec_driver_sql("CREATE INDEX sizes_by_source ON sizes (source)")


def jobs_without_pens(connection: sa.Connection) -> None:
    """Who sent earlier jobs could change what they could read."""
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN writes TEXT")
    add_column(connection, "jobs", "takes", sa.Integer, "1")
    add_column(connection, "jobs", "sender", sa.Text, "")
    connection.exec_driver_sql("CREATE INDEX jobs_by_sender ON jobs (tenant, sender)")


def jobs_without_receipts_senders(connection: sa.Connection) -> None:
    """Earlier receipts are of nobody's key."""
    add_column(connection, "receipts", "sender", sa.Text, "")
    connection.exec_driver_sql("CREATE INDEX receipts_by_sender ON receipts (tenant, sender)")


def keys_from_0_2_0(connection: sa.Connection) -> None:
    """New are groups. Earlier keys read everything of their tenant still."""
    add_column(connection, "keys", "groups", sa.Text, "*")


def keys_without_pens(connection: sa.Connection) -> None:
    """Earlier keys write for the groups that they read of; those of all groups still take readers
    away."""
    connection.exec_driver_sql("ALTER TABLE keys ADD COLUMN writes TEXT")
    all_groups = keys.c.groups == "*", keys.c.scopes.contains("ingest")
    connection.execute(keys.update().where(*all_groups).values(scopes=keys.c.scopes + " share"))


NAMESPACE = "kvstitch_service"

metadata = sa.MetaData()
_keys, _encryption = sa.MetaData(), sa.MetaData()  # files of their own


_owner = partial(required, sa.Text, "owner", default="", info=POSTGRESQL_ONLY)
jobs = sa.Table(
    "jobs", metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("number", Number, sa.Identity(), nullable=False, unique=True),
    *required(sa.Text, "tenant", "state"),
    *required(sa.Integer, "cancelled", default="0"),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("digest", sa.LargeBinary),
    *required(sa.Double, "created", "updated"),
    *required(sa.Text, "view", default="*"),
    *required(sa.Text, "readers", default="[]"),
    sa.Column("writes", sa.Text),
    *required(sa.Integer, "takes", default="1"),
    *required(sa.Text, "sender", default=""),
    *_owner(),
    sa.UniqueConstraint("tenant", "idempotency_key"),
    sa.Index("jobs_by_state", "state"),
    sa.Index("jobs_by_sender", "tenant", "sender"),
)  # fmt: skip
_OPEN = sa.text("state IN ('pending', 'indexed')")
documents = sa.Table(
    "documents", metadata,
    sa.Column("number", Number, sa.Identity(), primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    *required(sa.Text, "collection"),
    *required(Name, "doc_id"),
    *required(sa.Integer, "bytes"),
    sa.Column("kind", sa.Text),
    sa.Column("meta", sa.Text),
    sa.Column("content", sa.LargeBinary),
    *required(sa.Text, "state"),
    sa.Column("change", sa.Text),
    *required(sa.Integer, "chunks", default="0"),
    sa.Column("error", sa.Text),
    *required(sa.Integer, "tokens", default="0"),
    sa.Column("spooled", sa.Text),
    *required(sa.Text, "warnings", default="[]"),
    *_owner(),
    sa.Index("documents_of_job", "job_id"),
    sa.Index("documents_open", "state", "number", sqlite_where=_OPEN, postgresql_where=_OPEN),
    # By which a gateway sees whether an earlier revision is to be indexed by another.
    sa.Index("documents_waiting", "doc_id", "collection",
          postgresql_where=sa.text("state = 'pending'")).ddl_if(dialect="postgresql"),
    sqlite_autoincrement=True,
)  # fmt: skip
# Of the documents that are indexed: their bytes, by which tenants' quotas are counted, and what is
# not in their text or may be wrong there, as JSON; where they came from, and what of.
sizes = sa.Table(
    "sizes", metadata,
    *required(sa.Text, "tenant", "collection", "doc_id", primary_key=True),
    *required(sa.Integer, "bytes"),
    *required(sa.Text, "warnings", default="[]"),
    *required(sa.Text, "source", "sha256", default=""),
    sa.Index("sizes_by_source", "source"),
    sqlite_with_rowid=False,
)  # fmt: skip
purges = sa.Table(
    "purges", metadata,
    sa.Column("number", Number, sa.Identity(), primary_key=True),
    sa.Column("receipt_id", sa.Text),
    *required(sa.Text, "tenant", "collection", "doc_id"),
    *required(Number, "chunk_id"),
    *required(sa.Text, "ids"),
    *required(sa.Text, "copies", default="[]"),
    *required(sa.Integer, "prompts", default="0"),
    sa.Index("purges_of_receipt", "receipt_id"),
    sqlite_autoincrement=True,
)  # fmt: skip
confirmations = sa.Table(
    "confirmations", metadata,
    sa.Column("number", sa.BigInteger, sa.ForeignKey("purges.number", ondelete="CASCADE"),
           primary_key=True),
    *required(sa.Text, "gateway_id", primary_key=True),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
contents = sa.Table(
    "contents", metadata,
    sa.Column("chunk_id", Number, primary_key=True, autoincrement=False),
    *required(sa.LargeBinary, "digest"),
    sa.Index("contents_by_digest", "digest"),
)  # fmt: skip
receipts = sa.Table(
    "receipts", metadata,
    sa.Column("receipt_id", sa.Text, primary_key=True),
    *required(sa.Text, "tenant", "collection", "doc_ids"),
    *required(sa.Integer, "documents", "chunks"),
    *required(sa.Text, "kv", "unreached"),
    *required(sa.Double, "created"),
    sa.Column("completed", sa.Double),
    *required(sa.Text, "readers", default="[]"),
    *required(sa.Text, "sender", default=""),
    sa.Index("receipts_by_sender", "tenant", "sender"),
)  # fmt: skip
freed_files = sa.Table(
    "freed_files", metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sqlite_with_rowid=False,
    info=SQLITE_ONLY,
)  # fmt: skip
gateways = sa.Table(
    "gateways", metadata,
    sa.Column("gateway_id", sa.Text, primary_key=True),
    *required(sa.Text, "name"),
    *required(sa.Integer, "keeps_kv"),
    *required(sa.Double, "seen"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
secrets = sa.Table(
    "secrets", metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *required(sa.Text, "value"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
keys = sa.Table(
    "keys", _keys,
    sa.Column("key_id", sa.Text, primary_key=True),
    *required(sa.LargeBinary, "secret_sha256"),
    *required(sa.Text, "name", "tenant", "scopes"),
    *required(sa.Double, "created"),
    sa.Column("expires", sa.Double),
    sa.Column("revoked", sa.Double),
    *(sa.Column(limit, sa.BigInteger)
      for limit in ("documents", "bytes", "requests_per_minute", "tokens_per_minute")),
    *required(sa.Text, "adapter", default=""),
    *required(sa.Text, "groups", default="*"),
    sa.Column("writes", sa.Text),
)  # fmt: skip

# Wrapped by the master key (encryption/tenant_keys.py).
tenant_keys = sa.Table(
    "tenant_keys", _encryption,
    sa.Column("key_id", sa.Text, primary_key=True),
    *required(Number, "number"),
    *required(sa.Text, "tenant", "purpose"),
    *required(sa.Double, "created"),
    *required(sa.LargeBinary, "wrapped"),
)  # fmt: skip

_JOBS = {"jobs_5": jobs_from_0_2_0, "jobs_6": jobs_without_sources, "jobs_7": jobs_without_pens,
         "jobs_8": jobs_without_receipts_senders}  # fmt: skip
JOBS = Schema("jobs", metadata, "jobs_1", _JOBS)
KEYS = Schema("keys", _keys, "keys_1", {"keys_3": keys_from_0_2_0, "keys_4": keys_without_pens})
ENCRYPTION = Schema("encryption", _encryption, "encryption_1")


@sa.event.listens_for(metadata, "after_create")
def _create_triggers(target: sa.MetaData, connection: sa.Connection, **_: object) -> None:
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
