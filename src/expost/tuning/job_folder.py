"""The folder of a tuning job: finished attempts, the running attempt's checkpoint, final results.

``attempts.json`` and the checkpoints can be read by their owner only and are removed when the job
is finished. Every attempt has a checkpoint of its own, which is erased after its release was
recorded, so no crash loses a release. If an attempt has read rows and its checkpoint is gone all
the same (somebody removed it), it is counted at its worst case and never left out.

Tests: ``tests/tuning/test_resume.py``.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.fingerprint import fingerprint
from expost.selection.release import Release
from expost.tuning.candidates import FittedCodec

CERTIFICATE, PICTURE = "release.json", "privacy.png"
_ATTEMPTS, _CHECKPOINT, _LOCK = "attempts.json", "checkpoint", ".lock"


class Journal:
    """Record of one job in its folder, which one process holds at a time.

    Parameters
    ----------
    folder : Path
        The folder. It is created if it does not exist.
    identity : mapping
        Settings, data and ledger of the job. An unfinished job continues only if they are equal.
    key : bytes
        Secret key of the split of the rows. An unfinished job keeps the one that it began with.

    Raises
    ------
    InvalidInput
        If ``folder`` is not a folder, or if it contains a finished job.
    CheckpointMismatch
        If another process uses the folder, or if it contains another or a damaged job.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], key: bytes = b"") -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise InvalidInput("out", str(folder), "give a folder")
        if (folder / CERTIFICATE).exists():
            self.finish()  # a crash may have happened after the certificate was written
            raise InvalidInput(
                "out",
                str(folder),
                "the folder contains a finished job, which is not overwritten; give another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise CheckpointMismatch(f"{folder} is in use by another process") from None
        try:
            # Another process may have finished after the file was opened and before it was locked.
            if not self._holds(folder / _LOCK):
                raise CheckpointMismatch(f"{folder} is in use by another process")
            self._record = self._read(identity, key)
        except BaseException:
            os.close(self._lock)
            raise

    def _holds(self, path: Path) -> bool:
        """Return whether the locked file is still in the folder; finishing a job removes it."""
        return path.exists() and os.path.samestat(os.fstat(self._lock), os.stat(path))

    @property
    def checkpoint(self) -> Path:
        """Path of the next attempt's checkpoint."""
        return self._checkpoint(len(self._record["attempts"]) + 1)

    def _checkpoint(self, number: int) -> Path:
        return self.folder / f"{_CHECKPOINT}-{number}"

    @property
    def key(self) -> bytes:
        """Secret key of the split of the rows; empty if the split is public."""
        return bytes.fromhex(self._record["key"])

    @property
    def attempts(self) -> list[Release | None]:
        """The releases so far; None for an attempt whose outcome was lost."""
        found = []
        for each in self._record["attempts"]:
            found.append(
                None if each is None else Release.from_json(json.dumps(each), FittedCodec().decode)
            )
        return found

    def begin(self) -> None:
        """Record on disk that the next attempt reads data."""
        if self._record["begun"] <= len(self._record["attempts"]):
            self._record["begun"] = len(self._record["attempts"]) + 1
            self._write(self._record)

    def add(self, release: Release) -> None:
        """Record on disk the release of an attempt."""
        self._record["attempts"].append(release.as_dict(FittedCodec().encode))
        self._record["begun"] = len(self._record["attempts"])
        self._write(self._record)

    def close(self) -> None:
        """Release the folder; its files stay for the next call."""
        os.close(self._lock)

    def finish(self) -> None:
        """Remove the files that must not be published."""
        drafts = list(self.folder.glob(f".{_ATTEMPTS}.*"))  # left by interrupted writes
        checkpoints = list(self.folder.glob(f"{_CHECKPOINT}-*"))
        for path in (*drafts, *checkpoints, self.folder / _ATTEMPTS, self.folder / _LOCK):
            path.unlink(missing_ok=True)

    def _read(self, identity: Mapping[str, Any], key: bytes) -> dict[str, Any]:
        """Return the record of an unfinished job, or a new record."""
        path = self.folder / _ATTEMPTS
        if not path.exists():
            salt = secrets.token_bytes(16)
            return {
                "schema": 1,
                "salt": salt.hex(),
                "identity": fingerprint(identity, salt),
                "key": key.hex(),
                "begun": 0,
                "attempts": [],
            }
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            same = record["schema"] == 1 and record["identity"] == fingerprint(
                identity, bytes.fromhex(record["salt"])
            )
            same = (
                same and isinstance(record["begun"], int) and isinstance(record["attempts"], list)
            )
            same = same and len(bytes.fromhex(record["key"])) == len(key)
        except (ValueError, KeyError, TypeError, RecursionError):
            same = False
        if not same:
            raise CheckpointMismatch(
                f"{self.folder} contains an unfinished job that is damaged or has other settings, "
                "data or ledger; use another folder (the reservation of the unfinished job stays "
                "charged)"
            )
        made = len(record["attempts"])
        for number in range(1, made + 1):  # recorded, and stopped before it was erased
            self._checkpoint(number).unlink(missing_ok=True)
        if record["begun"] > made and not self._checkpoint(made + 1).exists():
            record["attempts"].append(None)
            self._write(record)
        return record

    def _write(self, record: Mapping[str, Any]) -> None:
        """Replace the record on disk atomically."""
        path = self.folder / _ATTEMPTS
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(record, stream, allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
