"""What is new since release 0.2.0: warnings and readers of documents; nothing is owed to a webhook.

What was stored before is everybody's, was sent by somebody who could read everything, and nothing
is known of what its text lacks.
"""

import sqlalchemy as sa
from alembic import op

revision = "jobs_5"
down_revision = "jobs_1"


def upgrade() -> None:
    """Add the columns, and drop the events that were to be delivered."""
    for table, name, kind, default in (
        ("documents", "warnings", sa.Text, "[]"),
        ("sizes", "warnings", sa.Text, "[]"),
        ("jobs", "view", sa.Text, "*"),
        ("jobs", "readers", sa.Text, "[]"),
        ("receipts", "readers", sa.Text, "[]"),
        ("purges", "prompts", sa.Integer, "0"),
    ):
        op.add_column(table, sa.Column(name, kind, nullable=False, server_default=default))
    op.execute("DROP TABLE events")
