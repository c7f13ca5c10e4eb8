"""Files: locks, positions and forks on every platform; secret files; whole files, texts and cells.

Locks are ``flock`` where there is one. On Windows they are ``msvcrt.locking`` on a byte far behind
the content; there every lock excludes all others, so readers wait for one another.
Tests: ``tests/test_portability.py``, ``tests/budget/test_signing.py``,
``tests/cli/test_odd_files.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput

fcntl: Any = None
msvcrt: Any = None
try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

_LOCKED_AT = 2**40  # a byte that no file here has, and that SQLite does not lock
_LOOK_AGAIN = 0.01  # seconds between two looks at a lock of msvcrt
_position = threading.Lock()
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")


def lock_file(descriptor: int, *, alone: bool = True, wait: bool = False) -> None:
    """Lock an open file until it is unlocked or closed; BlockingIOError if it may not wait.

    ``alone`` False shares the lock with others who share it.
    """
    if fcntl is not None:
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        return
    while True:
        try:
            _lock_byte(descriptor, msvcrt.LK_NBLCK)
            return
        except OSError as error:
            if not wait:
                raise BlockingIOError(error.errno, "the file is locked") from None
        time.sleep(_LOOK_AGAIN)


def unlock_file(descriptor: int) -> None:
    """Give up the lock of an open file."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    else:
        _lock_byte(descriptor, msvcrt.LK_UNLCK)


def _lock_byte(descriptor: int, mode: int) -> None:
    """Lock or unlock the byte at ``_LOCKED_AT``; ``msvcrt`` counts from the current position."""
    with _position:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Read bytes at an offset; the position of the descriptor does not matter."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, offset)
    with _position:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, count)


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Write bytes at an offset; the position of the descriptor does not matter."""
    if hasattr(os, "pwrite"):
        os.pwrite(descriptor, content, offset)
        return
    with _position:
        os.lseek(descriptor, offset, os.SEEK_SET)
        os.write(descriptor, content)


def spreadsheet_cell(value: Any) -> Any:
    """Return a cell of a table; a text that a spreadsheet would compute gets an apostrophe.

    Numbers written as texts stay as they are.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULAS) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def on_fork(**callbacks: Callable[[], object]) -> None:
    """Call functions around forks, as ``os.register_at_fork``; some systems have no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**callbacks)


def require_private(path: Path, field: str) -> None:
    """Refuse a file that others than its owner can read or write.

    Whoever could read the file may have the secret already, so it is not used until its owner says
    that it may be.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 and os.name == "posix":  # elsewhere a mode does not say who has access
        raise InvalidInput(
            field,
            str(path),
            f"others can read or write it (its mode is {mode:03o}). If nobody has used that, run: "
            f"chmod 600 {shlex.quote(str(path))}; otherwise make a new one",
        )


_MOST = 2**26  # bytes


def read_small(path: str | Path, field: str, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most 64 MiB.

    Reading a device or a pipe may never end, and may take all memory.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidInput(field, str(path), "it is a device or a pipe; give a file")
    with path.open("rb") as stream:
        content = stream.read(_MOST + 1)
    if len(content) > _MOST:
        raise InvalidInput(field, str(path), f"it is larger than {_MOST >> 20} MiB; give another")
    return content.decode(encoding)


DUCKDB, SQLITE = (".duckdb", ".ddb"), (".sqlite", ".sqlite3", ".db")
"""Endings of files that hold a database."""


def is_database(name: Any) -> bool:
    """Return whether a name is a connection URL or a database file."""
    text = str(name).lower()
    return isinstance(name, (str, Path)) and ("://" in text or text.endswith((*DUCKDB, *SQLITE)))


_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical(content: Any) -> str:
    """Return a JSON document as canonical text: sorted keys, no spaces, ASCII only."""
    return _CANONICAL.encode(content)
