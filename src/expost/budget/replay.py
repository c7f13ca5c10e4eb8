"""The ledger's sums, computed again from its entries: what ``verify`` compares the tables with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from expost.budget.chain import ABANDON, CAP, CREATE, RESERVE, SETTLE, Entry, digest
from expost.budget.filter import Filter
from expost.budget.terms import Coordinates, budget_from_dict
from expost.errors import ExpostError

_STATUS = {RESERVE: "open", SETTLE: "settled", ABANDON: "abandoned"}


@dataclass
class Replay:
    """Filters and reservations as the entries tell them."""

    filters: dict[tuple[str, str], Filter] = field(default_factory=dict)
    held: dict[str, tuple[Coordinates, str]] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)

    def step(self, entry: Entry) -> Iterator[str]:
        """Apply an entry; say what is wrong with it."""
        try:
            problem = self._apply(entry)
        except (ExpostError, ValueError, KeyError, TypeError) as error:
            problem = str(error) or type(error).__name__
        if problem:
            yield f"row {entry.sequence}: {problem}"

    def _apply(self, entry: Entry) -> str | None:
        facts = entry.facts
        if entry.action in (CREATE, CAP):
            self.filters[entry.budget, entry.analyst] = Filter.empty(budget_from_dict(facts["terms"]), entry.budget)
            return None
        places = [(entry.budget, who) for who in dict.fromkeys(("", entry.analyst)) if (entry.budget, who) in self.filters]
        if not places:
            return f"uses the budget {entry.budget!r}, which was never created"
        if entry.action == RESERVE:
            worst = _numbers(facts["worst"])
            overspent = [place for place in places if not self.filters[place].admits(worst)]
            if overspent:
                return f"overspends the budget {entry.budget!r}"
            self._replace(places, [self.filters[place].reserve(worst) for place in places])
            self.held[entry.reservation] = (worst, facts["charges"])
        elif entry.action in (SETTLE, ABANDON):
            if self.status.get(entry.reservation) != "open":
                return "finishes a reservation that is not open"
            worst, _ = self.held[entry.reservation]
            spent = _numbers(facts["spent"])
            if entry.action == ABANDON and spent != worst:
                return "abandons a reservation for less than its worst case"
            self._replace(places, [self.filters[place].settle(worst, spent) for place in places])
        else:
            return f"has the unknown action {entry.action!r}"
        self.status[entry.reservation] = _STATUS[entry.action]
        return None

    def _replace(self, places: Sequence[tuple[str, str]], states: Sequence[Filter]) -> None:
        self.filters.update(zip(places, states, strict=True))

    def compare_totals(self, rows: Sequence[Any]) -> Iterator[str]:
        """Totals in the tables that the entries do not add up to."""
        stored = {(row[0], row[1]): (_numbers(json.loads(row[2])), _numbers(json.loads(row[3]))) for row in rows}
        for place in sorted(set(stored) | set(self.filters)):
            state = self.filters.get(place)
            told = None if state is None else (state.settled, state.held)
            if stored.get(place) != told:
                who = f" for {place[1]!r}" if place[1] else ""
                yield f"totals of budget {place[0]!r}{who}: do not match the entries"

    def compare_reservations(self, rows: Sequence[Any]) -> Iterator[str]:
        """Reservations in the tables that the entries tell differently."""
        stored = {row[0]: (row[1], row[2]) for row in rows}
        for identity in sorted(set(stored) | set(self.status)):
            status, charges = stored.get(identity, (None, None))
            if status != self.status.get(identity):
                yield f"reservation {identity}: its status does not match the entries"
            elif charges is not None and digest(json.loads(charges)) != self.held[identity][1]:
                yield f"reservation {identity}: its charges do not match the entries"


def _numbers(texts: list[str]) -> Coordinates:
    return tuple(Fraction(text) for text in texts)
