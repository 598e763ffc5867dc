"""Documents have warnings: what of their file is not in their text, or may be wrong there."""

import sqlalchemy as sa
from alembic import op

revision = "jobs_2"
down_revision = "jobs_1"


def upgrade() -> None:
    """Of documents that were stored before nothing is known."""
    for table in ("documents", "sizes"):
        added = sa.Column("warnings", sa.Text, nullable=False, server_default="[]")
        op.add_column(table, added)
