"""Ranges tell how many of their documents are stored in part, and what is missing."""

import sqlalchemy as sa
from alembic import op

revision = "bulk_2"
down_revision = "bulk_1"


def upgrade() -> None:
    """Of ranges that were done before, nothing is said."""
    op.add_column("ranges", sa.Column("warned", sa.Integer, nullable=False, server_default="0"))
    op.add_column("ranges", sa.Column("warnings", sa.Text, nullable=False, server_default="[]"))
