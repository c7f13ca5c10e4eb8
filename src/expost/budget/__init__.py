"""Privacy budgets: the rule that admits or refuses requests, and a durable ledger around it.

Accounting
    ``base``          the interface of every budget: limits, and charges measured against them
    ``budgets``       pure, approximate and zCDP budgets, and the functions that build a budget
    ``renyi``         Rényi budgets
    ``filter``        the admission rule; pure state, no input or output

Ledger
    ``charging``      reserve, run, settle: the context manager that every caller uses
    ``ledger``        the ledger: durable, hash-chained, safe for many processes at once
    ``reservations``  the table of reservations
    ``totals``        the table of totals, and the writing of entries
    ``requests``      checks of names, memos, caps and outcomes
    ``store``         the SQL behind the ledger
    ``hash_chain``    entries and their hashes
    ``replay``        the totals recomputed from the entries; used by ``Ledger.verify``
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
