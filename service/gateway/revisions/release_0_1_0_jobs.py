"""The jobs' tables of release 0.1.0, which had no revisions (retriever/sql/revisions.py)."""

revision = "jobs_0"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
