"""What people do who look after a ledger: add budgets, change limits, set alerts, migrate.

Tests: ``tests/budget/test_operations.py``, ``tests/budget/test_upgrade.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from expost.budget import alerts, changes, totals, upgrade
from expost.budget.base import Budget
from expost.budget.budgets import as_budget
from expost.budget.periods import check_renewal
from expost.budget.requests import check_cap, check_name
from expost.budget.totals import NO_ANALYST
from expost.budget.views import LedgerViews
from expost.privacy.guarantees import Guarantee
from expost.rationals import Number


class LedgerOperations(LedgerViews):
    """The operations of a ledger. Use :class:`expost.budget.ledger.Ledger`."""

    @staticmethod
    def upgrade(url: str | Path) -> str:
        """Migrate a ledger of expost 0.1 to the schema of this version; see ``docs/ledger.md``.

        Parameters
        ----------
        url : str or Path
            The ledger.

        Returns
        -------
        str
            Where the copy of the old ledger is.

        Raises
        ------
        LedgerError
            There is nothing to migrate, the ledger is not sound, or it is in use.
        """
        return upgrade.upgrade(url)

    @staticmethod
    def recover(url: str | Path) -> None:
        """Take a SQLite ledger into use again after a crash under another name.

        This is possible only if the file is sound as it is. A journal beside this name that does
        not belong to the last write is removed.

        Parameters
        ----------
        url : str or Path
            The ledger.

        Raises
        ------
        LedgerError
            The last write left the file unfinished; open it once under the name that was used.
        """
        upgrade.recover(url)

    def add_budget(
        self,
        name: str,
        budget: Budget | Guarantee,
        *,
        caps: Mapping[str, Budget | Guarantee] | None = None,
        renews: str | None = None,
    ) -> None:
        """Add another budget, one per data set.

        Parameters
        ----------
        name : str
            Name of the budget, not used in this ledger before.
        budget : Budget or Guarantee
            The limit.
        caps : mapping, optional
            A limit for each named analyst inside the budget.
        renews : {"day", "week", "month", "quarter", "year"}, optional
            As in :meth:`create`.

        Raises
        ------
        LedgerError
            The name is in use, or the database cannot be used.
        InvalidInput
            A name or a limit is not valid.
        """
        terms, limits = checked_terms(name, budget, caps)
        every = check_renewal(renews)
        self._store.write(lambda rows: totals.add_budget(rows, name, terms, limits, every))

    def change_budget(
        self,
        budget: Budget | Guarantee | None,
        reason: str,
        *,
        name: str | None = None,
        analyst: str = NO_ANALYST,
    ) -> None:
        """Change the limit of a budget, or set, change or remove an analyst's cap.

        The change is an entry of the ledger. A limit may be set below what is used; then nothing
        more is admitted. What the budget guarantees is the largest limit it ever had.

        Parameters
        ----------
        budget : Budget or Guarantee or None
            The new limit, of the same kind. None removes a cap.
        reason : str
            Why it is changed; stored with the entry.
        name : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            The analyst whose cap is changed.

        Raises
        ------
        InvalidInput
            The reason is missing, the limit is of another kind, or there is no such cap.
        """
        terms = None if budget is None else as_budget(budget)
        self._store.write(lambda rows: changes.change(rows, terms, reason, name, analyst))

    def set_alert(self, share: Number | str, command: str, *, budget: str | None = None) -> None:
        """Store a command that runs when a budget is used up to a share.

        Parameters
        ----------
        share : number or str
            The share of the limit, for example 0.8.
        command : str
            The command, run by the shell (:mod:`expost.budget.alerts`). An empty text removes the
            alert at this share.
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        """
        self._store.write(lambda rows: alerts.add(rows, budget, share, command))


def checked_terms(
    name: str, budget: Budget | Guarantee, caps: Mapping[str, Budget | Guarantee] | None
) -> tuple[Budget, dict[str, Budget]]:
    """The terms of a new budget and of its caps, checked."""
    terms = as_budget(budget)
    limits = {who: as_budget(cap) for who, cap in (caps or {}).items()}
    check_name(name, "name")
    for who, cap in limits.items():
        check_cap(terms, who, cap)
    return terms, limits
