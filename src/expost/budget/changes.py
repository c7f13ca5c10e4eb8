"""Changing limits: a new total or cap, recorded as an entry with its reason.

Every function works on the rows of a transaction that the caller opened.
Tests: ``tests/budget/test_operations.py``.
"""

from __future__ import annotations

from fractions import Fraction

from expost.budget.base import Budget, Coordinates
from expost.budget.filter import Filter
from expost.budget.hash_chain import ABANDON, CHANGE, RESERVE, SETTLE, canonical
from expost.budget.replay import numbers
from expost.budget.requests import check_cap, check_memo, check_name
from expost.budget.rows import LedgerRows
from expost.budget.totals import (
    all_entries,
    append,
    filters_of,
    find_budget,
    insert_total,
    readable,
    renewal_of,
)
from expost.errors import InvalidInput


def change(
    rows: LedgerRows, terms: Budget | None, reason: str, budget: str | None, analyst: str
) -> None:
    """Change a limit; ``terms`` None removes a cap."""
    check_memo(reason)
    if not reason.strip():
        raise InvalidInput("reason", None, "say why the limit is changed")
    head = rows.lock_head()
    name, filters = find_budget(rows, budget, analyst)
    whole = filters[0].budget
    if analyst:
        check_name(analyst, "analyst")
    if terms is None and not analyst:
        raise InvalidInput("budget", None, "a budget cannot be removed; give a new limit")
    if terms is None and len(filters) == 1:
        raise InvalidInput("analyst", analyst, f"budget {name!r} has no cap for this analyst")
    if terms is not None:
        check_cap(whole, analyst or "everybody", terms)
    detail = {"terms": None if terms is None else terms.as_dict()}
    append(rows, head, CHANGE, name, analyst, "", detail, reason)
    if terms is None:
        rows.change(
            "DELETE FROM expost_totals WHERE budget = :b AND analyst = :a", b=name, a=analyst
        )
    elif analyst and len(filters) == 1:
        _add_cap(rows, terms, name, analyst)
    else:
        rows.change(
            "UPDATE expost_totals SET terms = :t WHERE budget = :b AND analyst = :a",
            t=canonical(terms.as_dict()),
            b=name,
            a=analyst,
        )


def _add_cap(rows: LedgerRows, terms: Budget, budget: str, analyst: str) -> None:
    """Write a cap for an analyst who had none. What was charged before counts in full."""
    settled, held = _charged(rows, budget, analyst, len(terms.limits))
    renewal = renewal_of(rows, budget)
    every, period = ("", "") if renewal is None else (renewal.every, renewal.period)
    insert_total(rows, Filter(terms, settled, held), budget, analyst, every, period)
    assert filters_of(rows, budget, analyst)


def _charged(
    rows: LedgerRows, budget: str, analyst: str, size: int
) -> tuple[Coordinates, Coordinates]:
    """The sums of an analyst's settled and held charges, from the entries."""
    settled: Coordinates = (Fraction(0),) * size
    waiting: dict[str, Coordinates] = {}
    with readable(f"the entries of budget {budget!r}"):
        for entry in all_entries(rows):
            if (entry.budget, entry.analyst) != (budget, analyst):
                continue
            if entry.action == RESERVE:
                waiting[entry.reservation] = numbers(entry.facts["worst"])
            elif entry.action in (SETTLE, ABANDON):
                del waiting[entry.reservation]
                settled = _sum(settled, numbers(entry.facts["spent"]))
    held: Coordinates = (Fraction(0),) * size
    for worst in waiting.values():
        held = _sum(held, worst)
    return settled, held


def _sum(first: Coordinates, second: Coordinates) -> Coordinates:
    return tuple(a + b for a, b in zip(first, second, strict=True))
