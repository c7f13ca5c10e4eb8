"""A question that was paid for is not paid again: answers kept beside the ledger.

With a ledger in a file and a version of the table that its owner states (``table_version``), the
same question on the same version returns the paid answer, marked as such, at no charge. Whether an
answer is there depends on public facts alone: the ledger, the budget and its period, the analyst,
the source's name, the stated version, the question and what its public tables hold
(``query_question``). The rows are not read, so that no row changes whether an answer is found; a
digest of the rows would tell whether one of them has changed. The owner states a new version when
the table changes; an old answer stays right for its version.
Repeating a released answer is post-processing: it needs no charge. Another analyst, whose cap
counts what they are told, and another period of a budget that renews pay anew: if the budget renews
between the look-up and the reservation, this reservation is settled at nothing, and the question is
looked up again. An answer, or a path, counts only while the ledger says that its charge was
settled; a ledger that was put back from a copy does not.

Answers are released values, kept in files that only their owner may read; simulations are not kept.

**A finer question continues the same path.** Beside an answer stands, in a file that only its owner
may read, what it was made of: the private values after the caps, a whole path of their noise (at
the levels of the question and far finer ones, drawn before the first look), and how far each group
was looked at; of a query one of these for every part. A question that differs in the wanted error,
the confidence or ε looks further along the same path. It reads no rows. Its charge is the sum of
the m largest group costs *now* less the same sum *before*, added up over the parts. Caps that were
chosen privately stay, and are not paid again. Nor is the share that they removed, where its
released estimate is good enough for the new error; else it is estimated anew.

Quantiles have no such path. A draw of the exponential mechanism is not a finer draw with noise
added: the law of both together would not be that of the finer one alone. And a histogram is looked
at at the cells that were drawn, so a finer attempt looks at other cells. They pay in full, with new
draws, also as a part of a query whose other parts pay the difference; that reads the rows again.

*Theorem.* All looks of all questions on one path, with whatever else is released in between, have
together the charges that the ledger holds. *Proof.* Of one part: write c_g for the largest cost at
which group g was looked at by any question. By noise reduction the looks at g, in any order and
number, are worth c_g: coarser ones are a randomised function of the finest. Which group is looked
at next, and whether another question is asked, depends on what was released. So the density of
everything released on this path changes by at most Σ c_g over the groups of one person, ≤ the sum
of the m largest c_g, and other releases multiply their own factors. The questions on the path paid
this very sum: the differences add up to it. Parts of a query are paths of their own, and everybody
pays for all of them: plain composition. The two noisy sums of a mean are looked at together, and
their noise is that of their common sensitivity, so they are one path. ∎

*What is lost costs, and never saves.* A path is removed after the reservation and before the first
look, and is written again when the charge is settled. Whoever dies in between leaves the worst case
charged and no path; the next question pays in full and draws new noise. A path that is put back
from a copy is older: less was paid for it, so the difference is larger. One question of a path at
a time (a lock). Intervals: every group counts as one that may have decided on its own looks
(``refinement``). They hold for a question that was not chosen after the earlier answer: the noise
is the same, so that a second interval often misses where the first one does.

Counts, sums, means and queries of given groups have paths; with δ, ``top`` or ``answered`` they pay
in full. Tests: ``tests/analytics/test_asked_before.py``,
``tests/analytics/test_queries_asked_before.py``, ``tests/theorems/test_continued_paths.py`` and
``tests/analytics/test_continued_queries.py`` (joint laws by enumeration, mutants).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from expost.analytics.contribution import GroupValues
from expost.analytics.pricing import CountPrice, KeptPath, outcome_of
from expost.analytics.refinement_noise import GroupPaths
from expost.analytics.request import completed
from expost.budget.charging import Account
from expost.budget.reservation_rows import SETTLED
from expost.budget.totals import period_at
from expost.errors import InvalidInput
from expost.files import canonical, lock_file, read_small, require_private
from expost.rationals import exact
from expost.tables.typed_columns import ibis_module

_FORMAT = 5  # of a file of paths
_FINER = (
    *("within", "plus_minus", "within_rank", "epsilon", "confidence", "rule", "ratio"),
    *("group_order", "prior", "max_group_epsilon"),
)  # settings that do not change what is measured
_NUMBERS = (
    *("epsilon", "delta", "within", "plus_minus", "within_rank", "confidence", "ratio"),
    *("max_group_epsilon", "bounds", "grid", "at", "bins"),
)


class PeriodEnded(Exception):
    """The budget renewed after a question was looked up: nothing was looked at yet."""


class PaidResult(Protocol):
    """What is kept of a result: its JSON form and its certificate."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""

    def certificate(self) -> dict[str, Any]:
        """Return the certificate."""


Result = TypeVar("Result", bound=Any)
Continuable = TypeVar("Continuable", bound=Any)  # a checked count, or a query of several parts


def ask_once(
    account: Account,
    version: str | None,
    question: Callable[[], tuple[Any, Any]],
    read: Callable[[Mapping[str, Any]], Result],
    ask: Callable[[KeptAnswer | None], Result],
) -> Result:
    """Return the paid answer of a question, marked, or ask it; ``read`` makes a result of a file.

    Whoever waited, or reserved, when the budget renewed looks the question up again: what is told
    in a period is paid in this period.
    """
    while (kept := kept_answer(account, version, question)) is not None:
        with kept.alone():
            if kept.in_period():
                if (earlier := kept.find(read)) is not None:
                    return earlier
                try:
                    return ask(kept)
                except PeriodEnded:
                    pass
    return ask(None)


def run_charged(
    account: Account,
    priced: CountPrice,
    run: Callable[[dict[str, Any] | None], Result],
    spent: Callable[[], Fraction],
    kept: KeptAnswer | None = None,
) -> Result:
    """Reserve the worst case, run, and settle at what was spent.

    ``run`` gets what the certificate says about the ledger; ``kept`` is where the answer will be.
    """
    with account.reserve(priced.charges, request=priced.request, source=priced.source) as reserved:
        certificate = None
        try:
            if kept is not None:
                kept.begin()
            evidence = reserved.evidence()
            result = run(evidence)
            if evidence is not None:
                certificate = result.certificate()
        finally:
            reserved.settle(outcome_of(spent(), priced.charges), certificate)
    return result


@dataclass(frozen=True)
class KeptAnswer:
    """The files of one question on one version of a table: its answer, and the path of its noise.

    Questions that differ in the wanted error and ε only have one path file.
    """

    path: Path
    noise: Path
    account: Account
    period: str

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

    def in_period(self) -> bool:
        """Whether the budget is still in the period of this question."""
        return self.period == _period(self.account)

    def begin(self) -> None:
        """Remove the path, after the reservation and before the first look.

        Whoever dies with it has lost it. The reservation must belong to the period of the question.
        """
        if self.period != _period(self.account, booked=True):
            raise PeriodEnded
        self.noise.unlink(missing_ok=True)

    def continued(self, request: Continuable) -> Continuable:
        """Return a request that continues the paths of an earlier question, if they are kept."""
        kept = self._read_paths() if request.keeps_path and self.noise.is_file() else []
        with suppress(ValueError):  # a path ends before the wanted error: it is asked anew
            request = request.on_path(*kept) if kept else request
        return request

    def _read_paths(self) -> list[KeptPath]:
        """The kept paths; none if the file is not what this version writes, or was not paid."""
        require_private(self.noise, "table_version")
        try:
            record = json.loads(read_small(self.noise, "table_version"))
            current = record["format"] == _FORMAT and self._settled(record["reservation"])
            return [_path_of(part) for part in record["parts"]] if current else []
        except (ValueError, KeyError, TypeError):
            return []

    def find(self, read: Callable[[Mapping[str, Any]], Result]) -> Result | None:
        """Return the paid answer, marked; None if the question was not asked before.

        It is an answer only while the ledger says that its charge was settled: the ledger may have
        been put back from a copy.
        """
        if not self.path.is_file():
            return None
        require_private(self.path, "table_version")
        try:
            release = json.loads(read_small(self.path, "table_version"))
            if not self._settled(release["certificate"]["ledger"]["reservation"]):
                return None
            return replace(read(release), asked_before=True)
        except (ValueError, KeyError, TypeError):  # not what this version writes: it is asked anew
            return None

    def _settled(self, reservation: str) -> bool:
        """Whether the ledger has this reservation, and its charge is settled."""
        ledger: Any = self.account.ledger
        known = ledger.reservation(reservation)
        return known is not None and ledger.status_of(known) == SETTLED

    def keep(self, result: PaidResult, kept: Sequence[KeptPath | None] = (), **more: Any) -> None:
        """Write the answer, and the paths of its parts, to files that only their owner may read."""
        certificate = result.certificate()
        _write(self.path, {"result": result.as_dict(), "certificate": certificate, **more})
        parts = [_path_record(path) for path in kept if path is not None]
        if parts and len(parts) == len(kept):
            paid = certificate["ledger"]["reservation"]
            _write(self.noise, {"format": _FORMAT, "reservation": paid, "parts": parts})


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
    record: dict[str, Any] = {"most": kept.most, "caps": kept.caps, "side": str(kept.side)}
    record |= {"limit": kept.limit, "share": kept.share}
    if values is None or path is None:
        return record
    columns: dict[str, Any] = {
        "first": values.first,
        "second": values.second,
        "users": values.users,
    }
    columns |= {"paid": path.paid, "noisy": path.noisy, "beside": path.second}
    whole = {
        name: None if c is None else c.astype(np.int64).tolist() for name, c in columns.items()
    }
    lists = {"groups": values.groups, "kept": values.kept, "removed": values.removed}
    return record | whole | {name: list(one) for name, one in lists.items()} | {"costs": path.costs}


def _path_of(record: Any) -> KeptPath:
    """The path of a record; ValueError if it is not whole."""
    caps = {name: record["caps"][name] for name in ("rows", "amount", "in_all")}
    told = {name: record[name] for name in ("limit", "share")}
    kept = KeptPath(record["most"], caps, **told, side=Fraction(record["side"]))
    if "costs" not in record:
        return kept
    groups, costs = tuple(record["groups"]), tuple(map(float, record["costs"]))

    def column(name: str, kind: Any, *shape: int) -> Any:
        numbers = None if record[name] is None else np.array(record[name], dtype=kind)
        if numbers is not None and numbers.shape != shape:
            raise ValueError(name)
        return numbers

    size, steps = len(groups), (len(costs), len(groups))
    users = np.array(record["users"], dtype=np.int64)
    amounts = (tuple(map(int, record[name])) for name in ("kept", "removed"))
    first, second, paid = (column(name, np.int64, size) for name in ("first", "second", "paid"))
    noisy, beside = (column(name, np.float64, *steps) for name in ("noisy", "beside"))
    if (first is None) or (noisy is None) or (paid is None) or list(costs) != sorted(costs):
        raise ValueError("costs")
    values = GroupValues(groups, first, second, users, *amounts)
    return replace(kept, values=values, path=GroupPaths(costs, noisy, paid, beside))


def kept_answer(
    account: Account, version: str | None, question: Callable[[], tuple[Any, Any]]
) -> KeptAnswer | None:
    """Return where the answer to a question is kept; None if no version is stated.

    ``question`` returns what makes two questions the same, and what makes two of them have one
    path, as JSON documents. Nothing in them may depend on a private row.
    """
    if version is None:
        return None
    path = getattr(account.ledger, "path", None)
    if account.ledger is None or path is None:
        raise InvalidInput("table_version", version, "it belongs to a ledger in a file: pass one")
    if not isinstance(version, str) or not version.strip():
        raise InvalidInput("table_version", version, "give a text that names the version")
    # By analyst and period: caps of analysts, and limits of periods, count what they were told.
    period = _period(account)
    known = [account.identity, period, version]
    answer, noise = (
        hashlib.sha256(canonical([*known, facts]).encode()).hexdigest() for facts in question()
    )
    folder = Path(f"{path}.answers")
    return KeptAnswer(folder / f"{answer}.json", folder / f"{noise}.path", account, period)


def count_question(data: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what makes two counts the same, and what makes two of them have one path."""
    question = plain_settings(completed(options)) | {"source": source_identity(data)}
    return question, without_errors(question)


def without_errors(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say what is measured: questions that share them have one path."""
    return {name: value for name, value in settings.items() if name not in _FINER}


def _period(account: Account, *, booked: bool = False) -> str:
    """The present period of a budget that renews, or that of its newest reservation; else empty."""
    ledger: Any = account.ledger
    renewal = ledger.standing(account.budget).renewal
    if renewal is None:
        return ""
    # A ledger does not go back to an earlier period if the clock does.
    present = renewal.period if booked else period_at(renewal.every, datetime.now(UTC))
    return str(max(renewal.period, present))


def source_identity(data: Any) -> str:
    """Return what tells a source from others; of tables in memory this is left to the version."""
    if isinstance(data, (str, Path)):
        scheme, separator, place = str(data).rpartition("://")
        local = not separator or scheme in ("duckdb", "sqlite")
        return f"{scheme}{separator}{Path(place).resolve()}" if local else str(data)
    kind = f"{type(data).__module__.partition('.')[0]} {type(data).__name__}"
    if not kind.startswith("ibis "):
        return kind
    try:
        return f"{kind}: {ibis_module().to_sql(data)}"
    except Exception as error:
        valid = f"Ibis cannot write it as SQL ({type(error).__name__}): pass the table itself"
        raise InvalidInput("table_version", kind, valid) from None


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for a digest; None and False are what is not set, and 1.0 is 1."""
    alone = ("by", "at")  # one of them need not be a list
    given = {
        name: [value] if name in alone and isinstance(value, (str, float)) else value
        for name, value in settings.items()
        if value is not None and value is not False  # 0 is a value
    }
    return {
        name: _exact(name, value) if name in _NUMBERS else _plain(value)
        for name, value in given.items()
    }


def _exact(name: str, value: Any) -> Any:
    """A setting that holds numbers, alone or in lists: equal numbers have one text."""
    if isinstance(value, Mapping):
        return {str(key): _exact(name, member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_exact(name, member) for member in value]
    numbers = (int, float, Rational, Decimal, np.number)
    alone = isinstance(value, numbers) and not isinstance(value, bool)
    return str(exact(value, name)) if alone else _plain(value)


def _plain(value: Any) -> Any:
    """A setting for a digest: text, numbers and lists of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, Iterator):
        valid = "give a list: with table_version it is read twice"
        raise InvalidInput("table_version", type(value).__name__, valid)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_plain(member) for member in value]  # arrays too: their text leaves cells out
    if isinstance(value, float) and math.isfinite(value):
        return float(value)  # not its text, which a name of a group may be, too
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return f"{type(value).__name__}: {value}"
