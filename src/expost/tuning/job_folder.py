"""The folder of a tuning job: finished attempts, the running attempt's checkpoint, final results.

``attempts.json`` and the checkpoints can be read by their owner only and are removed when the job
is finished. Every attempt has a checkpoint of its own, which is erased after its release was
recorded, so no crash loses a release. If an attempt has read rows and its checkpoint is gone all
the same (somebody removed it), it is counted at its worst case and never left out.

Tests: ``tests/tuning/test_resume.py``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.identity import fingerprint
from expost.files import lock_file
from expost.selection.release import Release
from expost.tuning.candidates import FittedCodec

CERTIFICATE, PICTURE = "release.json", "privacy.png"
LEDGER, DATA = "ledger", "data"
"""Parts of a job's identity besides its settings."""
_ATTEMPTS, _CHECKPOINT, _LOCK = "attempts.json", "checkpoint", ".lock"
_SCHEMA = 2
_STAYS = "What the unfinished job reserved in a ledger stays charged."


class Journal:
    """Record of one job in its folder, which one process holds at a time."""

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        key: bytes = b"",
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        refuse_finished(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            lock_file(self._lock)
        except OSError:
            os.close(self._lock)
            raise CheckpointMismatch(f"{folder} is in use by another process") from None
        try:
            # Another process may have finished after the file was opened and before it was locked.
            if not self._holds(folder / _LOCK):
                raise CheckpointMismatch(f"{folder} is in use by another process")
            self._record = self._read(identity, key, parts or {})
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
        attempts = []
        for record in self._record["attempts"]:
            attempts.append(
                None
                if record is None
                else Release.from_json(json.dumps(record), FittedCodec().decode)
            )
        return attempts

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
        _clear(self.folder)

    def _read(
        self, identity: Mapping[str, Any], key: bytes, parts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the record of an unfinished job, or a new record."""
        path = self.folder / _ATTEMPTS
        if not path.exists():
            salt = secrets.token_bytes(16)
            return {
                "schema": _SCHEMA,
                "salt": salt.hex(),
                "identity": fingerprint(identity, salt),
                "parts": {name: fingerprint(part, salt) for name, part in parts.items()},
                "key": key.hex(),
                "begun": 0,
                "attempts": [],
            }
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            whole = record["schema"] == _SCHEMA and isinstance(record["begun"], int)
            whole = whole and isinstance(record["attempts"], list)
            salt = bytes.fromhex(record["salt"])
            same = len(bytes.fromhex(record["key"])) == len(key)
            same = same and record["identity"] == fingerprint(identity, salt)
            kept = dict(record["parts"])
        except (ValueError, KeyError, TypeError, RecursionError):
            whole, same, kept, salt = False, False, {}, b""
        if not whole:
            raise CheckpointMismatch(
                f"{path} is damaged or of another version; use another folder. {_STAYS}"
            )
        if not same:
            raise CheckpointMismatch(
                f"{self.folder} contains an unfinished job {_difference(kept, parts, salt)}. "
                f"To continue it, repeat its command; for another job use another folder. {_STAYS}"
            )
        begun = len(record["attempts"])
        for number in range(1, begun + 1):  # recorded, and stopped before it was erased
            self._checkpoint(number).unlink(missing_ok=True)
        if record["begun"] > begun and not self._checkpoint(begun + 1).exists():
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


def refuse_finished(folder: Path) -> None:
    """Refuse a folder that contains a finished job, or that is none."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput("out", str(folder), "give a folder")
    if (folder / CERTIFICATE).exists():
        _clear(folder)  # a crash may have happened after the certificate was written
        raise InvalidInput(
            "out",
            str(folder),
            "the folder contains a finished job, which is not overwritten; give another folder",
        )


def has_begun(folder: Path) -> bool:
    """Return whether the job of a folder may have reserved anything.

    The checkpoint of an attempt is written before its reservation is made.
    """
    return (folder / _ATTEMPTS).exists() or any(folder.glob(f"{_CHECKPOINT}-*"))


def _clear(folder: Path) -> None:
    """Remove the files of a folder that must not be published."""
    drafts = list(folder.glob(f".{_ATTEMPTS}.*"))  # left by interrupted writes
    checkpoints = list(folder.glob(f"{_CHECKPOINT}-*"))
    for path in (*drafts, *checkpoints, folder / _ATTEMPTS, folder / _LOCK):
        path.unlink(missing_ok=True)


def _difference(kept: Mapping[str, str], parts: Mapping[str, Any], salt: bytes) -> str:
    """Return in which part an unfinished job differs; changed settings change the encoded data."""
    now = {name: fingerprint(part, salt) for name, part in parts.items()}
    changed = [name for name in {**kept, **now} if kept.get(name) != now.get(name)]
    said = []
    settings = [name for name in changed if name not in (LEDGER, DATA)]
    if settings:
        said.append(f"with other settings ({', '.join(settings)})")
    if LEDGER in changed:
        nothing = fingerprint(None, salt)
        said.append(
            "that has no ledger"
            if kept.get(LEDGER) == nothing
            else "that has a ledger"
            if now.get(LEDGER) == nothing
            else "with another ledger, budget or analyst"
        )
    if not said:
        said.append("with other data" if DATA in changed else "that is not this one")
    return " and ".join(said)
