"""The keys of release 0.2.0, the first with revisions. A new database gets the newest at once."""

import sqlalchemy as sa
from alembic import op

revision = "keys_1"
down_revision = "keys_0"


def upgrade() -> None:
    """No key of release 0.1.0 is bound to an adapter."""
    op.add_column("keys", sa.Column("adapter", sa.Text, nullable=False, server_default=""))
