"""Which revision of the analyser has made the words of chunks."""

import sqlalchemy as sa
from alembic import op

revision = "catalog_3"
down_revision = "catalog_2"


def upgrade() -> None:
    """Words of earlier releases are of no revision, and made anew while they are searched."""
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("chunk_words", _name("analyser"))
        return
    for name in ("analyser", "old_words"):
        op.add_column("scopes", _name(name))
    op.execute("UPDATE scopes SET old_words = 'sparse_' || scope_id")


def _name(column: str) -> sa.Column[str]:
    return sa.Column(column, sa.Text, nullable=False, server_default="")
