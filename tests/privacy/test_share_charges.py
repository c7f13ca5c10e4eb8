"""The rule "outcome i costs i/parts of the worst case": few bytes, rounded up, exact outcomes."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import ZCDP, ApproxDP, Charges, PureDP, RenyiDP
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput

WORST = [PureDP(0.7), ApproxDP(0.7, 1e-6), ZCDP(0.3), RenyiDP((2.0, 4.0), (0.1, 0.2))]


@pytest.mark.parametrize("worst", WORST, ids=lambda worst: worst.kind)
def test_shares_of_every_kind(worst):
    """Catches a share that is rounded down, a δ that is scaled, and a rule lost in JSON."""
    rule = Charges.shares(worst, 1000)
    assert len(rule) == 1001
    assert rule[1000] == rule.nothing == rule.worst_case == worst
    assert rule[0].shared_delta == worst.shared_delta
    assert all(rule[place] <= rule[place + 1] for place in range(1000))
    assert rule[500].size >= worst.size / 2
    again = Charges.from_dict(json.loads(json.dumps(rule.as_dict())))
    assert again == rule
    assert hash(again) == hash(rule)
    assert rule != Charges.shares(worst, 999)
    assert len(json.dumps(Charges.shares(worst).as_dict())) < 200


@given(st.fractions(0, Fraction(0.7)))
def test_the_outcome_covers_the_amount(spent):
    """Catches a job that pays less than it used, or more than one step above it."""
    rule = Charges.shares(PureDP(0.7), 1000)
    place = rule.outcome_for(spent)
    assert Fraction(rule[place].epsilon) >= spent
    assert place == 0 or Fraction(0.7) * (place - 1) / 1000 < spent


@pytest.mark.parametrize("spent", [-1, 2, "x"])
def test_amounts_that_cannot_be(spent):
    """Catches an amount beyond the worst case that is settled as if it were the worst case."""
    with pytest.raises(InvalidInput):
        Charges.shares(PureDP(1)).outcome_for(spent)


@pytest.mark.parametrize("parts", [0, -1, 1.5, True])
def test_parts_that_cannot_be(parts):
    """Catches a division by nothing."""
    with pytest.raises(InvalidInput):
        Charges.shares(PureDP(1), parts)


def test_outcomes_that_are_not_there():
    """Catches an index beyond the end."""
    with pytest.raises(IndexError):
        Charges.shares(PureDP(1), 10)[11]


def test_a_ledger_settles_a_share(tmp_path: Path):
    """Catches a count that stores 72 KB, or settles at another amount than its share."""
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    rule = Charges.shares(PureDP(0.5))
    with ledger._store.reading() as rows:
        before = rows.one("SELECT COALESCE(SUM(LENGTH(detail)), 0) FROM expost_entries")[0]
    job = ledger.reserve(rule)
    ledger.settle(job, rule.outcome_for(Fraction(1, 3)))
    spent = ledger.standing().filter.settled[0]
    assert Fraction(1, 3) <= spent < Fraction(1, 3) + Fraction(1, 10**6)
    with ledger._store.reading() as rows:
        after = rows.one("SELECT SUM(LENGTH(detail)) FROM expost_entries")[0]
        stored = rows.one("SELECT LENGTH(charges) FROM expost_reservations")[0]
    assert stored + after - before < 1000
    assert ledger.verify() == []
    assert ledger.reservation(job.id) == job
