"""The totals and reservations of a ledger, recomputed from its entries.

``Ledger.verify`` compares the result with the tables. Amounts are exact; nothing is rounded.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from expost.budget.budgets import Coordinates, budget_from_dict
from expost.budget.filter import Filter
from expost.budget.hash_chain import (
    ABANDON,
    CAP,
    CREATE,
    GENESIS,
    RESERVE,
    SETTLE,
    Entry,
    broken_link,
    canonical,
)
from expost.errors import ExpostError

_STATUS = {RESERVE: "open", SETTLE: "settled", ABANDON: "abandoned"}
_COLUMNS = ("budget", "analyst", "status", "worst", "charges", "outcome")


@dataclass
class ReplayedRequest:
    """A reservation, recomputed from the entries."""

    budget: str
    analyst: str
    worst: Coordinates
    charges: str
    status: str = "open"
    outcome: str | None = None

    def columns(self) -> tuple[str | None, ...]:
        """Return what the table must hold, in the order of ``_COLUMNS``; charges as a digest."""
        return (
            self.budget,
            self.analyst,
            self.status,
            canonical(texts(self.worst)),
            self.charges,
            self.outcome,
        )


@dataclass
class Replay:
    """The filters and reservations that the entries applied so far lead to.

    Parameters
    ----------
    filters : dict
        The filter of each budget and each cap, by budget and analyst.
    jobs : dict
        The reservations by id.
    last : tuple
        The number and the hash of the last entry.
    """

    filters: dict[tuple[str, str], Filter] = field(default_factory=dict)
    jobs: dict[str, ReplayedRequest] = field(default_factory=dict)
    last: tuple[int, str] = (0, GENESIS)

    def check(self, entries: Iterable[Entry]) -> Iterator[str]:
        """Apply the entries and yield what is wrong with each of them."""
        for entry in entries:
            if not entry.well_typed:
                yield f"row {entry.sequence!r}: edited (a column holds a value of the wrong type)"
                self.last = (self.last[0] + 1, str(entry.hash))
                continue
            yield from broken_link(entry, *self.last)
            yield from self._step(entry)
            self.last = (entry.sequence, entry.hash)

    def _step(self, entry: Entry) -> Iterator[str]:
        try:
            problem = self._apply(entry)
        except (ExpostError, ValueError, KeyError, TypeError, ArithmeticError) as error:
            problem = str(error) or type(error).__name__
        if problem:
            yield f"row {entry.sequence}: {problem}"

    def _apply(self, entry: Entry) -> str | None:
        if entry.action in (CREATE, CAP):
            return self._create(entry)
        if (entry.budget, "") not in self.filters:
            return f"uses the budget {entry.budget!r}, which was never created"
        if entry.action == RESERVE:
            return self._reserve(entry)
        if entry.action in (SETTLE, ABANDON):
            return self._finish(entry)
        return f"has the unknown action {entry.action!r}"

    def _create(self, entry: Entry) -> str | None:
        if (entry.budget, entry.analyst) in self.filters:
            return f"creates the budget {entry.budget!r} again"
        self.filters[entry.budget, entry.analyst] = Filter.empty(
            budget_from_dict(entry.facts["terms"]), entry.budget
        )
        return None

    def _reserve(self, entry: Entry) -> str | None:
        if entry.reservation in self.jobs:
            return "reserves with an id that was used before"
        worst = numbers(entry.facts["worst"])
        self.jobs[entry.reservation] = ReplayedRequest(
            entry.budget, entry.analyst, worst, entry.facts["charges"]
        )
        places = self._places(entry)
        fits = all(self.filters[place].admits(worst) for place in places)
        for place in places:
            state = self.filters[place]
            self.filters[place] = replace(
                state, held=tuple(a + b for a, b in zip(state.held, worst, strict=True))
            )
        return None if fits else f"overspends the budget {entry.budget!r}"

    def _finish(self, entry: Entry) -> str | None:
        job = self.jobs.get(entry.reservation)
        if job is None or job.status != "open":
            return "finishes a reservation that is not open"
        if (job.budget, job.analyst) != (entry.budget, entry.analyst):
            return "finishes a reservation of another budget or analyst"
        spent = numbers(entry.facts["spent"])
        if entry.action == ABANDON and spent != job.worst:
            return "abandons a reservation for less than its worst case"
        after = {
            place: self.filters[place].settle(job.worst, spent) for place in self._places(entry)
        }
        self.filters.update(after)
        job.status, job.outcome = _STATUS[entry.action], entry.facts.get("outcome")
        return None

    def _places(self, entry: Entry) -> list[tuple[str, str]]:
        places = dict.fromkeys(((entry.budget, ""), (entry.budget, entry.analyst)))
        return [place for place in places if place in self.filters]

    def compare_head(self, row: Sequence[Any] | None) -> Iterator[str]:
        """Yield whether the recorded end of the ledger differs from its last entry."""
        if row is None:
            yield "head: removed"
            return
        sequence, digest = row
        if isinstance(sequence, int) and sequence > self.last[0]:
            yield f"rows after {self.last[0]}: removed (the ledger had {sequence} rows)"
        elif (sequence, str(digest).strip()) != self.last:
            yield f"head: edited, or row {self.last[0]} was replaced"

    def compare_totals(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the totals that differ from the sums of the entries."""
        stored = {(row[0], row[1]): tuple(row[2:]) for row in rows}
        for place in sorted(set(stored) | set(self.filters), key=str):
            state = self.filters.get(place)
            told = (
                None
                if state is None
                else (state.budget.as_dict(), texts(state.settled), texts(state.held))
            )
            if stored.get(place) != (None if told is None else tuple(map(canonical, told))):
                who = f" for {place[1]!r}" if place[1] else ""
                yield f"totals of budget {place[0]!r}{who}: do not match the entries"

    def compare_reservations(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the reservations that differ from what the entries record."""
        stored = {row[0]: (*row[1:5], _digest(row[5]), row[6]) for row in rows}
        for identity in sorted(set(stored) | set(self.jobs), key=str):
            if identity not in stored:
                yield f"reservation {identity}: removed"
            elif identity not in self.jobs:
                yield f"reservation {identity}: no entry records it"
            else:
                pairs = zip(_COLUMNS, stored[identity], self.jobs[identity].columns(), strict=True)
                for column in (name for name, found, told in pairs if found != told):
                    yield f"reservation {identity}: its {column} does not match the entries"


def numbers(amounts: Sequence[str]) -> Coordinates:
    """Return the exact amounts that :func:`texts` wrote."""
    parts = (text.partition("/") for text in amounts)
    return tuple(Fraction(int(above), int(below or 1)) for above, _, below in parts)


def texts(amounts: Coordinates) -> list[str]:
    """Return exact amounts as texts such as ``"1/4"``."""
    return [str(each) for each in amounts]


def _digest(charges: Any) -> str:
    """The digest of stored charges, whose text is in canonical form already."""
    return hashlib.sha256(str(charges).encode()).hexdigest()
