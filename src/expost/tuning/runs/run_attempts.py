"""The attempts of a job: what their outcomes cost, how they are made, and how they are recorded.

**Folder.** ``attempts.json`` and the checkpoints can be read by their owner only and are removed
when the job is finished. Every attempt has a checkpoint of its own, which is erased after its
release was recorded, so no crash loses a release. If an attempt has read rows and its checkpoint is
gone all the same (somebody removed it), it is counted at its worst case and never left out.

**Attempts.** With a goal a job is a sequence of Algorithm 2 attempts, each with its own draw and
its own request to the ledger, until one passes or the planned attempts are used up. A miss releases
nothing and pays the price of nothing. Without a goal a job is one request of Algorithm 3.

δ belongs to the job. The plan shares it among the attempts, and each attempt's charges are priced
at its own share; the whole δ is charged with the first attempt, because it is spent whether later
attempts are made or not. So ledger, certificate and screen show the same ε and the same δ at any
time. Composition: docs/theory.md, "Attempts in sequence" (``tests/theorems/test_attempts.py``).

Tests: ``tests/tuning/test_resume.py``, ``tests/tuning/test_attempts.py``.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp
from pathlib import Path
from typing import Any, Protocol

from expost.errors import BudgetRefused, CheckpointMismatch, InvalidInput
from expost.execution.checkpoint import fingerprint
from expost.files import lock_file
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.above_threshold import PlannedAttempt
from expost.selection.attempts import Schedule, candidates_of, level_of
from expost.selection.candidate import Candidate
from expost.selection.drop_law import log_keep_probability
from expost.selection.noise_path import PathSearch
from expost.selection.release import Release
from expost.selection.selector import Selector
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import Margins
from expost.tuning.runs.candidates import FittedCodec

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


@dataclass(frozen=True, eq=False)
class Step:
    """One request of a job: a selector, its candidates, and what its outcomes cost.

    ``recipe`` describes the released model if it is not the job's own, as after noise reduction,
    where outputs are compared with the goal by the selector itself.
    """

    selector: Selector
    candidates: tuple[Candidate, ...]
    charges: Charges
    runs: float
    recipe: Recipe | None = None


def priced_steps(
    schedule: Schedule,
    candidates: Sequence[Candidate],
    levels: Sequence[float],
    *,
    at_least: float,
    delta: float | None,
    order: tuple[float, ...] | None = None,
    level: Callable[[Candidate], float] = level_of,
) -> list[Step]:
    """Return the requests of a schedule, priced; without ``delta`` and ``order``: pure DP."""
    steps = []
    pure = delta is None and order is None
    for number, attempt in enumerate(schedule.attempts):
        chosen = candidates_of(candidates, levels, attempt, pure=pure, level=level)
        plain = schedule.selector(number, at_least, delta=delta, order=order)
        settings = {field.name: getattr(plain, field.name) for field in fields(plain)}
        # δ is spent whether later attempts are made or not: the first is charged with all of it.
        charged = None if pure or order is not None else delta if number == 0 else 0.0
        selector = PlannedAttempt(**settings, charged_delta=charged).remember(chosen)
        law = selector.drop_law(chosen)
        runs = sum(
            group.copies * exp(log_keep_probability(float(law.overhead), float(rate)))
            for group, rate in zip(law.groups, law.rates, strict=True)
        )
        steps.append(Step(selector, tuple(chosen), selector.charges(chosen), runs))
    return steps


class OverTheLimit(InvalidInput):
    """Not even one attempt at the lowest level fits into ``privacy.max_epsilon``."""


class Scored(Protocol):
    """An output with a score and the law of its noise; :class:`.candidates.ScoredModel` is one."""

    @property
    def score(self) -> float: ...

    @property
    def deviation(self) -> float: ...

    @property
    def unit(self) -> float: ...

    @property
    def law(self) -> str: ...


@dataclass(frozen=True)
class ClearedScore:
    """The score that an attempt compares with the goal: the noisy score less the margin."""

    margins: Margins | None
    attempt: int

    def __call__(self, fitted: Scored) -> float:
        if self.margins is None:
            return fitted.score
        margin = self.margins.margin(self.attempt, fitted.deviation, fitted.unit, law=fitted.law)
        return fitted.score - margin


def make_attempts(
    steps: Sequence[Step],
    data: dict[str, Any],
    journal: Journal | None,
    margins: Margins | None,
    on_attempt: Callable[[int, int], None] | None = None,
    allowed: Callable[[Guarantee], bool] = lambda total: True,
    after_miss: Callable[[Sequence[Release | None]], Step | None] = lambda releases: None,
    **request: Any,
) -> tuple[list[Release | None], bool]:
    """Make the requests in turn until one passes.

    ``on_attempt`` is called with the number of an attempt and the most that there may be.
    ``allowed`` takes what the job would have cost after another request, at worst: attempts that a
    crash lost stay charged, and must not lead above the job's limit. ``after_miss`` returns a
    further request if all of them missed.
    """
    releases: list[Release | None] = [] if journal is None else journal.attempts
    while True:
        step, further = steps[min(len(releases), len(steps) - 1)], None
        if _finished(steps, releases):
            further = after_miss(releases) if len(releases) == len(steps) else None
            if further is None:
                return releases, False
            step = further
        plain = further is not None or _is_path(step)  # outputs are compared as they are, or not
        score = ClearedScore(margins, len(releases) - sum(map(_is_path, steps)))
        total = step.charges.worst_case
        for number, earlier in enumerate(releases):
            planned = steps[min(number, len(steps) - 1)].charges.worst_case
            # What a crash lost may have been released: it counts at its worst case.
            total = total + (planned if earlier is None else earlier.spent)
        if releases and not allowed(total):
            return releases, True
        if on_attempt is not None:
            on_attempt(len(releases) + 1, max(len(steps), len(releases) + 1))
        try:
            release = step.selector.select(
                step.candidates,
                data,
                score=None if plain else score,  # margins count attempts of Algorithm 2 alone
                checkpoint=None if journal is None else journal.checkpoint,
                on_start=None if journal is None else journal.begin,
                on_release=None if journal is None else journal.add,
                **request,
            )
        # Refused later, the job ends with what it has: its earlier charges are settled.
        except BudgetRefused:
            if not releases:
                raise
            return releases, True
        releases.append(release)


def _is_path(step: Step) -> bool:
    """Whether a request is one of noise reduction."""
    return isinstance(step.selector, PathSearch)


def _finished(steps: Sequence[Step], releases: Sequence[Release | None]) -> bool:
    """Whether the job is over: a model passed, or the planned attempts were made.

    A request without a goal is over when it released something; one that a crash lost stays charged
    and is drawn again.
    """
    present = [release for release in releases if release is not None]
    if any(each.passed is None or each.passed for each in present):
        return True
    planned = isinstance(steps[0].selector, PlannedAttempt) or _is_path(steps[0])
    return len(releases) >= len(steps) and planned
