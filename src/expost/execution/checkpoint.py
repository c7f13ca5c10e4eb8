"""A file from which a selection can be resumed: its draws and its finished outputs.

After a crash the same call must finish the *same* selection: drawing again would be another
mechanism. So a header is written first, before the budget is reserved and before any run reads
data. It holds the draws, including the key of the runs' randomness, so that an unfinished run is
made again with the same noise. It also holds the id and the secret of the reservation, and a salted
fingerprint of the selection and its data. Then each finished output is appended, in the order in
which runs finish.

Only the owner can read the file. Every write is synced to the disk. The header appears in one
atomic step. An incomplete last line, left by a crash during a write, is dropped when the file is
opened. A finished selection erases its checkpoint.

The content of the file is secret (``docs/ledger.md``). Tests:
``tests/execution/test_checkpoint.py``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.codec import Codec
from expost.execution.failure import Raised, attempt
from expost.mechanisms.outcome import FAILED

_SCHEMA = 3  # outputs with their candidates, identity by fields and code, reservation's secret


@dataclass(repr=False)
class Checkpoint:
    """An open checkpoint file. It is locked until it is closed or erased.

    Parameters
    ----------
    path : Path
        The file.
    codec : Codec
        How outputs are stored.
    descriptor : int
        The open file descriptor, which holds the lock.
    header : mapping
        Fingerprint, salt, id and secret of the reservation, and draws.
    outputs : dict
        The finished outputs by run, each with the index of its candidate.
    """

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

        Parameters
        ----------
        path : path
            The file.
        codec : Codec
            How outputs are stored.
        identify : callable
            Returns the fingerprint of the selection for a salt.
        draw : callable
            Returns the secret draws of a new selection.

        Raises
        ------
        CheckpointMismatch
            The file belongs to another selection, is in use, is damaged, or has another schema.
        InvalidInput
            The file cannot be opened or written.
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
                raise OSError  # another process erased the file before it was locked here
        except OSError:
            os.close(descriptor)
            raise CheckpointMismatch(f"{place} is in use by another process") from None
        try:
            header, records, whole = _read(place, descriptor)
            if header.get("schema") != _SCHEMA:
                raise CheckpointMismatch(
                    f"{place} has schema {header.get('schema')!r}; this version of expost reads "
                    f"schema {_SCHEMA}"
                )
            if header["identity"] != identify(bytes.fromhex(header["salt"])):
                raise CheckpointMismatch(
                    f"{place} belongs to another selection (other candidates, settings, data, or "
                    "ledger); use another file, or give up the old selection by deleting its "
                    "checkpoint: its reservation stays charged"
                )
            _sweep(place)
            # Only now: a file that is not a checkpoint of this selection must not be changed.
            os.ftruncate(descriptor, whole)
            opened = cls(place, codec, descriptor, header)
            for record in records:
                value = FAILED
                if not record["failed"]:
                    value = attempt(codec.decode, record["output"])
                opened.outputs[record["run"]] = (
                    record["candidate"],
                    FAILED if isinstance(value, Raised) else value,
                )
        except BaseException:
            os.close(descriptor)
            raise
        return opened

    @property
    def draws(self) -> dict[str, Any]:
        """The secret draws of the selection."""
        return dict(self.header["draws"])

    @property
    def reservation_id(self) -> str:
        """The id under which the selection reserves its budget."""
        return str(self.header["reservation"])

    @property
    def reservation_secret(self) -> str:
        """The secret that settling the reservation needs."""
        return str(self.header["secret"])

    def outputs_of(self, candidates: Sequence[int]) -> dict[int, Any]:
        """Return the finished outputs by run.

        Parameters
        ----------
        candidates : sequence of int
            The index of the candidate of each run.

        Raises
        ------
        CheckpointMismatch
            An output in the file belongs to another candidate than that of its run.
        """
        for run, (candidate, _) in self.outputs.items():
            if not 0 <= run < len(candidates) or candidates[run] != candidate:
                raise CheckpointMismatch(
                    f"{self.path} holds an output of another candidate; its selection cannot be "
                    "resumed and stays charged"
                )
        return {run: value for run, (_, value) in self.outputs.items()}

    def record(self, run: int, candidate: int, value: Any) -> Any:
        """Append the finished output of a run; it is on the disk when this returns.

        Parameters
        ----------
        run : int
            The place of the run.
        candidate : int
            The index of its candidate.
        value : object
            Its output.

        Returns
        -------
        object
            The output, or a :class:`~expost.execution.failure.Raised` if the codec cannot store
            it and read it back. The run is then recorded as failed: that an output cannot be
            stored depends on the data, so it must be an outcome and not an error.
        """
        stored: Any = None
        if value is not FAILED:
            stored = attempt(self._stored, value)
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


class SelectionState:
    """The draws of one selection, in memory or in a checkpoint file.

    A context manager: leaving the block without :meth:`finish` keeps the file for the next call.

    Parameters
    ----------
    draws : mapping
        The secret draws.
    checkpoint : Checkpoint, optional
        The file that holds them.
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
        """Make new draws, or resume from the file at ``path``; see :meth:`Checkpoint.open`."""
        if path is None:
            return cls(draw())
        checkpoint = Checkpoint.open(path, codec, identify, draw)
        return cls(checkpoint.draws, checkpoint)

    @property
    def reservation_id(self) -> str | None:
        """The reservation that belongs to these draws; None if they are in memory only."""
        return None if self.checkpoint is None else self.checkpoint.reservation_id

    @property
    def reservation_secret(self) -> str | None:
        """The secret of that reservation; None if the draws are in memory only."""
        return None if self.checkpoint is None else self.checkpoint.reservation_secret

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
    """Write the header of a new checkpoint, unless another process is faster."""
    if not place.resolve().parent.is_dir():
        raise InvalidInput("checkpoint", str(place), "the folder does not exist")
    salt = secrets.token_bytes(16)
    header = {
        "schema": _SCHEMA,
        "salt": salt.hex(),
        "identity": identify(salt),
        "reservation": secrets.token_hex(16),
        "secret": secrets.token_hex(16),
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
        # Like a rename, but it never replaces a checkpoint that appeared in the meantime.
        os.link(temporary, place)
    except (FileExistsError, FileNotFoundError):
        pass  # another process was faster (and may have removed the temporary file)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_folder(place)


def _sweep(place: Path) -> None:
    """Remove temporary files that crashes left behind.

    The caller holds the checkpoint's lock, so the checkpoint exists, and a process that still
    creates it is too late anyway.
    """
    for name in os.listdir(place.resolve().parent):
        if re.fullmatch(re.escape(f".{place.name}.") + "[0-9a-f]{16}", name):
            place.with_name(name).unlink(missing_ok=True)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of the content; it is on the disk when this returns."""
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _line(record: Mapping[str, Any]) -> bytes:
    """Return a record with its checksum as one line."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f"{hashlib.sha256(text.encode()).hexdigest()} {text}\n".encode()


def _read(place: Path, descriptor: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
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
                f"{place} is damaged at line {number}; its selection cannot be resumed and stays "
                "charged"
            )
        records.append(json.loads(text))
    if not records:
        raise CheckpointMismatch(f"{place} is not a checkpoint")
    return records[0], records[1:], whole


def _sync_folder(place: Path) -> None:
    """Sync the folder of a file, so that creating or removing the file survives a crash."""
    descriptor = os.open(place.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
