"""Tables, filters and documents of ``expost ledger``.

Tables show amounts with 5 digits, spent amounts rounded up and remaining amounts rounded down.
Columns without entries are left out, and words are not broken. JSON has 12 digits and all columns.
Tests: ``tests/cli/test_ledger_cli.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from expost import plots
from expost.budget.budgets import budget_from_dict
from expost.budget.ledger import Ledger, OpenReservation, Standing
from expost.budget.ledger_rows import ABANDON, CAP, CHANGE, CREATE, RESERVE, SETTLE, Entry
from expost.budget.limits import Budget, Coordinates, decimal_text, exact_amounts
from expost.cli.output import visible
from expost.errors import InvalidInput

_AGO = re.compile(r"(\d{1,5})([mhdw])")
_DIGITS = 5  # of an amount in a table
_FREE = ("budget", "analyst", "reservation", "memo")  # columns of free text
_FREE_WIDTH = 6
_ID = 8  # characters of an identifier or digest in a table
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Filters:
    """Which entries and reservations are shown."""

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


def parse_moment(text: str | None, field: str) -> datetime | None:
    """Return a moment from ISO text (UTC if it names no zone), or from a time ago such as 7d."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            field, text, "give a date or time such as 2026-01-31, or a time ago such as 7d or 12h"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def amount_text(budget: Budget, amount: Coordinates, *, up: bool = True) -> str:
    """Return an amount of a budget as text, with the names of its coordinates."""
    numbers_ = [short_amount(number, up=up) for number in amount]
    if budget.kind == "approx":
        return f"ε = {numbers_[0]}, δ = {numbers_[1]}"
    if budget.kind == "renyi":
        orders = getattr(budget, "orders", ())
        return ", ".join(f"α={a:g}: {e}" for a, e in zip(orders, numbers_, strict=True))
    return numbers_[0]


def short_amount(value: Fraction, *, up: bool) -> str:
    """An amount with few digits, rounded up if it was spent and down if it remains."""
    with localcontext(prec=_DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR) as context:
        rounded = context.create_decimal(Decimal(decimal_text(value, up=up)))
    return decimal_text(Fraction(rounded), up=up)


def standing_document(ledger: Ledger, name: str, filters: Filters) -> dict[str, Any]:
    """Return what ``expost ledger show --json`` prints for one budget."""
    waiting = [
        request
        for request in ledger.waiting(name)
        if filters.analyst in (None, request.reservation.analyst)
    ]
    caps = [cap for cap in ledger.caps(name) if filters.analyst in (None, cap.analyst)]
    return ledger.standing(name).as_dict() | {
        "caps": [cap.as_dict() for cap in caps],
        "open": [_open_document(request) for request in waiting],
        "alerts": [asdict(alert) for alert in ledger.alerts(name)],
    }


def _open_document(waiting: OpenReservation) -> dict[str, Any]:
    """Return what is shown of a request that has not reported back."""
    return {
        "reservation": waiting.reservation.id,
        "analyst": waiting.reservation.analyst,
        "time": waiting.time,
        "age_seconds": max(0, round(age_of(waiting.time))),
        "memo": visible(waiting.memo),
        "worst_case": waiting.reservation.worst_case.as_dict(),
    }


def age_of(time: str) -> float:
    """Return the seconds since a moment; 0 if it cannot be read."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def entry_line(entry: Entry) -> dict[str, Any]:
    """Return an entry with its amounts as decimals and the digests of what it is about."""
    facts = _facts(entry)
    return stored_fields(entry) | {
        "amounts": [decimal_text(amount) for amount in _amounts(facts)],
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
        return exact_amounts(facts.get("spent") or facts.get("worst") or [])
    except (ValueError, AttributeError, ZeroDivisionError, TypeError):
        return ()


def render_standings(console: Console, ledger: Ledger, names: list[str], filters: Filters) -> None:
    """Print budgets, caps and open reservations as tables."""
    headings = ("budget", "kind", "limit", "settled", "held", "remaining", "entries")
    rows: list[tuple[str, ...]] = []
    notes_: list[str] = []
    for name in names:
        standing = ledger.standing(name)
        rows.append(_standing_row(standing, visible(name)))
        for cap in ledger.caps(name):
            if filters.analyst in (None, cap.analyst):
                rows.append(_standing_row(cap, f"  cap of {visible(cap.analyst)}"))
        if standing.renewal is not None:
            past = amount_text(standing.filter.budget, standing.renewal.past)
            notes_.append(
                f"{visible(name)} renews every {standing.renewal.every} (this one began on "
                f"{standing.renewal.period}). The limit holds for each {standing.renewal.every}; "
                f"a person whose data stay longer is protected by the sum only. Settled in earlier "
                f"periods: {past}."
            )
    # A damaged ledger fails before anything is shown.
    waiting = _open_table(ledger, names, filters, console.width)
    console.print(_table("Ledger", headings, rows, console.width))
    for note in notes_:
        console.print(note, highlight=False)
    if waiting.row_count:
        console.print(waiting)


def _open_table(ledger: Ledger, names: list[str], filters: Filters, width: int) -> Table:
    """A table of the requests that have not reported back."""
    headings = ("reservation", "budget", "analyst", "age", "worst case", "memo")
    rows: list[tuple[str, ...]] = []
    for name in names:
        budget = ledger.standing(name).filter.budget
        for request in ledger.waiting(name):
            reservation = request.reservation
            if filters.analyst not in (None, reservation.analyst):
                continue
            worst = _in_lines(amount_text(budget, budget.worst(reservation.charges)))
            cells = (reservation.id, name, reservation.analyst, age_text(request.time), worst)
            rows.append(tuple(visible(cell) for cell in (*cells, request.memo)))
    return _table("Open reservations", headings, rows, width)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table without the columns that are empty in every row.

    Columns of names and memos are narrowed first; the words of the others are broken only if they
    need more than ``width``.
    """
    kept = [
        index for index, _ in enumerate(headings) if not rows or any(row[index] for row in rows)
    ]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    lines = {index: [line for row in rows for line in _lines(row[index])] for index in kept}
    widths = {
        index: max(len(text) for text in (headings[index], *lines[index]))
        for index in kept
        if headings[index] not in _FREE
    }
    free = len(kept) - len(widths)
    fits = sum(widths.values()) + _FREE_WIDTH * free + 2 * len(kept) + 2 <= width
    for index in kept:
        least = widths.get(index) if fits else None
        table.add_column(headings[index], overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*(row[index] for index in kept))
    return table


def _lines(text: str) -> list[str]:
    """The lines of a cell; the date and the time of a moment are two."""
    return text.replace(" ", "\n").split("\n") if _MOMENT.fullmatch(text) else text.split("\n")


def age_text(time: str) -> str:
    """Return how long ago a moment was, in its largest unit."""
    seconds = age_of(time)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _in_lines(amount: str) -> str:
    """An amount with one coordinate a line."""
    return amount.replace(", ", "\n")


def _standing_row(standing: Standing, title: str) -> tuple[str, ...]:
    state, budget = standing.filter, standing.filter.budget
    return (
        title,
        budget.kind,
        _in_lines(amount_text(budget, budget.limits, up=False)),
        _in_lines(amount_text(budget, state.settled)),
        _in_lines(amount_text(budget, state.held)),
        _in_lines(amount_text(budget, state.remaining, up=False)),
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
    *("#", "time (UTC)", "action", "budget", "analyst", "amount"),
    *("reserved", "release", "memo"),
)


def render_entries(console: Console, entries: list[Entry], budgets: dict[str, Budget]) -> None:
    """Print entries as a table; the name of a single budget is in its title."""
    names = {entry.budget for entry in entries}
    rows = []
    for entry in entries:
        number, _, action, name, analyst, amount, reservation, release, memo = map(
            str, cells(entry, budgets)
        )
        shown = [number, _time_text(entry.time), action, name if len(names) > 1 else "", analyst]
        shown += [_in_lines(amount), reservation[:_ID], release[:_ID], memo]
        rows.append([visible(text) for text in shown])
    of = f" of {visible(names.pop())}" if len(names) == 1 else ""
    console.print(_table(f"{len(entries)} entries{of}", HEADINGS, rows, console.width))
    if any(len(entry.reservation) > _ID for entry in entries):
        console.print("Identifiers and digests are shortened; --json shows them in full.")


def _time_text(time: str) -> str:
    """A moment in UTC to the second, in two words; the text itself if it is no moment."""
    try:
        return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, TypeError, OverflowError):
        return str(time)


def budgets_of(ledger: Ledger) -> dict[str, Budget]:
    """Return the present terms of every budget."""
    return {name: ledger.standing(name).filter.budget for name in ledger.budgets()}


def draw_spending(path: Path, ledger: Ledger, standing: Standing) -> None:
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
