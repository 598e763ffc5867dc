"""Nothing is owed to a webhook any more."""

from alembic import op

revision = "jobs_4"
down_revision = "jobs_3"


def upgrade() -> None:
    """Drop the events that were to be delivered."""
    op.execute("DROP TABLE IF EXISTS events")
