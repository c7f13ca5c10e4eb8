"""Imported first, it hides what Windows does not have: ``fcntl``, forks, ``pread`` and others.

``msvcrt.locking`` is imitated by ``flock``: it excludes every other descriptor, and does not wait.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import types

HIDDEN = (
    *("register_at_fork", "fork", "pread", "pwrite", "fdatasync", "statvfs", "geteuid"),
    *("O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY"),
)


def locking(descriptor: int, mode: int, count: int) -> None:
    """Lock or unlock one byte at the current position; positions must agree."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    assert (position, count) == (2**40, 1)
    kind = fcntl.LOCK_UN if mode == msvcrt.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        raise OSError(errno.EACCES, "Permission denied") from None


msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.LK_UNLCK, msvcrt.locking = 2, 0, locking  # type: ignore[attr-defined]


def hide() -> None:
    """Hide the names from every import that follows."""
    import sqlite3  # noqa: F401 - the standard library may use what is hidden here
    import subprocess  # noqa: F401

    import numpy  # noqa: F401

    sys.modules["fcntl"] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = msvcrt
    for name in HIDDEN:
        delattr(os, name)
