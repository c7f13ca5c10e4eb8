"""A PostgreSQL server for the tests of the server, as for those of the ledger."""

from __future__ import annotations

from tests.budget.conftest import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
