"""Hostile neighbours of training by noise reduction, at the door of ``expost.tune``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import expost
from expost.randomness.source import SimulationRandomness
from tests.tuning.jobs import clouds

JOB = {
    "data": {"feature_bounds": [0, 1], "target_bounds": [0, 1], "holdout": 0.2},
    "model": {"kind": "linear", "training": "noise-reduction", "levels": [0.5, 1, 2, 4]},
    "goal": {"metric": "mse", "at_most": 0.6, "loss_bound": 1.0},
    "privacy": {"delta": 1e-4},
}
UNUSABLE = {
    "NaN": (np.nan, 0.5, 1),
    "infinity": (np.inf, 0.5, 1),
    "minus infinity": (0.5, -np.inf, 0),
    "no target": (0.5, 0.5, np.nan),
    "an infinite target": (0.5, 0.5, np.inf),
}
USABLE = {
    "huge": (1e308, -1e308, 1),
    "tiny": (5e-324, 0.0, 0),
    "another target": (0.9, 0.9, 0),
    "a huge target": (0.5, 0.5, 1e308),
}


def released(place: int, row: tuple[float, float, float], seed: int = 3) -> dict[str, Any]:
    """What leaves a job in which one place holds this row."""
    X, y = clouds(120)
    X, y = X.copy(), y.astype(float)
    X[place], y[place] = row[:2], row[2]
    made = expost.tune(JOB, X, y, randomness=SimulationRandomness(seed), simulation=True)
    document: dict[str, Any] = json.loads(made.certificate())
    return document


def without_numbers(document: Any) -> Any:
    """The shape of a document: its keys and the kinds of its values."""
    if isinstance(document, dict):
        return {key: without_numbers(value) for key, value in document.items()}
    if isinstance(document, list):
        return [without_numbers(each) for each in document]
    return "number" if isinstance(document, (int, float)) else document


@pytest.mark.parametrize("place", [0, 4])  # a training row and a scoring row
@pytest.mark.parametrize("name", UNUSABLE)
def test_a_row_that_cannot_be_used_is_an_empty_place(name: str, place: int) -> None:
    """The same coins give exactly the same release, whatever is wrong with the row."""
    empty = released(place, (np.nan, np.nan, np.nan))
    given = released(place, UNUSABLE[name])
    for document in (empty, given):
        document.pop("released", None)
        document.pop("date", None)
    assert given == empty


@pytest.mark.parametrize("name", USABLE)
def test_no_row_fails(name: str) -> None:
    assert released(0, USABLE[name])["outcome"] in ("value", "nothing")


def test_one_target_only_is_no_error() -> None:
    X, _ = clouds(120)
    made = expost.tune(JOB, X, np.zeros(120), randomness=SimulationRandomness(1), simulation=True)
    assert json.loads(made.certificate())["outcome"] in ("value", "nothing")
