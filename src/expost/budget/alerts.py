"""Alerts: a command that runs when a budget is used up to a given share.

The share counts what is settled and held, in the coordinate that is used most (for the rule "any"
of Rényi budgets, least). A command is started when a reservation reaches the share, after the
reservation is durable. It gets no data: only names and the share, in its environment. Nobody waits
for it, and its failure changes nothing.

A command is stored in the ledger, so whoever can write the ledger can choose it. It is therefore
started only if the ledger is a file that nobody but its owner (this user or root) can write, or if
``EXPOST_LEDGER_ALERTS=1`` is set. Tests: ``tests/budget/test_operations.py``.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from expost.budget.amounts import amount_from, decimal_text
from expost.budget.filter import Filter
from expost.budget.hash_chain import ALERT
from expost.budget.rows import LedgerRows
from expost.budget.totals import append, find_budget
from expost.errors import InvalidInput
from expost.rationals import Number

ALLOW_VARIABLE = "EXPOST_LEDGER_ALERTS"
_LONGEST_COMMAND = 2000


@dataclass(frozen=True)
class Alert:
    """A command to run when a budget is used up to a share.

    Parameters
    ----------
    budget : str
        Name of the budget.
    share : str
        The share as a decimal, for example ``"0.8"``.
    command : str
        The command, run by the shell.
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


def add(rows: LedgerRows, budget: str | None, share: Number | str, command: str) -> Alert:
    """Store an alert, or replace the one at the same share; an empty command removes it."""
    part = check_share(share)
    if not isinstance(command, str) or len(command) > _LONGEST_COMMAND or "\x00" in command:
        raise InvalidInput(
            "command", "…", f"give a command of at most {_LONGEST_COMMAND} characters"
        )
    head = rows.lock_head()
    name, _ = find_budget(rows, budget, "")
    alert = Alert(name, decimal_text(part), command)
    append(rows, head, ALERT, name, "", "", {"share": alert.share, "command": command}, "")
    rows.run("DELETE FROM expost_alerts WHERE budget = :b AND share = :s", b=name, s=alert.share)
    if command:
        rows.change(
            "INSERT INTO expost_alerts VALUES (:b, :s, :c)", b=name, s=alert.share, c=command
        )
    return alert


def stored(rows: LedgerRows, budget: str) -> list[Alert]:
    """The alerts of a budget."""
    found = rows.all(
        "SELECT budget, share, command FROM expost_alerts WHERE budget = :b ORDER BY share",
        b=budget,
    )
    return [Alert(*map(str, row)) for row in found]


def used_share(state: Filter) -> Fraction:
    """Return the share of a budget that is settled or held."""
    parts = [
        (settled + held) / limit
        for settled, held, limit in zip(state.settled, state.held, state.budget.limits, strict=True)
    ]
    return max(parts) if state.budget.rule == "all" else min(parts)


def reached(rows: LedgerRows, budget: str, before: Filter, after: Filter) -> list[Alert]:
    """The alerts whose share lies between two states of a budget."""
    low, high = used_share(before), used_share(after)
    return [
        alert for alert in stored(rows, budget) if low < amount_from(alert.share, "share") <= high
    ]


def start(alerts: list[Alert], file: Path | None) -> None:
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
    return not shared and facts.st_uid in (0, os.geteuid())
