"""Keys have groups. Those that were made before read everything of their tenant, as they did."""

import sqlalchemy as sa
from alembic import op

revision = "keys_2"
down_revision = "keys_1"


def upgrade() -> None:
    """Add the column."""
    op.add_column("keys", sa.Column("groups", sa.Text, nullable=False, server_default="*"))
