"""The grid in a certificate: small, and enough to compute every charge again."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest

from expost import AboveThreshold, Candidate, PureDP, RandomDropping, RenyiDP
from expost.errors import InvalidRelease
from expost.selection.grid import grid_of, source_of
from expost.selection.price_again import charges_of
from expost.selection.selector import Selector
from tests.contracts.doors import DOORS, every_door


def run(data, randomness):
    return 0


def stored(selector: Selector, candidates: list[Candidate]) -> dict:
    """The grid after a way through a file."""
    return json.loads(json.dumps(grid_of(selector, candidates), allow_nan=False))


@every_door
def test_every_selector_can_be_priced_again(name):
    """Catches a setting that the price depends on and that the grid leaves out."""
    door = DOORS[name]
    candidates = door.candidates()
    assert charges_of(stored(door.selector, candidates)) == door.selector.charges(candidates)


@pytest.mark.parametrize(
    "selector",
    [
        RandomDropping(Fraction(1, 3)),
        RandomDropping(Decimal("0.1"), allow_nothing=True),
        RandomDropping(0.1, delta=Fraction(1, 10**7)),
        RandomDropping(0.1, order=(4, Fraction(33, 4))),
        RandomDropping(0.1, delta=1e-6, method="paper"),
        AboveThreshold(0.1, 0.5, delta=1e-6, weights=(0.5, 0.25, 0.125)),
        AboveThreshold(0.1, 0.5, delta=1e-6, method="closed-form"),
    ],
    ids=repr,
)
def test_settings_stay_exact(selector):
    """Catches a rational that becomes the nearest float: the last digit would differ."""
    orders = tuple(float(order) for order in (2, 4, 8.25, 16, 64))
    renyi = selector.delta is not None or selector.order is not None
    candidates = [
        Candidate(
            run,
            guarantee=RenyiDP(orders, tuple(0.01 * k * order for order in orders))
            if renyi
            else PureDP(0.1 * k),
            repeats=k * 10**k,
            drop_rate=Fraction(k, 3),
        )
        for k in (1, 2, 3)
    ]
    assert charges_of(stored(selector, candidates)) == selector.charges(candidates)


def test_a_large_grid_is_small():
    """Catches a promise that is written once per candidate."""
    orders = tuple(float(order) for order in range(2, 34))
    curves = [RenyiDP(orders, tuple(0.001 * k * order for order in orders)) for k in range(1, 7)]
    candidates = [
        Candidate(run, {"rate": rate, "level": level}, guarantee=curves[level], drop_rate=0.1)
        for rate in range(270)
        for level in range(6)
    ]
    assert len(candidates) == 1620
    assert len(json.dumps(grid_of(RandomDropping(0.1, delta=1e-6), candidates))) < 25_000
    ordered = sorted(candidates, key=lambda each: each.params["level"])
    assert len(json.dumps(grid_of(RandomDropping(0.1, delta=1e-6), ordered))) < 8_000


class Own(RandomDropping):
    """A selector of somebody else."""


def test_other_selectors_have_no_grid():
    """Catches a price that is computed with another selector's code."""
    assert grid_of(Own(0.1), DOORS["random-dropping"].candidates()) is None


def test_candidates_are_not_run():
    """Catches a grid that runs something."""
    grid = stored(DOORS["doubling"].selector, DOORS["doubling"].candidates())
    assert charges_of(grid).worst_case == PureDP(1.75)


@pytest.mark.parametrize(
    "change",
    [
        {"selector": {"name": "none"}},
        {"selector": {}},
        {"selector": None},
        {"promises": []},
        {"promises": [{"kind": "pure", "epsilon": -1}]},
        {"levels": [[0]]},
        {"levels": [[7, 1, None]]},
        {"candidates": []},
        {"candidates": [[0, 10**12]]},
        {"candidates": [[9, 1]]},
        {"mechanisms": "none"},
        {"mechanisms": "gaussian"},
    ],
    ids=str,
)
def test_damaged_grids(change):
    """Catches a traceback, or hours of work, for a file that somebody else wrote."""
    grid = stored(DOORS["random-dropping"].selector, DOORS["random-dropping"].candidates())
    with pytest.raises(InvalidRelease):
        charges_of(grid | change)
    with pytest.raises(InvalidRelease):
        charges_of({name: each for name, each in grid.items() if name not in change})


def test_sources_are_described_without_data():
    """Catches rows, counts or values in the description of a source."""
    import pandas as pd

    table = pd.DataFrame({"person": ["ann", "bob"], "age": [31, 47]})
    assert source_of(table)["columns"] == ["person", "age"]
    assert source_of(["ann", "bob"]) == {"kind": "builtins.list"}
    assert source_of({"ann": 3}) == {"kind": "builtins.dict"}
    assert "ann" not in str(source_of(table))
