"""Documents have reading groups; a chunk's prefix knows whether it is stored, and of how few."""

import sqlalchemy as sa
from alembic import op

from retriever.sql.expressions import Name

revision = "catalog_2"
down_revision = "catalog_1"


def upgrade() -> None:
    """Prefixes that were chosen are taken to be stored; empty ones are looked at again."""
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
