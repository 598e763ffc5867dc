"""The first tables of jobs. A new database gets the newest ones at once."""

revision = "jobs_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
