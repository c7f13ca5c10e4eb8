"""The table of totals: the state of every budget and cap, periods, alerts, and new entries.

For each budget, and for each analyst's cap inside it, one row holds the terms and the amounts that
are settled and held, as exact rationals. Every function works on the rows of a transaction that the
caller opened.

**Periods.** A renewing budget limits what is admitted in each calendar period (UTC). A person whose
data stay over several periods is protected by the sum over these periods only. A charge belongs to
the period in which its request was admitted, against whose limit the worst case was held. A request
that is still open when a period begins is held in the new period, too, until it is settled; this
only makes the test of new requests stricter. The time is that of the server (PostgreSQL) or of the
client (SQLite). A clock that is set forward renews early, and the entry shows it.

**Alerts.** A command is started when a reservation that is durable reaches a share of the limit, in
the coordinate that is used most (for the rule "any" of Rényi budgets, least). It gets no data: only
names and the share. Nobody waits for it, and its failure changes nothing. Whoever writes a ledger
can choose the command, so a copy must not run it: it is started only for the user who set it, for
the file at this path (a list in the user's folder of states says which), or if
``EXPOST_LEDGER_ALERTS=1`` is set.

Tests: ``tests/budget/test_ledger.py``, ``tests/budget/test_operations.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from expost.budget.budgets import budget_from_dict
from expost.budget.ledger_rows import (
    ALERT,
    CAP,
    CREATE,
    RENEW,
    SCHEMA_VERSION,
    Entry,
    LedgerRows,
    check_ledger_name,
)
from expost.budget.limits import (
    Budget,
    Coordinates,
    Filter,
    add,
    amount_from,
    amount_texts,
    decimal_text,
    exact_amounts,
)
from expost.errors import InvalidInput, LedgerError
from expost.files import canonical, require_private
from expost.rationals import Number

NEVER = ""
PERIODS = ("day", "week", "month", "quarter", "year")


def check_renewal(renews: str | None) -> str:
    """Return the name of a period, or NEVER; refuse other values."""
    if renews is None or renews == NEVER:
        return NEVER
    if renews not in PERIODS:
        raise InvalidInput("renews", renews, "give one of " + ", ".join(PERIODS))
    return renews


def period_at(renews: str, moment: datetime) -> str:
    """Return the first day of the period that holds a moment, as ISO text; empty for NEVER."""
    if renews == NEVER:
        return ""
    day = moment.astimezone(UTC).date()
    first = {
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": date(day.year, 3 * ((day.month - 1) // 3) + 1, 1),
        "year": date(day.year, 1, 1),
    }[renews]
    return first.isoformat()


def now(rows: LedgerRows) -> datetime:
    """Return the time of the server, or of this client for a SQLite file."""
    if rows.backend == "postgresql":
        moment = rows.one("SELECT now()")[0]
        assert isinstance(moment, datetime)
        return moment
    return datetime.now(UTC)


NO_ANALYST = ""
"""The analyst column of a budget itself, and of requests that name no analyst."""

_BUDGETS = "SELECT budget FROM expost_totals WHERE analyst = '' ORDER BY budget"
_FILTERS = (
    "SELECT analyst, terms, settled, held FROM expost_totals "
    "WHERE budget = :b AND analyst IN ('', :a) ORDER BY analyst"
)


@dataclass(frozen=True)
class Renewal:
    """How often a budget renews, the first day of its period, and what was settled before."""

    every: str
    period: str
    past: Coordinates


@dataclass(frozen=True)
class Standing:
    """The state of a budget, or of an analyst's cap inside it.

    Parameters
    ----------
    name : str
        Name of the budget.
    analyst : str
        Name of the analyst whose cap this is; empty for the budget itself.
    filter : Filter
        The limits, and the amounts that are settled and held.
    entries : int
        How many entries the budget has.
    renewal : Renewal, optional
        The present period, if the budget renews.
    """

    name: str
    analyst: str
    filter: Filter
    entries: int
    renewal: Renewal | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form that ``expost ledger show --json`` prints."""
        budget = self.filter.budget
        return {
            "name": self.name,
            "kind": budget.kind,
            "budget": budget.as_dict(),
            "settled": budget.describe(self.filter.settled),
            "held": budget.describe(self.filter.held),
            "remaining": budget.describe(self.filter.remaining, up=False),
            "entries": self.entries,
        } | self._more()

    def _more(self) -> dict[str, Any]:
        """The keys that only some budgets have."""
        more: dict[str, Any] = {"analyst": self.analyst} if self.analyst else {}
        if self.renewal is not None:
            past = self.filter.budget.describe(self.renewal.past)
            more |= {
                "renews": self.renewal.every,
                "period": self.renewal.period,
                "settled_in_earlier_periods": past,
                "meaning": f"the limit holds for each {self.renewal.every}; a person whose data "
                f"stay over several periods is protected by their sum only",
            }
        return more


def budget_names(rows: LedgerRows) -> list[str]:
    """The names of all budgets, sorted."""
    return [str(row[0]) for row in rows.all(_BUDGETS)]


def capped_analysts(rows: LedgerRows, budget: str) -> list[str]:
    """The analysts who have a cap in a budget, sorted."""
    stored = rows.all(
        "SELECT analyst FROM expost_totals WHERE budget = :b AND analyst <> '' ORDER BY analyst",
        b=budget,
    )
    return [str(row[0]) for row in stored]


def find_budget(rows: LedgerRows, budget: str | None, analyst: str) -> tuple[str, list[Filter]]:
    """The name of the budget (the only one, if none is named) and its filters."""
    names = [] if budget is not None else budget_names(rows)
    if budget is None and len(names) > 1:
        raise InvalidInput(
            "budget", None, "the ledger holds several budgets; name one of " + ", ".join(names)
        )
    if budget is None and not names:
        raise LedgerError("the ledger is damaged: it holds no budget; run: expost ledger verify")
    name = budget if budget is not None else names[0]
    check_ledger_name(name, "budget")
    filters = filters_of(rows, name, analyst)
    if not filters:
        raise InvalidInput("budget", name, "the ledger holds " + ", ".join(budget_names(rows)))
    return name, filters


def find_filter(rows: LedgerRows, budget: str | None, analyst: str) -> tuple[str, Filter]:
    """The name of the budget, and its filter or that of the analyst's cap."""
    name, filters = find_budget(rows, budget, analyst)
    if analyst and len(filters) == 1:
        raise InvalidInput("analyst", analyst, f"budget {name!r} has no cap for this analyst")
    return name, filters[-1]


def filters_of(rows: LedgerRows, budget: str, analyst: str) -> list[Filter]:
    """The filter of the budget and, if there is one, that of the analyst's cap."""
    with readable(f"the totals of budget {budget!r}"):
        filters = [
            Filter(
                _terms(terms),
                amounts(settled),
                amounts(held),
                f"{budget}, cap of {who}" if who else budget,
            )
            for who, terms, settled, held in rows.all(_FILTERS, b=budget, a=analyst)
        ]
        if any(not len(f.budget.limits) == len(f.settled) == len(f.held) for f in filters):
            raise ValueError("amounts and limits differ in number")
        return filters


def add_budget(
    rows: LedgerRows, name: str, terms: Budget, caps: Mapping[str, Budget], renews: str = NEVER
) -> None:
    """Write a new budget and its caps."""
    head = rows.lock_head()
    if rows.first("SELECT 1 FROM expost_totals WHERE budget = :b", b=name):
        raise LedgerError(
            f"there is a budget {name!r} already; to change it, run: expost ledger change"
        )
    period = period_at(renews, now(rows))
    for who, cap in {NO_ANALYST: terms, **caps}.items():
        detail: dict[str, Any] = {"terms": cap.as_dict()}
        if renews != NEVER:
            detail |= {"renews": renews, "period": period}
        if head[0] == 0:
            detail["schema"] = SCHEMA_VERSION
        head = append(rows, head, CAP if who else CREATE, (name, who, ""), detail)
        insert_total(rows, Filter.empty(cap), name, who, renews, period)


def insert_total(
    rows: LedgerRows,
    state: Filter,
    budget: str,
    analyst: str,
    renews: str = NEVER,
    period: str = "",
) -> None:
    """Write the totals of a new budget or cap."""
    rows.change(
        "INSERT INTO expost_totals VALUES (:b, :a, :t, :s, :h, :r, :p, :z)",
        b=budget,
        a=analyst,
        t=canonical(state.budget.as_dict()),
        s=canonical(amount_texts(state.settled)),
        h=canonical(amount_texts(state.held)),
        r=renews,
        p=period,
        z=canonical(["0"] * len(state.settled)),
    )


def update_totals(rows: LedgerRows, states: list[Filter], budget: str, analyst: str) -> None:
    """Overwrite the totals of a budget and, if there is one, of the analyst's cap."""
    for who, state in zip((NO_ANALYST, analyst), states, strict=False):
        rows.change(
            "UPDATE expost_totals SET settled = :s, held = :h WHERE budget = :b AND analyst = :a",
            s=canonical(amount_texts(state.settled)),
            h=canonical(amount_texts(state.held)),
            b=budget,
            a=who,
        )


def renewal_of(rows: LedgerRows, budget: str, analyst: str = NO_ANALYST) -> Renewal | None:
    """The period of a budget or cap; None if it does not renew."""
    row = rows.one(
        "SELECT renews, period, past FROM expost_totals WHERE budget = :b AND analyst = :a",
        b=budget,
        a=analyst,
    )
    with readable(f"the totals of budget {budget!r}"):
        return None if row[0] == NEVER else Renewal(row[0], row[1], amounts(row[2]))


def renew(rows: LedgerRows, head: tuple[int, str], budget: str) -> tuple[tuple[int, str], str, str]:
    """Begin a new period if its time has come; return the head, the period and the time.

    One look at the clock decides the period and is the time of the entries, also at midnight.
    """
    state = renewal_of(rows, budget)
    if state is None:
        return head, NEVER, timestamp()
    moment = now(rows)
    time = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    if (period := period_at(state.every, moment)) <= state.period:
        return head, state.period, time
    head = append(rows, head, RENEW, (budget, NO_ANALYST, ""), {"period": period}, time=time)
    accounts = rows.all(
        "SELECT analyst, settled, past FROM expost_totals WHERE budget = :b", b=budget
    )
    # What is held stays held in the new period: it may still be charged.
    for who, settled, past in accounts:
        rows.change(
            "UPDATE expost_totals SET settled = :s, past = :z, period = :p "
            "WHERE budget = :b AND analyst = :a",
            s=canonical(["0"] * len(amounts(settled))),
            z=canonical(amount_texts(add(amounts(past), amounts(settled)))),
            p=period,
            b=budget,
            a=who,
        )
    return head, period, time


def book_earlier(rows: LedgerRows, spent: Coordinates, budget: str, analyst: str) -> None:
    """Add a charge to what was settled in earlier periods, for the budget and the cap."""
    for who in dict.fromkeys((NO_ANALYST, analyst)):
        row = rows.first(
            "SELECT past FROM expost_totals WHERE budget = :b AND analyst = :a", b=budget, a=who
        )
        if row is not None:
            rows.change(
                "UPDATE expost_totals SET past = :z WHERE budget = :b AND analyst = :a",
                z=canonical(amount_texts(add(amounts(row[0]), spent))),
                b=budget,
                a=who,
            )


def append(
    rows: LedgerRows,
    head: tuple[int, str],
    action: str,
    about: tuple[str, str, str],
    detail: dict[str, Any],
    memo: str = "",
    time: str | None = None,
) -> tuple[int, str]:
    """Write an entry after ``head`` about (budget, analyst, reservation); return the new head."""
    budget, analyst, reservation = about
    entry = Entry.after(
        head,
        time=time or timestamp(),
        action=action,
        budget=budget,
        analyst=analyst,
        reservation=reservation,
        detail=canonical(detail),
        memo=memo,
    )
    rows.append(entry)
    return entry.sequence, entry.hash


def timestamp() -> str:
    """The client's clock, as ISO 8601 text in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def all_entries(rows: LedgerRows) -> Iterator[Entry]:
    """All entries of one transaction, oldest first."""
    last = None
    while page := rows.entries(last):
        yield from page
        last = page[-1].sequence


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turn errors of parsing stored values into a LedgerError."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise LedgerError(f"the ledger is damaged at {what}; run: expost ledger verify") from None


@lru_cache(maxsize=64)
def amounts(text: str) -> Coordinates:
    """Stored amounts as exact numbers."""
    return exact_amounts(json.loads(text))


@lru_cache(maxsize=64)
def _terms(text: str) -> Budget:
    """The budget that stored terms describe."""
    return budget_from_dict(json.loads(text))


ALLOW_VARIABLE = "EXPOST_LEDGER_ALERTS"


_LONGEST_COMMAND = 2000


@dataclass(frozen=True)
class Alert:
    """A command, run by the shell, when a budget is used up to a share (a decimal as text)."""

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
    for alert in alerts:
        if not may_run(alert, file):
            continue
        told = {"EXPOST_ALERT_BUDGET": alert.budget, "EXPOST_ALERT_SHARE": alert.share}
        try:
            subprocess.Popen(  # noqa: S602 - this user has set the command
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


def allow_command(alert: Alert, file: Path | None) -> None:
    """Note that this user has set a command for this ledger; without a file, nothing is noted."""
    if file is None or not alert.command or may_run(alert, file):
        return
    try:
        known = _known_commands()
        known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(known, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with open(descriptor, "a", encoding="ascii") as stream:
            stream.write(f"{_digest(alert, file)}\n")
    except (OSError, RuntimeError):  # no home, or none that can be written: it does not run
        return


def may_run(alert: Alert, file: Path | None) -> bool:
    """Whether a stored command may run: this user has set it for the ledger at this path."""
    if os.environ.get(ALLOW_VARIABLE) == "1":
        return True
    if file is None:
        return False
    try:
        known = _known_commands()
        require_private(known, "alerts")
        return _digest(alert, file) in known.read_text(encoding="ascii").split()
    except (OSError, RuntimeError, ValueError):
        return False


def _known_commands() -> Path:
    """The list of the commands that this user has set."""
    states = os.environ.get("XDG_STATE_HOME")
    return (Path(states) if states else Path.home() / ".local" / "state") / "expost" / "alerts"


def _digest(alert: Alert, file: Path) -> str:
    parts = [os.path.realpath(file), alert.budget, alert.share, alert.command]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
