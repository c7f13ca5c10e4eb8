"""A sample of the mutants, and that every edit in the lists still applies.

CI runs this file, ``make test-long`` the sample below, ``make mutants`` (tools/mutants.py) all.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SAMPLE = [
    "pad_up pads nothing",
    "a longdouble is rounded",
    "an epsilon of 21 does not warn",
    "a delta of 1/n does not warn",
    "a panic leaves the selection",
]


def _tool() -> Any:
    """The tool is no module of a package: it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


tool = _tool()


def test_the_lists_are_long_and_names_are_unique():
    mutants = tool.load()
    assert len(mutants) >= 150
    assert len({(mutant.room, mutant.name) for mutant in mutants}) == len(mutants)


@pytest.mark.parametrize("room", sorted(path.stem for path in tool.LISTS.glob("*.toml")))
def test_every_edit_applies_and_has_tests(room):
    """Catches a list that was not kept up with the code: an edit occurs exactly once."""
    for mutant in tool.load(room):
        mutant.apply(tool.PACKAGE)
        assert mutant.equivalent or mutant.tests
        assert all((ROOT / test.split("::")[0]).exists() for test in mutant.tests), mutant.name


def test_a_mistake_is_killed_and_a_comment_survives():
    """Catches a tool that does not apply its edits, and one that calls everything killed."""
    (mistake,) = (mutant for mutant in tool.load() if mutant.name == SAMPLE[0])
    harmless = tool.Mutant(
        "rationals",
        "a comment",
        "rationals.py",
        '_REAL = "give',
        '# a comment\n_REAL = "give',
        mistake.tests,
    )
    assert tool.survivors([mistake, harmless], talk=False) == [harmless]


@pytest.mark.long
def test_a_sample_is_killed():
    """Catches a test that notices nothing."""
    sample = [mutant for mutant in tool.load() if mutant.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    assert tool.survivors(sample, talk=False) == []
