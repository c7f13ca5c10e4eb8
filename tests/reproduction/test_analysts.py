"""Everyday questions: rows have their fields, and the method keeps up with the histogram."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the analytics extra")

from expost.errors import InvalidInput
from reproduction import analysts

FIELDS = {"task", "method", "epsilon", "spent", "answered", "right", "coverage"}


def few() -> analysts.Pairs:
    return analysts.orders(count=20_000, months=1, products=12)


def test_rows_and_fields():
    """Nearly as many right as the histogram with all of ε (answers have 90 %); fixed seeds."""
    pairs = few()
    base = analysts.histogram_row("t", pairs, 6, 2.0, 0.1, 20)
    ours = analysts.expost_row("t", pairs, 2.0, 0.1, 3, max_groups_per_user=6)
    assert set(base) >= FIELDS
    assert set(ours) >= FIELDS
    assert base["right"] == 12
    assert ours["right"] >= 0.9 * base["right"]
    assert ours["spent"] <= base["spent"]


def test_the_cap_of_the_baseline():
    pairs = few()
    counts = pairs.capped(1, np.random.default_rng(0))
    assert counts.sum() == len(np.unique(pairs.users))
    assert (pairs.capped(100, np.random.default_rng(0)) == pairs.truth).all()


def test_the_oracle_finds_a_threshold():
    assert analysts.least_epsilon_of(lambda e: e >= 0.3, 0.01, 4) == pytest.approx(0.3, rel=0.01)


def test_tasks_have_names():
    assert {"msweb", "answered", "products", "top"} <= set(analysts.TASKS)
    with pytest.raises(InvalidInput, match="no such"):
        analysts.analyst_rows(["no such"], 1)
