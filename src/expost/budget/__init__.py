"""Privacy budgets: the rule that admits or refuses requests, and a durable ledger around it.

Accounting
    ``amounts``        what a number stands for: decimals as people write them
    ``base``           the interface of every budget: limits, and charges measured against them
    ``budgets``        pure, approximate and zCDP budgets, and the functions that build a budget
    ``renyi``          Rényi budgets
    ``filter``         the admission rule; pure state, no input or output

Ledger
    ``charging``       reserve, run, settle: the context manager that every caller uses
    ``ledger``         the ledger: durable, hash-chained, safe for many processes at once
    ``operations``     add budgets, change limits, set alerts, migrate
    ``views``          everything that only reads
    ``reservation_rows``  the table of reservations
    ``totals``         the table of totals, and the writing of entries
    ``requests``       checks of names, memos, caps and outcomes
    ``changes``        new totals and caps
    ``periods``        budgets that renew
    ``alerts``         commands that run when a budget is nearly used up
    ``hash_chain``     entries and their hashes
    ``replay``         the totals and prices recomputed from the entries; used by ``Ledger.verify``
    ``signing``        Ed25519 keys; signed heads and certificates

Storage
    ``locations``      file names and database URLs
    ``store``          transactions, and commits that writers share
    ``batches``        requests that share a transaction
    ``rows``           the tables, and the reading and writing of rows
    ``database_file``  one SQLite file under any name: its lock and its marker
    ``activity``       forks wait for transactions
    ``upgrade``        ledgers of expost 0.1, and recovery
"""

from expost.budget.budgets import ApproxBudget, Budget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.charging import Account
from expost.budget.filter import Filter
from expost.budget.hash_chain import Entry
from expost.budget.ledger import Ledger, Reservation, Standing

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
