"""Fixtures of the budget's tests that checkpoints need, too."""

from tests.budget.conftest import postgres_server, postgres_url, url

__all__ = ["postgres_server", "postgres_url", "url"]
