"""What people are told by webhook and mail."""

import sqlalchemy as sql
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table of notices."""
    op.create_table(
        "server_notices",
        sql.Column("request", sql.String(32), primary_key=True),
        sql.Column("event", sql.String(32), primary_key=True),
        sql.Column("channel", sql.String(16), primary_key=True),
        sql.Column("due", sql.Float, nullable=False),
        sql.Column("tries", sql.Integer, nullable=False),
        sql.Column("sent", sql.Boolean, nullable=False),
    )
    op.create_index("server_notices_due", "server_notices", ["sent", "due"])
