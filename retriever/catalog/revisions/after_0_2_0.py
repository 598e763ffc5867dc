"""What is new since release 0.2.0: reading groups, what is known of prefixes, whose words chunks
have.

Prefixes that were chosen are taken to be stored, and empty ones are looked at again. Words of
earlier releases are of no revision of the analyser, and are made anew while they are searched.
"""

import sqlalchemy as sa
from alembic import op

from retriever.sql.expressions import Name

revision = "catalog_4"
down_revision = "catalog_1"


def upgrade() -> None:
    """Add columns and indexes."""
    for table in ("documents", "primers"):
        op.add_column(table, sa.Column("readers", Name, nullable=False, server_default=""))
    op.create_index("documents_by_readers", "documents", ["scope_id", "readers"])
    for column, before in (("made", "1"), ("few_of", "0")):
        added = sa.Column(column, sa.Integer, nullable=False, server_default=before)
        op.add_column("accompanied", added)
    few = sa.text("few_of > 0")
    op.create_index(
        "accompanied_few", "accompanied", ["few_of"], sqlite_where=few, postgresql_where=few
    )
    op.execute(
        "UPDATE accompanied SET few_of = 1 WHERE NOT EXISTS (SELECT 1 FROM companions "
        "WHERE companions.chunk_id = accompanied.chunk_id)"
    )
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("chunk_words", _text("analyser"))
        return
    for name in ("analyser", "old_words"):
        op.add_column("scopes", _text(name))
    op.execute("UPDATE scopes SET old_words = 'sparse_' || scope_id")


def _text(column: str) -> sa.Column[str]:
    return sa.Column(column, sa.Text, nullable=False, server_default="")
