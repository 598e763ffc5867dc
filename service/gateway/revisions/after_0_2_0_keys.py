"""What is new since release 0.2.0: groups. Earlier keys read everything of their tenant still."""

import sqlalchemy as sa
from alembic import op

revision = "keys_3"
down_revision = "keys_1"


def upgrade() -> None:
    """Add the column."""
    op.add_column("keys", sa.Column("groups", sa.Text, nullable=False, server_default="*"))
