"""Where a ledger is: a file name or a database URL, parsed and checked.

A URL may hold a password, so no message repeats it. Tests: ``tests/fuzz/test_ledger_urls.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from expost.errors import LedgerError, MissingExtra

_SCHEME = re.compile(r"(postgres|sqlite)\w*(\+\w+)?:|[^/]*:.*@", re.IGNORECASE | re.DOTALL)
_DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")


class Location:
    """The place of a ledger.

    Parameters
    ----------
    url : str or Path
        A file name, ``sqlite:///file`` or ``postgresql://user@host/database``.

    Raises
    ------
    LedgerError
        The URL is not valid or names an unsupported database.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.sql = _sqlalchemy()
        try:
            self.url = _parse(self.sql, url)
        except (self.sql.exc.ArgumentError, ValueError):
            # The URL may hold a password, so the message does not repeat it.
            raise LedgerError(
                "this is not a database URL; give a file name, sqlite:///file or postgresql://…"
            ) from None
        self.backend: str = self.url.get_backend_name()
        if self.backend not in ("sqlite", "postgresql"):
            raise LedgerError(
                f"{self.backend} databases are not supported; "
                "give a file name, sqlite:///file or postgresql://…"
            )
        if self.url.drivername not in _DRIVERS:
            raise LedgerError(
                f"{self.url.drivername} is not supported; "
                "give sqlite:///file or postgresql://…, without a driver"
            )
        if self.backend == "sqlite" and (self.url.query or self.url.host or self.url.username):
            # With uri=true SQLite would open another file than the one that was checked.
            raise LedgerError(
                "a SQLite ledger takes no host and no options after ?; "
                "give a file name or sqlite:///file"
            )
        # Fixed now, so that a later change of the working directory does not matter.
        try:
            self._folder = Path.cwd()
        except OSError:  # the working directory was removed
            self._folder = Path("/")

    @property
    def file(self) -> Path | None:
        """The SQLite file as it was given, or None for other databases."""
        if self.backend != "sqlite":
            return None
        if not self.url.database or self.url.database == ":memory:":
            raise LedgerError("a ledger in memory would not survive its process; give a file name")
        return Path(self.url.database)

    @property
    def path(self) -> Path | None:
        """The SQLite file as an absolute path, or None for other databases."""
        file = self.file
        return None if file is None else self._folder / file

    @property
    def place(self) -> str:
        """The location of the ledger, without passwords and without options, which may hold one."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    def touch(self) -> None:
        """Create the SQLite file if there is none, with access for its owner only."""
        path = self.path
        if path is None or path.exists():
            return
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise LedgerError(f"cannot create {self.file}: {error.strerror}") from None


def _sqlalchemy() -> Any:
    """The sqlalchemy package, imported at first use."""
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtra("sqlalchemy", "sql") from None
    return sqlalchemy


def _parse(sql: Any, url: str | os.PathLike[str]) -> Any:
    """A parsed database URL. A bare path means a SQLite file."""
    text = os.fspath(url)
    # A mistyped URL may hold a password, so it is not treated as a file name.
    if "\x00" in text or (_SCHEME.match(text) and "://" not in text):
        raise ValueError
    if "://" not in text:
        return sql.engine.URL.create("sqlite", database=text)
    # An unescaped @ in a password would make its second part the host, which messages show.
    if not text.isprintable() or text.partition("://")[2].partition("/")[0].count("@") > 1:
        raise ValueError
    text = text.replace("postgresql://", "postgresql+psycopg://", 1).replace(
        "postgres://", "postgresql+psycopg://", 1
    )
    return sql.engine.make_url(text)
