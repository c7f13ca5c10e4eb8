"""Ledgers on both databases. A server is started once per session (once per worker under xdist),
when a test first asks for it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.budget import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    try:
        server = postgres.start()
    except postgres.Unavailable as reason:
        warnings.warn(
            f"tests on PostgreSQL are skipped: {reason}", stacklevel=1
        )  # pytest prints it, a skip alone stays silent
        pytest.skip(str(reason))
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made, on each database in turn."""
    return (
        str(tmp_path / "ledger.db")
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )


@pytest.fixture
def disk_folder() -> Iterator[Path]:
    """A folder that is not in memory: a commit waits there, so that a kill falls into it."""
    with tempfile.TemporaryDirectory(prefix="expost") as folder:
        yield Path(folder)
