"""What every question at the doors goes through: an account, one reservation, one charge.

The reservation is settled at what was looked at, also after an exception or Ctrl-C, and at nothing
if nothing had been looked at. Tests: ``tests/analytics/test_query.py``,
``tests/analytics/test_asked_before.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from expost.analytics.asked_before import KeptAnswer
from expost.analytics.pricing import CountPrice, outcome_of
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.randomness.source import Randomness, require_protection

Result = TypeVar("Result", bound=Any)


def open_account(how: Mapping[str, Any], memo: str = "") -> tuple[Account, Randomness]:
    """Return the account that is charged, and the randomness; refuse what does not fit."""
    source = require_protection(how["randomness"], simulation=bool(how["simulation"]))
    if how["ledger"] is None and (how["budget"] is not None or how["analyst"]):
        raise InvalidInput("ledger", None, "a budget and an analyst belong to a ledger: pass one")
    account = Account(how["ledger"], how["budget"], how["analyst"] or "", how["memo"] or memo)
    account.check_simulation(source.simulated)
    return account, source


def run_charged(
    account: Account,
    priced: CountPrice,
    run: Callable[[dict[str, Any] | None], Result],
    spent: Callable[[], Fraction],
    kept: KeptAnswer | None = None,
) -> Result:
    """Reserve the worst case, run, and settle at what was spent.

    ``run`` gets what the certificate says about the ledger; ``kept`` is where the answer will be.
    """
    with account.reserve(priced.charges, request=priced.request, source=priced.source) as reserved:
        certificate = None
        try:
            if kept is not None:
                kept.begin()
            evidence = reserved.evidence()
            result = run(evidence)
            if evidence is not None:
                certificate = result.certificate()
        finally:
            reserved.settle(outcome_of(spent(), priced.charges), certificate)
    return result
