"""The first tables. A new database gets the newest ones at once (retriever/sql/revisions.py)."""

revision = "catalog_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
