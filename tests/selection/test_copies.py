"""Limits and bounds that concern all copies of a list of candidates at once."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from expost import Candidate, PureDP
from expost.errors import InvalidCandidate
from expost.selection import candidate
from expost.selection.drop_law import pure_levels
from expost.selection.renyi_charges import Priced
from expost.selection.renyi_table import _or_composition


def test_too_many_copies_are_refused(monkeypatch):
    """Selectors that run every copy in turn make a list of them first."""
    monkeypatch.setattr(candidate, "_MOST_COPIES", 5)
    enough = [Candidate(len, guarantee=PureDP(1), repeats=each) for each in (2, 3)]
    assert candidate.all_copies(enough) == [0, 0, 1, 1, 1]
    with pytest.raises(InvalidCandidate, match="at most 5"):
        candidate.all_copies([*enough, Candidate(len, guarantee=PureDP(1))])


def test_pure_charges_are_rounded_up():
    """No charge is below ε plus the overhead, in exact fractions; many floats would be."""
    below = 0
    for place in range(1, 60):
        epsilon, more = Fraction(place, 7), Fraction(1, place + 2)
        group = SimpleNamespace(guarantee=SimpleNamespace(size=epsilon, neighbours="add-remove"))
        (charge,) = pure_levels([group], [more])  # type: ignore[list-item]
        assert Fraction(charge.epsilon) >= epsilon + more
        below += Fraction(float(epsilon + more)) < epsilon + more
    assert below > 10  # test of the test: rounding to nearest would be too low


def priced(*charges: float) -> Priced:
    values = np.array(charges)
    bounds = ("T1",) * len(values)
    return Priced(values, np.full(len(values), 8.0), np.ones(len(values)), bounds)


def problem(nothing: float) -> SimpleNamespace:
    """Two groups of 2 and 3 copies with curves 0.1 and 0.2 at the order 4: composition is 0.8."""
    return SimpleNamespace(
        rates=np.ones(2),
        orders=np.array([4.0]),
        copies=np.array([2.0, 3.0]),
        curves=np.array([[0.1], [0.2]]),
        log_weight_nothing=math.log(nothing) if nothing else -math.inf,
    )


@pytest.mark.parametrize(
    ("best", "nothing", "taken"),
    [
        ((0.9, 2.0), 0.0, True),
        ((0.7, 2.0), 0.0, False),  # cheaper for one candidate only
        ((2.0, 0.7), 0.0, False),
        ((0.9, 2.0, 0.3), 0.2, True),
        ((0.85, 2.0, 0.3), 0.25, False),  # "nothing" has a share of the weight
    ],
)
def test_plain_composition_replaces_all_charges_or_none(best, nothing, taken):
    """0.8, and −ln(1 − w)/(α − 1) more if "nothing" has the weight w."""
    here = priced(5.0, 5.0, *best[2:])
    found = _or_composition(problem(nothing), 0, here, priced(*best))  # type: ignore[arg-type]
    if not taken:
        assert found.charges.tolist() == list(best)
        return
    composed = 0.8 - math.log1p(-nothing) / 3
    assert found.charges[:2] == pytest.approx([composed] * 2, rel=1e-9)
    assert (found.charges[:2] >= composed).all()
    assert found.charges[2:].tolist() == list(best[2:])
