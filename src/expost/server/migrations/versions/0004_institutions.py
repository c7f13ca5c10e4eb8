"""The version stands in the table of alembic; people have profiles, requests have approvals."""

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables; a database of an unreleased version may have them."""
    op.execute("DELETE FROM server_facts WHERE name = 'schema'")
    op.create_table(
        "server_profiles",
        sql.Column("person", sql.String(64), primary_key=True),
        sql.Column("mail", sql.String(254), nullable=False),
        sql.Column("groups", sql.Text, nullable=False),
        sql.Column("subject", sql.String(600), nullable=True, unique=True),
        if_not_exists=True,
    )
    op.create_table(
        "server_approvals",
        sql.Column("request", sql.String(32), primary_key=True),
        sql.Column("expires", sql.Float, nullable=False),
        sql.Column("approved", sql.Boolean, nullable=True),
        sql.Column("by", sql.String(64), nullable=True),
        sql.Column("reason", sql.Text, nullable=True),
        sql.Column("decided", sql.Float, nullable=True),
        if_not_exists=True,
    )
