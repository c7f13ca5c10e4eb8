"""The file of a model, ``model.npz``: parameters as arrays, and a JSON header.

It contains no pickle, so reading it runs no code. Tests: ``tests/tuning/test_model.py``.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput

MODEL = "model.npz"
"""Name of the file in the folder of a job."""
MISSED_MODEL = "missed-model.npz"
"""Name of the file if the model missed the goal."""

_HEADER = "expost"
_SCHEMA = 2
_PREFIX = "parameter:"


def write_model(path: Path, header: Mapping[str, Any], parameters: Mapping[str, Array]) -> None:
    """Write a header and parameters to a file."""
    arrays: dict[str, Any] = {f"{_PREFIX}{name}": value for name, value in parameters.items()}
    arrays[_HEADER] = np.array(json.dumps({"schema": _SCHEMA, **header}))
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the parameters of a file, or of the model in a job's folder."""
    file = path
    if path.is_dir():
        file = path / MODEL if (path / MODEL).is_file() else path / MISSED_MODEL
        if not file.is_file():
            raise InvalidInput(
                "path",
                str(path),
                f"the folder has no {MODEL}: the job released no model, or is not finished",
            )
    if not file.is_file():
        raise InvalidInput("path", str(path), f"there is no such file; give {MODEL} or its folder")
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError
        with np.load(file, allow_pickle=False) as archive:
            header = json.loads(str(archive[_HEADER]))
            parameters = {
                name.removeprefix(_PREFIX): archive[name]
                for name in archive.files
                if name != _HEADER
            }
        schema = header["schema"]
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        # The error of numpy would advise to read the file unsafely.
        raise InvalidInput(
            "path", str(path), f"not a model that expost saved; give {MODEL} or its folder"
        ) from None
    if schema != _SCHEMA:
        raise InvalidInput("schema", schema, f"this version reads models of schema {_SCHEMA}")
    if header.get("passed") is False:
        warnings.warn(f"{file}: this model missed the goal of its job", stacklevel=3)
    return header, parameters
