"""The totals and reservations of a ledger, recomputed from its entries.

``Ledger.verify`` compares the result with the tables. It also computes charges again: every worst
case and every settled amount must be what the recorded charges say. Amounts are exact; nothing is
rounded. Entries that expost 0.1 wrote are checked with the meaning that floats had then
(:func:`expost.budget.limits.binary_amounts`).
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from expost.budget.budgets import budget_from_dict
from expost.budget.ledger_rows import (
    ABANDON,
    ALERT,
    CAP,
    CHANGE,
    CREATE,
    GENESIS,
    RENEW,
    RESERVE,
    SETTLE,
    UPGRADE,
    Entry,
    broken_link,
)
from expost.budget.limits import (
    Budget,
    Coordinates,
    Filter,
    add,
    amount_texts,
    binary_amounts,
    exact_amounts,
)
from expost.errors import ExpostError
from expost.files import canonical
from expost.privacy.charges import Charges

_STATUS = {RESERVE: "open", SETTLE: "settled", ABANDON: "abandoned"}
_COLUMNS = (
    *("budget", "analyst", "status", "worst", "charges", "outcome"),
    *("entry", "request", "secret"),
)


@dataclass
class ReplayedRequest:
    """A reservation, recomputed from the entries."""

    budget: str
    analyst: str
    worst: Coordinates
    charges: str
    terms: Budget
    entry: int
    request: str = ""
    secret: str = ""
    period: str = ""
    binary: bool = False
    status: str = "open"
    outcome: str | None = None
    spent: Coordinates | None = None
    finished_binary: bool = False

    def columns(self) -> tuple[str | int | None, ...]:
        """Return what the table must hold, in the order of ``_COLUMNS``; charges as a digest."""
        told = vars(self) | {"worst": canonical(amount_texts(self.worst))}
        return tuple(told[name] for name in _COLUMNS)

    def wrong_charges(self, recorded: str) -> list[str]:
        """Return which amounts are not what the recorded charges say."""
        try:
            return list(self._wrong(_parsed(recorded)))
        except (ExpostError, ValueError, KeyError, TypeError, ArithmeticError) as error:
            return [f"its charge cannot be computed ({type(error).__name__})"]

    def _wrong(self, charges: Charges) -> Iterator[str]:
        with _meaning(self.binary):
            if self.terms.worst(charges) != self.worst:
                yield "its worst case is not that of its charges"
        if self.status != "settled":
            return
        index = None if self.outcome == "nothing" else int(str(self.outcome))
        if index is not None and not 0 <= index < len(charges):
            yield "it has no such outcome"
            return
        charge = charges.nothing if index is None else charges[index]
        with _meaning(self.finished_binary):
            if self.terms.coordinates(charge) != self.spent:
                yield "it was not settled at the charge of its outcome"


@dataclass
class Period:
    """The present period of a budget that renews, and what was settled before it."""

    every: str
    period: str
    past: dict[str, Coordinates] = field(default_factory=dict)


@dataclass
class Replay:
    """The filters and reservations that the entries applied so far lead to.

    ``filters``: the filter of each budget and each cap, by budget and analyst. ``jobs``: the
    reservations by id. ``periods``: the periods of budgets that renew. ``alerts``: the commands of
    alerts by budget and share. ``last``: the number and the hash of the last entry. ``binary``:
    whether the entries were written by expost 0.1.
    """

    filters: dict[tuple[str, str], Filter] = field(default_factory=dict)
    jobs: dict[str, ReplayedRequest] = field(default_factory=dict)
    periods: dict[str, Period] = field(default_factory=dict)
    alerts: dict[tuple[str, str], str] = field(default_factory=dict)
    last: tuple[int, str] = (0, GENESIS)
    binary: bool = False

    def check(self, entries: Iterable[Entry]) -> Iterator[str]:
        """Apply the entries and yield what is wrong with each of them."""
        for entry in entries:
            if not entry.well_typed:
                yield f"row {entry.sequence!r}: edited (a column holds a value of the wrong type)"
                self.last = (self.last[0] + 1, str(entry.hash))
                continue
            yield from broken_link(entry, *self.last)
            try:
                with _meaning(self.binary):
                    problem = self._apply(entry)
            except (ExpostError, ValueError, KeyError, TypeError, ArithmeticError) as error:
                problem = str(error) or type(error).__name__
            if problem:
                yield f"row {entry.sequence}: {problem}"
            self.last = (entry.sequence, entry.hash)

    def _apply(self, entry: Entry) -> str | None:
        if entry.action in (CREATE, CAP):
            return self._create(entry)
        if entry.action == UPGRADE:
            self.binary = False
            return None
        if (entry.budget, "") not in self.filters:
            return f"uses the budget {entry.budget!r}, which was never created"
        if entry.action == RESERVE:
            return self._reserve(entry)
        if entry.action in (SETTLE, ABANDON):
            return self._finish(entry)
        if entry.action == CHANGE:
            return self._change(entry)
        if entry.action == RENEW:
            return self._renew(entry)
        if entry.action == ALERT:
            self.alerts[entry.budget, entry.facts["share"]] = entry.facts["command"]
            return None
        return f"has the unknown action {entry.action!r}"

    def _create(self, entry: Entry) -> str | None:
        if (entry.budget, entry.analyst) in self.filters:
            return f"creates the budget {entry.budget!r} again"
        facts = entry.facts
        if entry.sequence == 1:
            self.binary = "schema" not in facts
        if "renews" in facts and not entry.analyst:
            self.periods[entry.budget] = Period(facts["renews"], facts["period"])
        self.filters[entry.budget, entry.analyst] = Filter.empty(
            budget_from_dict(facts["terms"]), entry.budget
        )
        return None

    def _change(self, entry: Entry) -> str | None:
        account, record = (entry.budget, entry.analyst), entry.facts["terms"]
        if record is None:
            if not entry.analyst or account not in self.filters:
                return "removes a cap that is not there"
            del self.filters[account]
            if entry.budget in self.periods:
                self.periods[entry.budget].past.pop(entry.analyst, None)
            return None
        terms = budget_from_dict(record)
        if terms.kind != self.filters[entry.budget, ""].budget.kind:
            return f"changes the kind of the budget {entry.budget!r}"
        known = self.filters.get(account)
        self.filters[account] = (
            Filter(terms, *self.charged(entry.budget, entry.analyst, len(terms.limits)))
            if known is None
            else replace(known, budget=terms)
        )
        return None

    def charged(self, budget: str, analyst: str, size: int) -> tuple[Coordinates, Coordinates]:
        """Return the sums of an analyst's settled and held charges."""
        zero: Coordinates = (Fraction(0),) * size
        settled = held = zero
        for job in self.jobs.values():
            if (job.budget, job.analyst) == (budget, analyst):
                settled = add(settled, zero if job.spent is None else job.spent)
                held = add(held, job.worst if job.spent is None else zero)
        return settled, held

    def _renew(self, entry: Entry) -> str | None:
        period = self.periods.get(entry.budget)
        first = entry.facts["period"]
        if period is None or not period.period < first <= entry.time[:10]:
            return "renews a budget before its time"
        period.period = first
        for account in [account for account in self.filters if account[0] == entry.budget]:
            state = self.filters[account]
            zero = (Fraction(0),) * len(state.settled)
            period.past[account[1]] = add(period.past.get(account[1], zero), state.settled)
            self.filters[account] = replace(state, settled=zero)
        return None

    def _reserve(self, entry: Entry) -> str | None:
        if entry.reservation in self.jobs:
            return "reserves with an id that was used before"
        worst = exact_amounts(entry.facts["worst"])
        facts = entry.facts
        self.jobs[entry.reservation] = ReplayedRequest(
            *(entry.budget, entry.analyst, worst, facts["charges"]),
            terms=self.filters[entry.budget, ""].budget,
            entry=entry.sequence,
            request=facts.get("request", ""),
            secret=facts.get("secret", ""),
            period=facts.get("period", ""),
            binary=self.binary,
        )
        # Held even if it does not fit: the table of totals holds it, too.
        accounts = self._places(entry)
        fits = all(self.filters[account].admits(worst) for account in accounts)
        for account in accounts:
            state = self.filters[account]
            self.filters[account] = replace(state, held=add(state.held, worst))
        present = self.periods.get(entry.budget, Period("", "")).period
        if facts.get("period", present) != present:
            return "reserves in another period than the present one"
        return None if fits else f"overspends the budget {entry.budget!r}"

    def _finish(self, entry: Entry) -> str | None:
        job = self.jobs.get(entry.reservation)
        if job is None or job.status != "open":
            return "finishes a reservation that is not open"
        if (job.budget, job.analyst) != (entry.budget, entry.analyst):
            return "finishes a reservation of another budget or analyst"
        spent = exact_amounts(entry.facts["spent"])
        if entry.action == ABANDON and spent != job.worst:
            return "abandons a reservation for less than its worst case"
        period = self.periods.get(entry.budget, Period("", ""))
        earlier = "" < job.period < period.period
        after = {
            account: self.filters[account].settle(job.worst, spent, earlier=earlier)
            for account in self._places(entry)
        }
        for _, who in after if earlier else ():
            zero = (Fraction(0),) * len(spent)
            period.past[who] = add(period.past.get(who, zero), spent)
        self.filters.update(after)
        job.status, job.outcome = _STATUS[entry.action], entry.facts.get("outcome")
        job.spent, job.finished_binary = spent, self.binary
        return None

    def _places(self, entry: Entry) -> list[tuple[str, str]]:
        accounts = dict.fromkeys(((entry.budget, ""), (entry.budget, entry.analyst)))
        return [account for account in accounts if account in self.filters]

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
        for account in sorted(set(stored) | set(self.filters), key=str):
            state = self.filters.get(account)
            told = None if state is None else self._total(account, state)
            if stored.get(account) != told:
                who = f" for {account[1]!r}" if account[1] else ""
                yield f"totals of budget {account[0]!r}{who}: do not match the entries"

    def _total(self, account: tuple[str, str], state: Filter) -> tuple[str, ...]:
        """What the table of totals must hold after the names."""
        period = self.periods.get(account[0], Period("", ""))
        past = period.past.get(account[1], (Fraction(0),) * len(state.settled))
        amounts = (canonical(amount_texts(amount)) for amount in (state.settled, state.held))
        told = (canonical(state.budget.as_dict()), *amounts)
        return (*told, period.every, period.period, canonical(amount_texts(past)))

    def compare_reservations(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the reservations that differ from what the entries record."""
        stored = {row[0]: (*row[1:5], _digest(row[5]), *row[6:]) for row in rows}
        charges = {row[0]: row[5] for row in rows}
        for identity in sorted(set(stored) | set(self.jobs), key=str):
            if identity not in stored:
                yield f"reservation {identity}: removed"
            elif identity not in self.jobs:
                yield f"reservation {identity}: no entry records it"
            else:
                job = self.jobs[identity]
                pairs = zip(_COLUMNS, stored[identity], job.columns(), strict=True)
                wrong = [name for name, recorded, told in pairs if recorded != told]
                for column in wrong:
                    yield f"reservation {identity}: its {column} does not match the entries"
                if "charges" not in wrong:
                    yield from (
                        f"reservation {identity}: {problem}"
                        for problem in job.wrong_charges(charges[identity])
                    )

    def compare_alerts(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the alerts that differ from what the entries record."""
        told = {alert: command for alert, command in self.alerts.items() if command}
        if {(row[0], row[1]): row[2] for row in rows} != told:
            yield "alerts: do not match the entries"


@lru_cache(maxsize=8)  # few, because a table of charges may be long
def _parsed(charges: str) -> Charges:
    return Charges.from_dict(json.loads(charges))


def _meaning(binary: bool) -> AbstractContextManager[None]:
    """What floats stand for: binary fractions in entries of expost 0.1, otherwise decimals."""
    return binary_amounts() if binary else nullcontext()


def _digest(charges: Any) -> str:
    """The digest of stored charges, whose text is in canonical form already."""
    return hashlib.sha256(str(charges).encode()).hexdigest()
