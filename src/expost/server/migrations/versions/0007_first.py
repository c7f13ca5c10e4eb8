"""The first schema of a release: new databases get it from ``database.metadata``."""

revision = "0007"
down_revision = None
