"""Files that hold a secret: signing keys, tokens, the key of a proxy.

Tests: ``tests/budget/test_signing.py``, ``tests/server/test_client.py``.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

from expost.errors import InvalidInput


def require_private(path: Path, field: str) -> None:
    """Refuse a file that others than its owner can read or write.

    Whoever could read the file may have the secret already, so it is not used until its owner says
    that it may be.

    Parameters
    ----------
    path : Path
        The file.
    field : str
        What the error names as refused.

    Raises
    ------
    InvalidInput
        Others have access. The message names the file, its mode and the command that mends it.
    OSError
        The file is not there.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise InvalidInput(
            field,
            str(path),
            f"others can read or write it (its mode is {mode:03o}). If nobody has used that, run: "
            f"chmod 600 {shlex.quote(str(path))}; otherwise make a new one",
        )
