"""The folder of a tuning job: attempts that are over, the checkpoint of the one that runs, and what is published at the end.

``attempts.json`` and ``checkpoint`` are readable by their owner only and vanish when the job is finished. An attempt whose rows were read
but whose outcome was lost (a crash between the ledger's entry and the journal's) is counted at its worst case, never left out.
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

CERTIFICATE, MODEL, PICTURE = "release.json", "model.npz", "privacy.png"
_ATTEMPTS, _CHECKPOINT, _LOCK = "attempts.json", "checkpoint", ".lock"


class Journal:
    """One job's folder, held by one process."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise InvalidInput("out", str(folder), "give a folder")
        if (folder / CERTIFICATE).exists():
            self.finish()  # a crash may have come between the certificate and this
            raise InvalidInput(
                "out",
                str(folder),
                "it holds a finished job; name another folder, so that nothing is lost",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise CheckpointMismatch(f"{folder} is in use by another process") from None
        try:
            if not self._holds(
                folder / _LOCK
            ):  # another process finished between the opening and the lock
                raise CheckpointMismatch(f"{folder} is in use by another process")
            self._record = self._read(identity)
        except BaseException:
            os.close(self._lock)
            raise

    def _holds(self, path: Path) -> bool:
        """Whether what was locked is still the folder's lock: who finishes removes it."""
        return path.exists() and os.path.samestat(os.fstat(self._lock), os.stat(path))

    @property
    def checkpoint(self) -> Path:
        return self.folder / _CHECKPOINT

    @property
    def attempts(self) -> list[Release | None]:
        """What was released so far; None for an attempt whose outcome was lost."""
        found = []
        for each in self._record["attempts"]:
            found.append(
                None if each is None else Release.from_json(json.dumps(each), FittedCodec().decode)
            )
        return found

    def begin(self) -> None:
        """Note, durably, that the next attempt reads data."""
        if self._record["begun"] <= len(self._record["attempts"]):
            self._record["begun"] = len(self._record["attempts"]) + 1
            self._write(self._record)

    def add(self, release: Release) -> None:
        """Note, durably, how an attempt ended."""
        self._record["attempts"].append(release.as_dict(FittedCodec().encode))
        self._record["begun"] = len(self._record["attempts"])
        self._write(self._record)

    def close(self) -> None:
        """Let go of the folder; what is in it stays for the next call."""
        os.close(self._lock)

    def finish(self) -> None:
        """Remove what is not for publication."""
        drafts = list(self.folder.glob(f".{_ATTEMPTS}.*"))  # of writes that a crash cut off
        for path in (*drafts, self.folder / _ATTEMPTS, self.folder / _LOCK):
            path.unlink(missing_ok=True)

    def _read(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        path = self.folder / _ATTEMPTS
        if not path.exists():
            salt = secrets.token_bytes(16)
            return {
                "schema": 1,
                "salt": salt.hex(),
                "identity": fingerprint(identity, salt),
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
        except (ValueError, KeyError, TypeError, RecursionError):
            same = False
        if not same:
            raise CheckpointMismatch(
                f"{self.folder} holds an unfinished job that is damaged, or has other settings, data, or ledger; use another folder "
                "(what the unfinished job reserved stays charged)"
            )
        if record["begun"] > len(record["attempts"]) and not self.checkpoint.exists():
            record["attempts"].append(None)
            self._write(
                record
            )  # before another attempt leaves a checkpoint that looks like this one's
        return record

    def _write(self, record: Mapping[str, Any]) -> None:
        path = self.folder / _ATTEMPTS
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(record, stream, allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
