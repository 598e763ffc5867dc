"""The first tables of bulk. A new database gets the newest ones at once."""

revision = "bulk_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
