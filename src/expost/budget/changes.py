"""Alerts: a command that runs when a budget is used up to a given share.

The share counts what is settled and held, in the coordinate that is used most (for the rule "any"
of Rényi budgets, least). A command is started when a reservation reaches the share, after the
reservation is durable. It gets no data: only names and the share, in its environment. Nobody waits
for it, and its failure changes nothing.

A command is stored in the ledger, so whoever can write the ledger can choose it. It is therefore
started only if the ledger is a file that nobody but its owner (this user or root) can write, or if
``EXPOST_LEDGER_ALERTS=1`` is set. Tests: ``tests/budget/test_operations.py``.

Changing limits: a new total or cap, recorded as an entry with its reason.

Every function works on the rows of a transaction that the caller opened.
Tests: ``tests/budget/test_operations.py``.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from expost.budget.filter import Filter
from expost.budget.ledger_rows import (
    ABANDON,
    ALERT,
    CHANGE,
    RESERVE,
    SETTLE,
    LedgerRows,
    check_cap,
    check_ledger_name,
    check_memo,
)
from expost.budget.limits import Budget, Coordinates, amount_from, decimal_text
from expost.budget.replay import exact_amounts
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
from expost.files import canonical
from expost.rationals import Number

ALLOW_VARIABLE = "EXPOST_LEDGER_ALERTS"
_LONGEST_COMMAND = 2000


@dataclass(frozen=True)
class Alert:
    """A command to run when a budget is used up to a share.

    ``budget``: name of the budget. ``share``: the share as a decimal, for example ``"0.8"``.
    ``command``: the command, run by the shell.
    """

    budget: str
    share: str
    command: str


def check_share(share: Number | str) -> Fraction:
    """Return the share of an alert; refuse one that is never reached."""
    part = amount_from(share, "share")
    if not 0 < part <= 1:
        raise InvalidInput("share", share, "give a number with 0 < share ≤ 1, for example 0.8")
    return part


def set_alert(rows: LedgerRows, budget: str | None, share: Number | str, command: str) -> Alert:
    """Store an alert, or replace the one at the same share; an empty command removes it."""
    part = check_share(share)
    if not isinstance(command, str) or len(command) > _LONGEST_COMMAND or "\x00" in command:
        raise InvalidInput(
            "command", "…", f"give a command of at most {_LONGEST_COMMAND} characters"
        )
    head = rows.lock_head()
    name, _ = find_budget(rows, budget, "")
    alert = Alert(name, decimal_text(part), command)
    append(rows, head, ALERT, (name, "", ""), {"share": alert.share, "command": command})
    rows.run("DELETE FROM expost_alerts WHERE budget = :b AND share = :s", b=name, s=alert.share)
    if command:
        rows.change(
            "INSERT INTO expost_alerts VALUES (:b, :s, :c)", b=name, s=alert.share, c=command
        )
    return alert


def stored_alerts(rows: LedgerRows, budget: str) -> list[Alert]:
    """The alerts of a budget."""
    stored = rows.all(
        "SELECT budget, share, command FROM expost_alerts WHERE budget = :b ORDER BY share",
        b=budget,
    )
    return [Alert(*map(str, row)) for row in stored]


def used_share(state: Filter) -> Fraction:
    """Return the share of a budget that is settled or held."""
    parts = [
        (settled + held) / limit
        for settled, held, limit in zip(state.settled, state.held, state.budget.limits, strict=True)
    ]
    return max(parts) if state.budget.rule == "all" else min(parts)


def reached_alerts(rows: LedgerRows, budget: str, before: Filter, after: Filter) -> list[Alert]:
    """The alerts whose share lies between two states of a budget."""
    low, high = used_share(before), used_share(after)
    return [
        alert
        for alert in stored_alerts(rows, budget)
        if low < amount_from(alert.share, "share") <= high
    ]


def start_alerts(alerts: list[Alert], file: Path | None) -> None:
    """Start the commands without waiting for them. Errors are ignored."""
    if not alerts or not _trusted(file):
        return
    for alert in alerts:
        told = {"EXPOST_ALERT_BUDGET": alert.budget, "EXPOST_ALERT_SHARE": alert.share}
        try:
            subprocess.Popen(  # noqa: S602 - the command is from the owner of the file
                alert.command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | told,
            )
        except (OSError, ValueError):
            continue


def _trusted(file: Path | None) -> bool:
    """Whether commands that are stored in this ledger may run on this machine."""
    if os.environ.get(ALLOW_VARIABLE) == "1":
        return True
    if file is None:
        return False
    try:
        facts = file.stat()
    except OSError:
        return False
    shared = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not shared and hasattr(os, "geteuid") and facts.st_uid in (0, os.geteuid())


def change_limit(
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
        check_ledger_name(analyst, "analyst")
    if terms is None and not analyst:
        raise InvalidInput("budget", None, "a budget cannot be removed; give a new limit")
    if terms is None and len(filters) == 1:
        raise InvalidInput("analyst", analyst, f"budget {name!r} has no cap for this analyst")
    if terms is not None:
        check_cap(whole, analyst or "everybody", terms)
    detail = {"terms": None if terms is None else terms.as_dict()}
    append(rows, head, CHANGE, (name, analyst, ""), detail, reason)
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
                waiting[entry.reservation] = exact_amounts(entry.facts["worst"])
            elif entry.action in (SETTLE, ABANDON):
                del waiting[entry.reservation]
                settled = _sum(settled, exact_amounts(entry.facts["spent"]))
    held: Coordinates = (Fraction(0),) * size
    for worst in waiting.values():
        held = _sum(held, worst)
    return settled, held


def _sum(first: Coordinates, second: Coordinates) -> Coordinates:
    return tuple(a + b for a, b in zip(first, second, strict=True))
