"""Tables, filters and documents of ``expost ledger``.

Amounts are shown as decimals: exact ones as they are, others with 12 digits, spent amounts rounded
up and remaining amounts rounded down. Tests: ``tests/cli/test_ledger_cli.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from expost import plots
from expost.budget.amounts import decimal_text
from expost.budget.base import Budget, Coordinates
from expost.budget.budgets import budget_from_dict
from expost.budget.hash_chain import ABANDON, CAP, CHANGE, CREATE, RESERVE, SETTLE, Entry
from expost.budget.ledger import Ledger, OpenReservation, Standing
from expost.budget.replay import numbers
from expost.cli.output import visible
from expost.errors import InvalidInput

_AGO = re.compile(r"(\d{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Filters:
    """Which entries and reservations are shown.

    Parameters
    ----------
    name, analyst, state : str or None
        Only this budget, this analyst, or reservations in this state.
    since, until : datetime or None
        Only entries from this moment on, or before it.
    """

    name: str | None = None
    analyst: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    state: str | None = None

    def keep(self, entries: Iterable[Entry], states: dict[str, str]) -> Iterator[Entry]:
        """Yield the entries that are shown."""
        for entry in entries:
            if self.name not in (None, entry.budget):
                continue
            if self.analyst not in (None, entry.analyst):
                continue
            if self.state is not None and states.get(entry.reservation) != self.state:
                continue
            if self._in_time(entry.time):
                yield entry

    def _in_time(self, time: str) -> bool:
        if self.since is None and self.until is None:
            return True
        try:
            moment = datetime.fromisoformat(time)
        except ValueError:
            return False
        return (self.since is None or self.since <= moment) and (
            self.until is None or moment < self.until
        )


def moment(text: str | None, field: str) -> datetime | None:
    """Return a moment from ISO text (UTC if it names no zone), or from a time ago such as 7d."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            field, text, "give a date or time such as 2026-01-31, or a time ago such as 7d or 12h"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def amount_text(budget: Budget, amount: Coordinates, *, up: bool = True) -> str:
    """Return an amount of a budget as text, with the names of its coordinates."""
    numbers_ = [decimal_text(each, up=up) for each in amount]
    if budget.kind == "approx":
        return f"ε = {numbers_[0]}, δ = {numbers_[1]}"
    if budget.kind == "renyi":
        orders = getattr(budget, "orders", ())
        return ", ".join(f"α={a:g}: {e}" for a, e in zip(orders, numbers_, strict=True))
    return numbers_[0]


def standing_document(ledger: Ledger, name: str, filters: Filters) -> dict[str, Any]:
    """Return what ``expost ledger show --json`` prints for one budget."""
    waiting = [
        each for each in ledger.waiting(name) if filters.analyst in (None, each.reservation.analyst)
    ]
    caps = [each for each in ledger.caps(name) if filters.analyst in (None, each.analyst)]
    return ledger.standing(name).as_dict() | {
        "caps": [cap.as_dict() for cap in caps],
        "open": [open_document(each) for each in waiting],
        "alerts": [asdict(each) for each in ledger.alerts(name)],
    }


def open_document(waiting: OpenReservation) -> dict[str, Any]:
    """Return what is shown of a request that has not reported back."""
    reservation = waiting.reservation
    return {
        "reservation": reservation.id,
        "analyst": reservation.analyst,
        "time": waiting.time,
        "age_seconds": max(0, round(age_of(waiting.time))),
        "memo": visible(waiting.memo),
        "worst_case": reservation.worst_case.as_dict(),
    }


def age_of(time: str) -> float:
    """Return the seconds since a moment; 0 if it cannot be read."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return an entry with its amounts as decimals and the digests of what it is about."""
    facts = _facts(entry)
    return stored_fields(entry) | {
        "amounts": [decimal_text(each) for each in _amounts(facts)],
        "outcome": facts.get("outcome"),
        "request": facts.get("request"),
        "source": facts.get("source"),
        "certificate": facts.get("release"),
    }


def stored_fields(entry: Entry) -> dict[str, Any]:
    """Return the columns of an entry; a damaged one may hold bytes, which are shown as text."""
    return {
        name: value if isinstance(value, (str, int)) else visible(value)
        for name, value in asdict(entry).items()
    }


def entry_amount(entry: Entry, budgets: dict[str, Budget]) -> str:
    """Return the amount of an entry as text: a limit, a worst case, or what was spent."""
    facts = _facts(entry)
    try:
        if entry.action in (CREATE, CAP, CHANGE) and isinstance(facts.get("terms"), dict):
            terms = budget_from_dict(facts["terms"])
            return amount_text(terms, terms.limits, up=False)
        amount = _amounts(facts)
        if amount and entry.budget in budgets:
            return amount_text(budgets[entry.budget], amount)
    except (InvalidInput, ValueError, TypeError):
        pass
    return ""


def _facts(entry: Entry) -> dict[str, Any]:
    """The parsed detail; empty if the entry is damaged."""
    try:
        facts = entry.facts
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _amounts(facts: dict[str, Any]) -> Coordinates:
    """The amounts of an entry; none if it is damaged."""
    try:
        return numbers(facts.get("spent") or facts.get("worst") or [])
    except (ValueError, AttributeError, ZeroDivisionError, TypeError):
        return ()


def render_standings(console: Console, ledger: Ledger, names: list[str], filters: Filters) -> None:
    """Print budgets, caps and open reservations as tables."""
    table = Table(title="Ledger", title_justify="left")
    for heading in ("budget", "kind", "limit", "settled", "held", "remaining", "entries"):
        table.add_column(heading, overflow="fold")
    notes_: list[str] = []
    for name in names:
        standing = ledger.standing(name)
        table.add_row(*_standing_row(standing, visible(name)))
        for cap in ledger.caps(name):
            if filters.analyst in (None, cap.analyst):
                table.add_row(*_standing_row(cap, f"  cap of {visible(cap.analyst)}"))
        if standing.renewal is not None:
            past = amount_text(standing.filter.budget, standing.renewal.past)
            notes_.append(
                f"{visible(name)} renews every {standing.renewal.every} (this one began on "
                f"{standing.renewal.period}). The limit holds for each {standing.renewal.every}; "
                f"a person whose data stay longer is protected by the sum only. Settled in earlier "
                f"periods: {past}."
            )
    waiting = _open_table(ledger, names, filters)  # a damaged ledger fails before anything is shown
    console.print(table)
    for note in notes_:
        console.print(escape(note), highlight=False)
    if waiting.row_count:
        console.print(waiting)


def _open_table(ledger: Ledger, names: list[str], filters: Filters) -> Table:
    """A table of the requests that have not reported back."""
    table = Table(title="Open reservations", title_justify="left")
    for heading in ("reservation", "budget", "analyst", "age", "worst case", "memo"):
        table.add_column(heading, overflow="fold")
    for name in names:
        budget = ledger.standing(name).filter.budget
        for each in ledger.waiting(name):
            reservation = each.reservation
            if filters.analyst not in (None, reservation.analyst):
                continue
            worst = amount_text(budget, budget.worst(reservation.charges))
            cells = (reservation.id, name, reservation.analyst, age_text(each.time), worst)
            table.add_row(*(escape(visible(cell)) for cell in (*cells, each.memo)))
    return table


def age_text(time: str) -> str:
    """Return how long ago a moment was, in its largest unit."""
    seconds = age_of(time)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _standing_row(standing: Standing, title: str) -> tuple[str, ...]:
    state, budget = standing.filter, standing.filter.budget
    return (
        escape(title),
        budget.kind,
        amount_text(budget, budget.limits, up=False),
        amount_text(budget, state.settled),
        amount_text(budget, state.held),
        amount_text(budget, state.remaining, up=False),
        str(standing.entries),
    )


def cells(entry: Entry, budgets: dict[str, Budget]) -> tuple[object, ...]:
    """The fields of an entry that the table shows."""
    release = _facts(entry).get("release")
    return (
        entry.sequence,
        entry.time,
        entry.action,
        entry.budget,
        entry.analyst,
        entry_amount(entry, budgets),
        entry.reservation,
        str(release)[:12] if release else "",
        entry.memo,
    )


HEADINGS = (
    *("#", "time", "action", "budget", "analyst", "amount"),
    *("reservation", "certificate", "memo"),
)


def render_entries(console: Console, found: list[Entry], budgets: dict[str, Budget]) -> None:
    """Print entries as a table."""
    table = Table(title=f"{len(found)} entries", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for entry in found:
        table.add_row(*(escape(visible(each)) for each in cells(entry, budgets)))
    console.print(table)


def budgets_of(ledger: Ledger) -> dict[str, Budget]:
    """Return the present terms of every budget."""
    return {name: ledger.standing(name).filter.budget for name in ledger.budgets()}


def draw(path: Path, ledger: Ledger, standing: Standing) -> None:
    """Draw how the first coordinate of a budget was spent, entry by entry."""
    settled, held, worst = [0.0], [0.0], [0.0]
    reserved: dict[str, float] = {}
    for entry in ledger.entries():
        if entry.budget != standing.name or entry.action not in (RESERVE, SETTLE, ABANDON):
            continue
        new = entry.action == RESERVE
        if new:
            reserved[entry.reservation] = _first(entry.facts["worst"])
        amount = reserved[entry.reservation]
        settled.append(settled[-1] + (0.0 if new else _first(entry.facts["spent"])))
        held.append(held[-1] + (amount if new else -amount))
        worst.append(worst[-1] + (amount if new else 0.0))
    budget = standing.filter.budget
    plots.draw_ledger(
        path,
        name=standing.name,
        unit="ρ" if budget.kind == "zcdp" else "ε",
        limit=float(budget.limits[0]),
        settled=settled,
        held=held,
        worst=worst,
    )


def _first(texts: list[str]) -> float:
    """The first of several exact amounts, as a float."""
    return float(Fraction(texts[0]))
