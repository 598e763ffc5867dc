"""The first tables of keys. A new database gets the newest ones at once."""

revision = "keys_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
