"""Budgets: a filter that admits or refuses, and a durable ledger around it.

``terms``       what a budget limits, and how charges are measured against it
``filter``      the admission rule: pure state, no input or output
``ledger``      reserve → settle, durable, hash-chained, many processes at once
``requests``    what may be asked of it
``store``       the SQL behind the ledger
``chain``       hashes of the entries, and what verifying them finds
``checkpoint``  the secret draws and finished outputs of a selection, to resume it after a crash
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
