"""A selection that can be resumed: its draws and its finished outputs, on disk as they happen.

After a crash the same call must finish the *same* selection: drawing anew would be another mechanism. So the first thing written, before a
budget is asked and before data is read, is a header with the draws (the key of the runs' randomness among them: an unfinished run is made
again with the same noise) and the id of the reservation to come; then each finished output is appended, in whatever order they come. The
file is readable by its owner only, every write is synced, the header appears by an atomic rename, and a torn last line (the write that a
crash cut off) is dropped on opening. A finished selection erases its checkpoint.

What is in the file is secret (``docs/ledger.md``). Tests: ``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.codec import Codec
from expost.mechanisms.outcome import FAILED

_SCHEMA = 2  # 2: the draws hold the key of the runs' randomness


@dataclass(repr=False)
class Checkpoint:
    """An open checkpoint; hold it only while the selection runs."""

    path: Path
    codec: Codec
    descriptor: int
    header: Mapping[str, Any]
    outputs: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        path: str | Path,
        codec: Codec,
        identify: Callable[[bytes], str],
        draw: Callable[[], Mapping[str, Any]],
    ) -> Checkpoint:
        """Resume the selection in ``path``, or start one there.

        ``identify`` fingerprints the selection with a salt; a file with another fingerprint is refused. ``draw`` makes the secret
        draws of a new one.
        """
        place = Path(path)
        if not place.exists():
            _create(place, identify, draw)
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise InvalidInput(
                "checkpoint", str(place), f"cannot be opened: {error.strerror}"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(place)):
                raise OSError  # it was finished and erased between the opening and the lock
        except OSError:
            os.close(descriptor)
            raise CheckpointMismatch(f"{place} is in use by another process") from None
        try:
            header, records, whole = _read(place, descriptor)
            if header.get("schema") != _SCHEMA:
                raise CheckpointMismatch(
                    f"{place} has schema {header.get('schema')!r}; this expost knows {_SCHEMA}"
                )
            if header["identity"] != identify(bytes.fromhex(header["salt"])):
                raise CheckpointMismatch(
                    f"{place} belongs to another selection (other candidates, settings, data, or ledger); "
                    "use another file, or give up the old selection by deleting its checkpoint: its reservation stays charged"
                )
            _sweep(place)
            os.ftruncate(
                descriptor, whole
            )  # only now: a file that is no checkpoint of this selection is left as it is
            opened = cls(place, codec, descriptor, header)
            for record in records:
                opened.outputs[record["run"]] = (
                    FAILED if record["failed"] else codec.decode(record["output"])
                )
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    @property
    def draws(self) -> dict[str, Any]:
        return dict(self.header["draws"])

    @property
    def reservation_id(self) -> str:
        return str(self.header["reservation"])

    def record(self, run: int, value: Any) -> None:
        """Append a finished output, durably."""
        failed = value is FAILED
        line = _line(
            {"run": run, "failed": failed, "output": None if failed else self.codec.encode(value)}
        )
        _write(self.descriptor, line)
        self.outputs[run] = value

    def close(self) -> None:
        """Let go of the file; it stays for the next call."""
        os.close(self.descriptor)

    def erase(self) -> None:
        """Remove a finished (or refused) selection's checkpoint."""
        self.path.unlink(missing_ok=True)
        _sync_folder(self.path)
        self.close()


class SelectionState:
    """The draws of one selection, held in memory or in a checkpoint file.

    A context manager: leaving the block without :meth:`finish` keeps the file for the next call.
    """

    def __init__(self, draws: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        self.draws = dict(draws)
        self.checkpoint = checkpoint

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        codec: Codec,
        identify: Callable[[bytes], str],
        draw: Callable[[], Mapping[str, Any]],
    ) -> SelectionState:
        """Draw anew, or resume what the file at ``path`` holds."""
        if path is None:
            return cls(draw())
        checkpoint = Checkpoint.open(path, codec, identify, draw)
        return cls(checkpoint.draws, checkpoint)

    @property
    def reservation_id(self) -> str | None:
        """The reservation that belongs to these draws, if they are kept in a file."""
        return None if self.checkpoint is None else self.checkpoint.reservation_id

    def finish(self) -> None:
        """Erase the file: the selection is over, or was refused before anything ran."""
        if self.checkpoint is not None:
            self.checkpoint.erase()
            self.checkpoint = None

    def __enter__(self) -> SelectionState:
        return self

    def __exit__(self, *_: object) -> None:
        if self.checkpoint is not None:
            self.checkpoint.close()


def _create(
    place: Path, identify: Callable[[bytes], str], draw: Callable[[], Mapping[str, Any]]
) -> None:
    if not place.resolve().parent.is_dir():
        raise InvalidInput("checkpoint", str(place), "the folder does not exist")
    salt = secrets.token_bytes(16)
    header = {
        "schema": _SCHEMA,
        "salt": salt.hex(),
        "identity": identify(salt),
        "reservation": secrets.token_hex(16),
        "draws": draw(),
    }
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise InvalidInput(
            "checkpoint", str(place), f"cannot be written: {error.strerror}"
        ) from None
    try:
        _write(descriptor, _line(header))
        os.link(
            temporary, place
        )  # like a rename, but never over a checkpoint that appeared meanwhile
    except (FileExistsError, FileNotFoundError):
        pass  # another process was first (and may have swept this file away)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_folder(place)


def _sweep(place: Path) -> None:
    """Remove what crashes left behind while a checkpoint was made. Whoever holds the checkpoint's lock may: a maker is late anyway."""
    for name in os.listdir(place.resolve().parent):
        if re.fullmatch(re.escape(f".{place.name}.") + "[0-9a-f]{16}", name):
            place.with_name(name).unlink(missing_ok=True)


def _write(descriptor: int, content: bytes) -> None:
    """All of the content, on the disk when this returns."""
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    """A record with its checksum, on one line."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n".encode()


def _read(place: Path, descriptor: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Header, records, and how far whole lines go; a torn last line is left out, any other damage is refused."""
    with open(
        descriptor, "rb", closefd=False
    ) as file:  # reads on where one read call would stop (at 2 GiB)
        content = file.read()
    lines = content.split(b"\n")
    whole = len(content) - len(lines.pop())
    records = []
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            raise CheckpointMismatch(
                f"{place} is damaged at line {number}; its selection cannot be resumed and stays charged"
            )
        records.append(json.loads(text))
    if not records:
        raise CheckpointMismatch(f"{place} is not a checkpoint")
    return records[0], records[1:], whole


def _sync_folder(place: Path) -> None:
    descriptor = os.open(place.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
