"""Tasks of quantiles: the baselines are what they say, and rows have their fields."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the analytics extra")

from reproduction import analysts
from reproduction import analysts_quantiles as tasks

FIELDS = {"task", "method", "epsilon", "spent", "answered", "right", "coverage"}


def test_five_quantiles_of_few_groups() -> None:
    """Seeded: covered as stated, and cheaper than the limit."""
    rows = tasks.five_quantiles(1, groups=8, rows=16_000)
    assert all(set(row) == FIELDS for row in rows)
    ours = [row for row in rows if row["method"].startswith("expost")]
    assert len(ours) == 2
    for row in ours:
        assert row["coverage"] >= 0.75  # 40 intervals at 90 %: fewer than 30 have a chance of 1e-3
        assert row["spent"] <= row["epsilon"]
    assert {"quantiles-1000", "medians-40"} <= set(analysts.TASKS)


def test_medians_of_few_groups() -> None:
    rows = tasks.medians(1, groups=4, rows=4000)
    assert {row["method"] for row in rows} == {"expost", "gaps (Tumult)", "candidates"}
    errors = {(row["method"], row["epsilon"]): row["right"] for row in rows}
    assert errors["expost", 2.0] < 0.02


def test_the_exponential_mechanism_has_its_law() -> None:
    """A rank error of t rows has a chance of about e^{−εt} at the median; seeded."""
    generator, values = np.random.default_rng(1), np.arange(1001) * 5.0
    errors = [
        1001 * tasks.rank_error(values, tasks.exponential(values, 0.5, 0.2, generator), 0.5)
        for _ in range(2000)
    ]
    assert np.mean(np.array(errors) > 10) == pytest.approx(math.exp(-2), abs=0.04)
    on_grid = tasks.exponential(values, 0.5, 5.0, generator, np.arange(0.0, 5001.0, 10.0))
    assert on_grid == pytest.approx(2500, abs=60)


def test_the_stated_epsilon_is_that_of_the_theorem() -> None:
    median = tasks.stated_epsilon(0.5, 1000)
    assert median == pytest.approx(math.log(50_001 / 0.1) / 20)
    assert tasks.stated_epsilon(0.9, 1000) == pytest.approx(1.8 * median)
