"""Privacy budgets: the rule that admits or refuses requests, and a durable ledger around it.

Accounting
    ``limits``            what a number stands for, the interface of every budget, and the filter
                          that admits or refuses: pure state, no input or output
    ``budgets``           pure, approximate, zCDP and Rényi budgets

Ledger
    ``charging``          reserve, run, settle: the context manager that every caller uses
    ``ledger``            the ledger: durable, hash-chained, safe for many processes at once
    ``operations``        check all of it, change limits, migrate, recover
    ``reservation_rows``  the table of reservations
    ``totals``            the table of totals, periods, alerts, and the writing of entries
    ``signing``           Ed25519 keys; signed heads and certificates

Storage
    ``store``             transactions on SQLite files and PostgreSQL; writers share commits
    ``ledger_rows``       entries and their hashes, the tables; checks of names, memos and outcomes
    ``database_file``     file names and URLs; one SQLite file under any name, its lock and marker
"""

from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.charging import Account
from expost.budget.ledger import Ledger, Reservation, Standing
from expost.budget.ledger_rows import Entry
from expost.budget.limits import Budget, Filter

__all__ = [
    "Account",
    "ApproxBudget",
    "Budget",
    "Entry",
    "Filter",
    "Ledger",
    "PureBudget",
    "RenyiBudget",
    "Reservation",
    "Standing",
    "ZCDPBudget",
]
