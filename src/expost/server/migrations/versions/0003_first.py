"""The first schema that is migrated; its tables were made without alembic."""

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database without a version has these tables already."""
