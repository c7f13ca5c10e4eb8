"""Files that are read as a whole: keys, signed heads, certificates, lists of groups, jobs.

Tests: ``tests/cli/test_odd_files.py``.
"""

from __future__ import annotations

from pathlib import Path

from expost.errors import InvalidInput

_MOST = 2**26  # bytes


def read_small(path: str | Path, field: str, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most 64 MiB.

    Reading a device or a pipe may never end, and may take all memory.

    Parameters
    ----------
    path : str or Path
        The file.
    field : str
        What the error names as refused.
    encoding : str
        How the text is encoded.

    Raises
    ------
    InvalidInput
        The file is a device, a pipe or a socket, or is too large.
    OSError
        It cannot be read.
    UnicodeDecodeError
        It is no text in this encoding.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidInput(field, str(path), "it is a device or a pipe; give a file")
    with path.open("rb") as stream:
        content = stream.read(_MOST + 1)
    if len(content) > _MOST:
        raise InvalidInput(field, str(path), f"it is larger than {_MOST >> 20} MiB; give another")
    return content.decode(encoding)
