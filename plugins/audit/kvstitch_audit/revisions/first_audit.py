"""The first tables of the audit log. A new database gets the newest ones at once."""

revision = "audit_1"
down_revision = None


def upgrade() -> None:
    """There is nothing before it."""
