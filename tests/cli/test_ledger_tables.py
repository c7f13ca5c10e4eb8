"""Tables of ``expost ledger`` in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import ApproxDP, PureDP
from expost.budget.budgets import PureBudget
from expost.budget.ledger import Ledger
from expost.cli.ledger_tables import amount_text
from tests.cli.counting import Done, expost

__all__ = ["expost"]  # a fixture


@pytest.fixture
def shown(
    expost: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """A table of a ledger of two jobs, by the name of its command."""
    monkeypatch.setenv("COLUMNS", "80")
    ledger = Ledger.create(tmp_path / "l.db", ApproxDP(20, 1e-5), "people")
    reserved = ledger.reserve(PureDP(1), "expost count", analyst="annabel")
    ledger.settle(reserved, 0, release={"value": 1})
    ledger.reserve(PureDP(1 / 3), "a memo of some words", analyst="bob")
    return lambda command: expost("ledger", command, tmp_path / "l.db").out


def test_entries_fit(shown):
    """Catches broken words, ten digits, and columns that are empty in every row."""
    table = shown("entries")
    assert all(len(line) <= 80 for line in table.splitlines())
    for word in ("time (UTC)", "reserve ", "settle ", "annabel", "release", "ε = 0.33334", "memo"):
        assert word in table
    assert "4 entries of people" in table
    assert "budget" not in table
    assert "+00:00" not in table


def test_budgets_fit(shown):
    """Spent amounts are rounded up, remaining ones down."""
    table = shown("show")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "ε = 0.33334" in table  # held
    assert "ε = 18.666 " in table
    assert "annabel" not in table  # she holds nothing
    assert "bob" in table


@given(st.fractions(Fraction(1, 10**30), 10**9))
def test_amounts_are_short_and_on_the_safe_side(value):
    budget = PureBudget(10)
    low, high = amount_text(budget, (value,), up=False), amount_text(budget, (value,))
    assert Fraction(low) <= value <= Fraction(high)
    assert Fraction(high) - Fraction(low) <= value / 5_000
    assert len(high.replace(".", "").strip("0").partition("e")[0]) <= 5


def test_no_amount_is_0():
    assert amount_text(PureBudget(10), (Fraction(0),)) == "0"


def test_a_narrow_terminal_breaks_words_instead_of_hiding_them(expost, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    ledger = Ledger.create(tmp_path / "l.db", ApproxDP(20, 1e-5), "people")
    ledger.settle(ledger.reserve(PureDP(1), "expost count", analyst="annabel"), 0)
    table = expost("ledger", "entries", tmp_path / "l.db").out
    assert all(len(line) <= 30 for line in table.splitlines())
