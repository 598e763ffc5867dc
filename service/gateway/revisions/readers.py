"""Documents have readers: jobs know who sent them and for whom, receipts whose documents they name.

What was stored before is everybody's, and was sent by somebody who could read everything.
"""

import sqlalchemy as sa
from alembic import op

revision = "jobs_3"
down_revision = "jobs_2"


def upgrade() -> None:
    """Add the columns."""
    for table, name, kind, default in (
        ("jobs", "view", sa.Text, "*"),
        ("jobs", "readers", sa.Text, "[]"),
        ("receipts", "readers", sa.Text, "[]"),
        ("purges", "prompts", sa.Integer, "0"),
    ):
        op.add_column(table, sa.Column(name, kind, nullable=False, server_default=default))
