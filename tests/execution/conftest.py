"""Fixtures of the budget's tests that checkpoints need, too."""

from tests.budget.conftest import fast_folder, postgres_server, postgres_url, url

__all__ = ["fast_folder", "postgres_server", "postgres_url", "url"]
