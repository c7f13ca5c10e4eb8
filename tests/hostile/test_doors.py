"""Every door of the package has an entry in the hostile suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from expost import Doubling, PureDP
from tests.hostile import doors
from tests.hostile.acts import HERE, SECRET, THERE
from tests.hostile.judge import everything, same_as_tame, within_claim


def test_every_door_has_an_entry():
    """Catches a new selector, executor, estimator, adapter, function or command without one."""
    missing = doors.found_doors() - doors.ENTRIES.keys() - doors.NO_DATA.keys()
    assert not missing, f"add hostile neighbours for {sorted(missing)} in tests/hostile/doors.py"


def test_entries_are_real():
    """Catches an entry for a door that is gone, or whose test is gone."""
    assert (doors.ENTRIES.keys() | doors.NO_DATA.keys()) <= doors.found_doors()
    assert not doors.ENTRIES.keys() & doors.NO_DATA.keys()
    folder = Path(__file__).parent
    assert all((folder / file).is_file() for file in doors.ENTRIES.values())


def test_a_door_without_data_says_why():
    assert all(len(reason.split()) >= 4 for reason in doors.NO_DATA.values())


def leaks(data, randomness):
    """Raises on one data set only."""
    if data == THERE:
        raise ValueError(SECRET)
    return 1.0


def test_the_judgements_see_a_leak():
    """Test of the test: a failure that tells two neighbours apart, and one that looks different."""
    with pytest.raises(AssertionError):
        within_claim(leaks, HERE, THERE, claim=PureDP(0.1))
    with pytest.raises(AssertionError):
        same_as_tame(lambda seed: everything(lambda: leaks(THERE, None)), lambda seed: None, 1)


def test_a_new_door_is_noticed():
    """Test of the test: a selector without an entry."""

    class Another(Doubling):
        name = "another"

    Another.__module__ = "expost.selection.another"
    assert "selector:another" in doors.found_doors()
    Another.__module__ = __name__
    assert "selector:another" not in doors.found_doors()
