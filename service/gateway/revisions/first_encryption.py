"""The first tables of the keys of tenants. A new database gets the newest ones at once."""

revision = "encryption_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
