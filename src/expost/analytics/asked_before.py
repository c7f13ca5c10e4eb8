"""A question that was paid for is not paid again: answers kept beside the ledger.

With a ledger in a file and a version of the table that its owner states (``table_version``), the
same question on the same version returns the paid answer, marked as such, at no charge. Whether an
answer is there depends on public facts alone: the ledger, the budget and its period, the analyst,
the source's name, the stated version and the question. The rows are not read, so that no row
changes whether an answer is found; a digest of the rows would tell whether one of them has changed.
The owner states a new version when the table changes; an old answer stays right for its version.
Repeating a released answer is post-processing: it needs no charge. Another analyst, whose cap
counts what they are told, and another period of a budget that renews pay anew.

Answers are released values, kept in files that only their owner may read; simulations are not kept.

**A finer question continues the same path.** Beside an answer stands, in a file that only its owner
may read, what it was made of: the private values after the caps, a whole path of their noise (at
the levels of the question and far finer ones, drawn before the first look), and how far each group
was looked at. A question that differs in the wanted error, the confidence or ε looks further along
the same path. It reads no rows. Its charge is the sum of the m largest group costs *now* less the
same sum *before*, and what it buys besides (the share that the caps removed); caps that were chosen
privately stay, and are not paid again.

*Theorem.* All looks of all questions on one path, with whatever else is released in between, have
together the charges that the ledger holds. *Proof.* Write c_g for the largest cost at which group g
was looked at by any question. By noise reduction the looks at g, in any order and number, are
worth c_g: coarser ones are a randomised function of the finest. Which group is looked at next, and
whether another question is asked, depends on what was released. So the density of everything
released on this path changes by at most Σ c_g over the groups of one person, ≤ the sum of the m
largest c_g, and other releases multiply their own factors. The questions on the path paid this
very sum: the differences add up to it. ∎

*What is lost costs, and never saves.* A path is removed after the reservation and before the first
look, and is written again when the charge is settled. Whoever dies in between leaves the worst case
charged and no path; the next question pays in full and draws new noise. A path that is put back
from a copy is older: less was paid for it, so the difference is larger. One question of a path at
a time (a lock). Intervals: every group counts as one that may have decided on its own looks
(``refinement``). They hold for a question that was not chosen after the earlier answer: the noise
is the same, so that a second interval often misses where the first one does.

Counts and sums of given groups without δ, ``top`` and ``answered`` have paths; others pay in full.
Tests: ``tests/analytics/test_asked_before.py``, ``tests/theorems/test_continued_paths.py`` (joint
law of both releases by enumeration, mutants).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from expost.analytics.contribution import GroupValues
from expost.analytics.count_result import CountResult, result_of_release
from expost.analytics.pricing import CheckedCount, KeptPath
from expost.analytics.refinement import GroupPaths
from expost.analytics.request import completed
from expost.budget.charging import Account
from expost.budget.totals import period_at
from expost.errors import InvalidInput
from expost.files import canonical, lock_file, read_small, require_private

_FORMAT = 3  # of a path
_FINER = (
    *("within", "plus_minus", "epsilon", "confidence", "rule", "ratio"),
    *("group_order", "prior", "max_group_epsilon"),
)  # settings that do not change what is measured


@dataclass(frozen=True)
class KeptAnswer:
    """The files of one question on one version of a table: its answer, and the path of its noise.

    Questions that differ in the wanted error and ε only have one path file.
    """

    path: Path
    noise: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else asks a question of this path."""
        self.noise.parent.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self.noise.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(lock, wait=True)
            yield
        finally:
            os.close(lock)

    def continued(self, request: CheckedCount) -> CheckedCount:
        """Return a request that continues the path of an earlier question, if one is kept."""
        kept = self._read_path() if request.keeps_path and self.noise.is_file() else None
        if kept is None:
            return request
        rows, amount = kept.caps["rows"], kept.caps["amount"]
        measure = replace(request.measure, rows=rows, amount=amount)
        finer = replace(request, measure=measure, chooses_rows=False, cap=kept.most, kept=kept)
        try:
            finer.check_levels(kept.most)
        except InvalidInput:  # the path ends before the wanted error: it is asked anew
            return request
        return finer

    def take_path(self) -> None:
        """Remove the path: whoever dies with it has lost it."""
        self.noise.unlink(missing_ok=True)

    def _read_path(self) -> KeptPath | None:
        """The kept path; None if the file is not what this version writes."""
        require_private(self.noise, "table_version")
        try:
            return _path_of(json.loads(read_small(self.noise, "table_version")))
        except (ValueError, KeyError, TypeError):
            return None

    def find(self) -> CountResult | None:
        """Return the paid answer, marked; None if the question was not asked before."""
        if not self.path.is_file():
            return None
        require_private(self.path, "table_version")
        release = json.loads(read_small(self.path, "table_version"))
        return replace(result_of_release(release), asked_before=True)

    def keep(self, result: CountResult, kept: KeptPath | None = None) -> None:
        """Write the answer, and a path, to files that only their owner may read."""
        _write(self.path, {"result": result.as_dict(), "certificate": result.certificate()})
        if kept is not None:
            _write(self.noise, _path_record(kept))


def _write(path: Path, record: Any) -> None:
    """Write a file that only its owner may read, at once or not at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_suffix(f".{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(record, stream, allow_nan=False)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _path_record(kept: KeptPath) -> dict[str, Any]:
    """A path for JSON: whole numbers, and costs that JSON holds exactly."""
    values, path = kept.values, kept.path
    numbers = {"first": values.first, "users": values.users, "paid": path.paid}
    return {
        "format": _FORMAT,
        "most": kept.most,
        "caps": kept.caps,
        "groups": list(values.groups),
        "kept": list(values.kept),
        "removed": list(values.removed),
        "limit": kept.limit,
        "costs": list(path.costs),
        "noisy": path.noisy.astype(np.int64).tolist(),
        **{name: column.tolist() for name, column in numbers.items()},
    }


def _path_of(record: Any) -> KeptPath | None:
    """The path of a record; None if it is not whole."""
    first, users, paid = (np.array(record[name], np.int64) for name in ("first", "users", "paid"))
    groups, costs = tuple(record["groups"]), tuple(map(float, record["costs"]))
    noisy = np.array(record["noisy"], dtype=np.float64)
    whole = noisy.shape == (len(costs), len(groups)) and len(first) == len(paid) == len(groups)
    if record["format"] != _FORMAT or not whole or list(costs) != sorted(costs):
        return None
    amounts = (tuple(map(int, record[name])) for name in ("kept", "removed"))
    values = GroupValues(groups, first, None, users, *amounts)
    caps = {name: record["caps"][name] for name in ("rows", "amount")}
    return KeptPath(record["most"], caps, values, GroupPaths(costs, noisy, paid), record["limit"])


def kept_answer(
    account: Account, data: Any, options: Mapping[str, Any], version: str | None
) -> KeptAnswer | None:
    """Return where the answer to a question is kept; None if no version is stated."""
    if version is None:
        return None
    path = getattr(account.ledger, "path", None)
    if account.ledger is None or path is None:
        raise InvalidInput("table_version", version, "it belongs to a ledger in a file: pass one")
    if not isinstance(version, str) or not version.strip():
        raise InvalidInput("table_version", version, "give a text that names the version")
    asked = completed(options)
    source = str(Path(data).resolve()) if _is_file(data) else f"{type(data).__name__}: {data}"
    if not isinstance(data, (str, Path)):
        source = type(data).__name__
    question = {name: _plain(value) for name, value in asked.items()}
    # By analyst and period: caps of analysts, and limits of periods, count what they were told.
    known = [account.identity, _period(account), source, version]
    rest = {name: value for name, value in question.items() if name not in _FINER}
    answer, noise = (
        hashlib.sha256(canonical([*known, facts]).encode()).hexdigest()
        for facts in (question, rest)
    )
    folder = Path(f"{path}.answers")
    return KeptAnswer(folder / f"{answer}.json", folder / f"{noise}.path")


def _period(account: Account) -> str:
    """The present period of a budget that renews; empty for others."""
    ledger: Any = account.ledger
    renewal = ledger.standing(account.budget).renewal
    return "" if renewal is None else period_at(renewal.every, datetime.now(UTC))


def _is_file(data: Any) -> bool:
    """Whether a source is a path, not a connection URL."""
    return isinstance(data, Path) or (isinstance(data, str) and "://" not in data)


def _plain(value: Any) -> Any:
    """A setting for a digest: text, numbers and lists of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, Iterator):
        valid = "give a list: with table_version it is read twice"
        raise InvalidInput("table_version", type(value).__name__, valid)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_plain(member) for member in value]  # arrays too: their text leaves cells out
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
