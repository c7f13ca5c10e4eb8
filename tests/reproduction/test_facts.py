"""The table of facts about Adult, with a few runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from reproduction.facts import adult, facts_table

from expost.randomness.source import SimulationRandomness

ADULT = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "adult.csv"


@pytest.mark.skipif(not ADULT.is_file(), reason="the data of Adult is not part of the repository")
@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_facts_about_adult(epsilon: float) -> None:
    table = facts_table(adult(ADULT), epsilon, 12, SimulationRandomness(1))
    assert table["categories_found"] > 0.97
    assert table["kinds_right"] == 1.0
    assert table["bounds_inside"] > 0.85
