"""Neighbouring relations of budgets: zero-out budgets take add-remove charges, not conversely."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from expost import ZCDP, ApproxDP, Charges, PureDP, RenyiDP
from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.ledger import Ledger
from expost.budget.limits import Budget
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, REPLACE, ZERO_OUT, Guarantee

KINDS: list[tuple[Budget, Guarantee]] = [
    (PureBudget(1.0, ZERO_OUT), PureDP(0.1)),
    (ApproxBudget(1.0, 1e-6, ZERO_OUT), ApproxDP(0.1, 1e-7)),
    (ZCDPBudget(0.5, ZERO_OUT), ZCDP(0.05)),
    (RenyiBudget((4.0,), (1.0,), "all", ZERO_OUT), RenyiDP((4.0,), (0.1,))),
]
every_kind = pytest.mark.parametrize(("budget", "charge"), KINDS)


@every_kind
def test_a_zero_out_budget_takes_add_remove_charges(budget: Budget, charge: Guarantee) -> None:
    """Would catch a conversion that changes the amount."""
    assert budget.guarantee().neighbours == ZERO_OUT
    assert budget.coordinates(charge) == budget.coordinates(charge.as_zero_out())
    with pytest.raises(InvalidGuarantee, match="neighbours"):
        budget.coordinates(replace(charge, neighbours=REPLACE))  # type: ignore[type-var]


@every_kind
def test_other_budgets_refuse_zero_out_charges(budget: Budget, charge: Guarantee) -> None:
    """Would catch an empty place counted as an absent person; the message names both remedies."""
    for relation in (ADD_REMOVE, REPLACE):
        other = replace(budget, neighbours=relation)  # type: ignore[type-var]
        with pytest.raises(InvalidGuarantee, match="zero-out") as caught:
            other.coordinates(charge.as_zero_out())
        remedies = ("--neighbours zero-out", "data.rows", "rows=")
        assert all((each in str(caught.value)) == (relation == ADD_REMOVE) for each in remedies)


def test_a_ledger_of_each_relation(tmp_path: Path) -> None:
    """Would catch a reservation that is measured in another way than its settlement."""
    places = Charges.from_list([PureDP(0.5, ZERO_OUT)], PureDP(0.1, ZERO_OUT))
    people = Charges.from_list([PureDP(0.25)], PureDP(0.1))
    ledger = Ledger.create(tmp_path / "places.db", PureBudget(1.0, ZERO_OUT))
    ledger.settle(ledger.reserve(places), 0)
    ledger.settle(ledger.reserve(people), None)
    assert ledger.standing().filter.settled == (Fraction(6, 10),)
    assert ledger.verify() == []
    ledger = Ledger.create(tmp_path / "people.db", PureBudget(1.0))
    with pytest.raises(InvalidInput, match=r"data\.rows"):
        ledger.reserve(places)
    ledger.settle(ledger.reserve(people), 0)
    assert ledger.standing().filter.settled == (Fraction(1, 4),)
