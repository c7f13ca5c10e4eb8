"""Prices that the processes of a server share."""

import sqlalchemy as sql
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table of prices."""
    op.create_table(
        "server_prices",
        sql.Column("key", sql.String(64), primary_key=True),
        sql.Column("outcome", sql.Text, nullable=False),
        sql.Column("created", sql.Float, nullable=False),
    )
    op.create_index("ix_server_prices_created", "server_prices", ["created"])
