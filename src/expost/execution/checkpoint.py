"""A file from which a selection can be resumed: its draws and its finished outputs.

After a crash the same call must finish the *same* selection: drawing again would be another
mechanism. So a header is written first, before the budget is reserved and before any run reads
data. It holds the draws, including the key of the runs' randomness, so that an unfinished run is
made again with the same noise; the id and the secret of the reservation; and a salted fingerprint
of the selection and its data. Then each finished output is appended as it comes, as JSON by a
codec: plain values or NumPy arrays, never pickles.

The content is secret (``docs/ledger.md``): only the owner can read the file, and a finished
selection erases it. Every write is synced to the disk. The header appears in one atomic step. An
incomplete last line, left by a crash during a write, is dropped when the file is opened.
Tests: ``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.calls import Raised, call_or_failure
from expost.files import lock_file
from expost.mechanisms.discrete_noise import Estimate
from expost.mechanisms.protocol import FAILED


class Codec(Protocol):
    """Converts an output to something that JSON can hold, and back, without loss."""

    def encode(self, value: Any) -> Any:
        """Return ``value`` in a form that JSON can hold."""
        ...

    def decode(self, stored: Any) -> Any:
        """Return the output that :meth:`encode` was given."""
        ...


@dataclass(frozen=True)
class JsonCodec:
    """Codec for numbers, strings, lists, tuples, dicts with text keys, fractions and estimates."""

    def encode(self, value: Any) -> Any:
        """Return ``value`` in plain JSON types."""
        if isinstance(value, Estimate):
            return {
                "expost": "estimate",
                "value": self.encode(value.value),
                "scale": value.scale,
                "law": value.law,
            }
        if isinstance(value, Fraction):
            return {"expost": "fraction", "value": str(value)}
        if type(value) is float and not math.isfinite(value):
            return {"expost": "float", "value": repr(value)}
        if (
            isinstance(value, np.generic)
            and value.dtype.kind in "biuf"
            and value.dtype.itemsize <= 8
        ):
            return {"expost": "number", "value": self.encode(value.item()), "type": value.dtype.str}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (list, tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {"expost": kind, "value": [self.encode(item) for item in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {
                "expost": "dict",
                "value": {key: self.encode(item) for key, item in value.items()},
            }
        raise InvalidInput(
            "output",
            "a value of another type",
            "JSON cannot hold it without loss; pass a codec of your own to select",
        )

    def decode(self, stored: Any) -> Any:
        """Return the output that :meth:`encode` was given."""
        if not isinstance(stored, dict):
            return stored
        kind, value = stored["expost"], stored["value"]
        if kind == "estimate":
            return Estimate(self.decode(value), stored["scale"], stored["law"])
        if kind == "fraction":
            return Fraction(value)
        if kind == "float":
            return float(value)
        if kind == "number":
            return np.dtype(stored["type"]).type(self.decode(value))
        if kind == "dict":
            return {key: self.decode(item) for key, item in value.items()}
        items = [self.decode(item) for item in value]
        return items if kind == "list" else tuple(items)


@dataclass(frozen=True)
class NpzCodec:
    """Codec for a NumPy array, or a dict from names to arrays."""

    def encode(self, value: Any) -> Any:
        """Return the arrays as base64 text of an npz archive."""
        arrays = list(value.values()) if isinstance(value, dict) else [value]
        if not all(isinstance(array, np.ndarray) and not array.dtype.hasobject for array in arrays):
            raise InvalidInput(
                "output",
                "a value of another type",
                "give an array of numbers, or a dict from names to arrays",
            )
        buffer = io.BytesIO()
        np.savez(buffer, *arrays)  # pickles nothing, because no array holds objects
        return {
            "names": list(value) if isinstance(value, dict) else None,
            "npz": base64.b64encode(buffer.getvalue()).decode(),
        }

    def decode(self, stored: Any) -> Any:
        """Return the array or the dict of arrays that :meth:`encode` was given."""
        with np.load(io.BytesIO(base64.b64decode(stored["npz"])), allow_pickle=False) as archive:
            arrays = [archive[f"arr_{number}"] for number in range(len(archive.files))]
        return (
            arrays[0]
            if stored["names"] is None
            else dict(zip(stored["names"], arrays, strict=True))
        )


_SCHEMA = 3  # outputs with their candidates, identity by fields and code, reservation's secret


@dataclass(repr=False)
class Checkpoint:
    """An open checkpoint file, locked by its descriptor until it is closed or erased."""

    path: Path
    codec: Codec
    descriptor: int
    header: Mapping[str, Any]
    outputs: dict[int, tuple[int, Any]] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        path: str | Path,
        codec: Codec,
        identify: Callable[[bytes], str],
        draw: Callable[[], Mapping[str, Any]],
    ) -> Checkpoint:
        """Resume the selection in ``path``, or start one there.

        ``identify`` returns the fingerprint of the selection for a salt, ``draw`` new secret draws.
        Raises CheckpointMismatch for a file of another selection, in use, damaged, or of another
        schema.
        """
        file = Path(path)
        if not file.exists():
            _create(file, identify, draw)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise InvalidInput(
                "checkpoint", str(file), f"cannot be opened: {error.strerror}"
            ) from None
        try:
            lock_file(descriptor)
            if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
                raise OSError  # another process erased the file before it was locked here
        except OSError:
            os.close(descriptor)
            raise CheckpointMismatch(f"{file} is in use by another process") from None
        try:
            header, records, whole = _read(file, descriptor)
            if header.get("schema") != _SCHEMA:
                raise CheckpointMismatch(
                    f"{file} has schema {header.get('schema')!r}; this version of expost reads "
                    f"schema {_SCHEMA}"
                )
            if header["identity"] != identify(bytes.fromhex(header["salt"])):
                raise CheckpointMismatch(
                    f"{file} belongs to another selection (other candidates, settings, data, or "
                    "ledger); use another file, or give up the old selection by deleting its "
                    "checkpoint: its reservation stays charged"
                )
            _sweep(file)
            # Only now: a file that is not a checkpoint of this selection must not be changed.
            os.ftruncate(descriptor, whole)
            opened = cls(file, codec, descriptor, header)
            for record in records:
                value = FAILED
                if not record["failed"]:
                    value = call_or_failure(codec.decode, record["output"])
                opened.outputs[record["run"]] = (
                    record["candidate"],
                    FAILED if isinstance(value, Raised) else value,
                )
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    def outputs_of(self, candidates: Sequence[int]) -> dict[int, Any]:
        """Return the finished outputs by run; refuse one of another candidate than its run's."""
        for run, (candidate, _) in self.outputs.items():
            if not 0 <= run < len(candidates) or candidates[run] != candidate:
                raise CheckpointMismatch(
                    f"{self.path} holds an output of another candidate; its selection cannot be "
                    "resumed and stays charged"
                )
        return {run: value for run, (_, value) in self.outputs.items()}

    def record(self, run: int, candidate: int, value: Any) -> Any:
        """Append the finished output of a run; it is on the disk when this returns.

        An output that the codec cannot store and read back gives a :class:`Raised`, and the run is
        recorded as failed: that depends on the data, so it must be an outcome and not an error.
        """
        # Encode and decode before writing: a record that cannot be read back would end the resume.
        stored: Any = None
        if value is not FAILED:
            stored = call_or_failure(self._stored, value)
            if isinstance(stored, Raised):
                value, stored = stored, None
        failed = value is FAILED or isinstance(value, Raised)
        record = {"run": run, "candidate": candidate, "failed": failed, "output": stored}
        _write(self.descriptor, _line(record))
        self.outputs[run] = (candidate, FAILED if failed else value)
        return value

    def _stored(self, value: Any) -> Any:
        """Return an output as the codec stores it; make sure that it can be read back."""
        stored = self.codec.encode(value)
        self.codec.decode(json.loads(json.dumps(stored, allow_nan=False)))
        return stored

    def close(self) -> None:
        """Close the file and release its lock; the file stays for the next call."""
        os.close(self.descriptor)

    def erase(self) -> None:
        """Remove the file of a finished or refused selection."""
        self.path.unlink(missing_ok=True)
        _sync_folder(self.path)
        self.close()


def _create(
    file: Path, identify: Callable[[bytes], str], draw: Callable[[], Mapping[str, Any]]
) -> None:
    """Write the header of a new checkpoint, unless another process is faster."""
    if not file.resolve().parent.is_dir():
        raise InvalidInput("checkpoint", str(file), "the folder does not exist")
    salt = secrets.token_bytes(16)
    header = {
        "schema": _SCHEMA,
        "salt": salt.hex(),
        "identity": identify(salt),
        "reservation": secrets.token_hex(16),
        "secret": secrets.token_hex(16),
        "draws": draw(),
    }
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise InvalidInput(
            "checkpoint", str(file), f"cannot be written: {error.strerror}"
        ) from None
    try:
        _write(descriptor, _line(header))
        # Like a rename, but it never replaces a checkpoint that appeared in the meantime.
        os.link(temporary, file)
    except (FileExistsError, FileNotFoundError):
        pass  # another process was faster (and may have removed the temporary file)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_folder(file)


def _sweep(file: Path) -> None:
    """Remove temporary files that crashes left behind.

    The caller holds the checkpoint's lock, so the checkpoint exists, and a process that still
    creates it is too late anyway.
    """
    for name in os.listdir(file.resolve().parent):
        if re.fullmatch(re.escape(f".{file.name}.") + "[0-9a-f]{16}", name):
            file.with_name(name).unlink(missing_ok=True)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of the content; it is on the disk when this returns."""
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    """Return a record with its checksum as one line."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n".encode()


def _read(path: Path, descriptor: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Return the header, the records, and the length of all complete lines.

    An incomplete last line is left out; any other damage is refused.
    """
    # A file object reads everything; a single os.read stops at 2 GiB.
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    lines = content.split(b"\n")
    whole = len(content) - len(lines.pop())
    records = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            raise CheckpointMismatch(
                f"{path} is damaged at line {number}; its selection cannot be resumed and stays "
                "charged"
            )
        records.append(json.loads(text))
    if not records:
        raise CheckpointMismatch(f"{path} is not a checkpoint")
    return records[0], records[1:], whole


def _sync_folder(file: Path) -> None:
    """Sync the folder of a file, so that creating or removing the file survives a crash."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    descriptor = os.open(file.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
