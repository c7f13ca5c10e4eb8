"""The grid in a certificate: small, and enough to compute every charge again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from expost import (
    AboveThreshold,
    Candidate,
    NoisePath,
    PathSearch,
    PureDP,
    RandomDropping,
    RenyiDP,
)
from expost.certificates.document import charges_of_grid, rebuild
from expost.errors import InvalidRelease
from expost.privacy.guarantees import ZERO_OUT
from expost.selection.above_threshold import PlannedAttempt, PlannedPath, Tell
from expost.selection.held_out import HeldOut
from expost.selection.release import OWN, data_description, grid_of
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
    assert charges_of_grid(stored(door.selector, candidates)) == door.selector.charges(candidates)


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
    assert charges_of_grid(stored(selector, candidates)) == selector.charges(candidates)


@dataclass(frozen=True)
class CountWithRows:
    """A count that carries rows of its own, as a careless caller might write it."""

    rows: tuple[str, ...]

    def __call__(self, output: Any, data: Any) -> int:
        return len(self.rows)


LEVELS = [0.25, 0.5, 1.0]
COUNT = CountWithRows(("secret-row",))


def held_out(**settings: Any) -> HeldOut:
    return HeldOut.for_levels(COUNT, LEVELS, goal=7, **{"confidence": 0.9, **settings})


PATHS: dict[str, tuple[PathSearch, list[Candidate]]] = {
    name: (selector, NoisePath(len, 3, max, 2, neighbours).levels(LEVELS, delta=delta))
    for name, selector, neighbours, delta in [
        ("laplace", PathSearch(at_least=5), "add-remove", None),
        ("gaussian", PathSearch(at_least=5), "add-remove", 1e-5),
        ("held-out", PathSearch(held_out=held_out()), ZERO_OUT, 1e-5),
        ("certain", PathSearch(held_out=held_out(confidence=0.999)), ZERO_OUT, 1e-5),
        ("rises and falls", PathSearch(held_out=held_out(monotone=False, steps=4)), ZERO_OUT, None),
        ("planned", PlannedPath(held_out=held_out(), charged_delta=1e-3), ZERO_OUT, 1e-5),
        ("planned, no delta", PlannedPath(at_least=0.8, charged_delta=0.0), ZERO_OUT, 1e-5),
    ]
}
PATHS["zcdp"] = (PathSearch(at_least=5), NoisePath(len, 3, max).levels(rhos=LEVELS))


@pytest.mark.parametrize("name", PATHS)
def test_noise_paths_can_be_priced_again(name):
    """Catches a genuine certificate of noise reduction that is called wrong."""
    selector, candidates = PATHS[name]
    grid = stored(selector, candidates)
    assert charges_of_grid(grid) == selector.charges(candidates)
    again, levels = rebuild(grid)
    assert again.settings() == selector.settings()
    assert again._theorem(levels) == selector._theorem(candidates)


def test_a_grid_of_version_0_2_calls_the_goal_target():
    """Catches a certificate of an older version that can no longer be priced again."""
    candidates = [Candidate(run, {"level": i}, guarantee=PureDP(i)) for i in (1, 2)]
    selector = AboveThreshold(0.1, at_least=0.5)
    grid = stored(selector, candidates)
    grid["selector"]["target"] = grid["selector"].pop("at_least")
    assert rebuild(grid)[0] == selector


def test_a_grid_names_rules_and_writes_nothing_of_them():
    """Catches fields of a caller's function, which may hold rows, in a certificate."""
    assert "secret-row" not in json.dumps(stored(*PATHS["held-out"]))


@pytest.mark.parametrize(
    "change", [{"thresholds": [1]}, {"monotone": False, "stages": []}, {"steps": 0}], ids=str
)
def test_damaged_rules_of_held_out_rows(change):
    """Catches a grid that the proof does not cover and that is priced all the same."""
    grid = stored(*PATHS["held-out"])
    grid["selector"]["held_out"] |= change
    with pytest.raises(InvalidRelease):
        charges_of_grid(grid)


def kinds(base: type = Selector) -> set[type]:
    """Every selector of the package."""
    own = {each for each in base.__subclasses__() if each.__module__.startswith(OWN)}
    return own.union(*(kinds(each) for each in own)) if own else own


def test_no_selector_is_forgotten_here():
    """Catches a new selector whose certificates nobody has verified."""
    tried = {type(door.selector) for door in DOORS.values()}
    tried |= {type(selector) for selector, _ in PATHS.values()}
    tried |= {PlannedAttempt, Tell}  # tests/tuning/test_verification.py, test_missed.py
    assert {each for each in kinds() if hasattr(each, "name")} == tried


def test_a_large_grid_is_small():
    """Catches a guarantee that is written once per candidate."""
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
    assert charges_of_grid(grid).worst_case == PureDP(1.75)


@pytest.mark.parametrize(
    "change",
    [
        {"selector": {"name": "none"}},
        {"selector": {}},
        {"selector": None},
        {"guarantees": []},
        {"guarantees": [{"kind": "pure", "epsilon": -1}]},
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
        charges_of_grid(grid | change)
    with pytest.raises(InvalidRelease):
        charges_of_grid({name: each for name, each in grid.items() if name not in change})


def test_sources_are_described_without_data():
    """Catches rows, counts or values in the description of a source."""
    import pandas as pd

    table = pd.DataFrame({"person": ["ann", "bob"], "age": [31, 47]})
    assert data_description(table)["columns"] == ["person", "age"]
    assert data_description(["ann", "bob"]) == {"kind": "builtins.list"}
    assert data_description({"ann": 3}) == {"kind": "builtins.dict"}
    assert "ann" not in str(data_description(table))
