"""The tables of the audit log: in a file of their own, or in the database that gateways share."""

from __future__ import annotations

import sqlalchemy as sa

from retriever.sql.expressions import Number, required
from retriever.sql.revisions import Schema

_metadata = sa.MetaData()
audit_entries = sa.Table(
    "audit_entries", _metadata,
    *required(sa.Text, "tenant", primary_key=True),
    *required(Number, "number", primary_key=True, autoincrement=False),
    *required(sa.Text, "at", "action", "entry", "hash"),
)  # fmt: skip
audit_heads = sa.Table(
    "audit_heads", _metadata,
    *required(sa.Text, "tenant", primary_key=True),
    *required(Number, "number"),
    *required(sa.Text, "hash"),
)  # fmt: skip
AUDIT = Schema("audit", _metadata, "audit_1")
