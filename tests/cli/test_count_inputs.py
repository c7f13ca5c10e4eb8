"""Options of ``expost count`` as people write them: bounds, columns, and commands that they try."""

from __future__ import annotations

import pytest

from expost.cli.count_inputs import split_bounds
from tests.cli.counting import count, expost, files

__all__ = ["count", "expost", "files"]  # fixtures


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--bounds", "0:120"], ["--bounds", "0", "120"]),
        (["--bounds=-5:5", "--rows"], ["--bounds", "-5", "5", "--rows"]),
        (["--bounds", "0", "120"], ["--bounds", "0", "120"]),
        (["--bounds", "0:1:2"], ["--bounds", "0:1:2"]),
        (["--by", "a:b", "--", "--bounds", "0:1"], ["--by", "a:b", "--", "--bounds", "0:1"]),
    ],
)
def test_bounds_are_one_word_or_two(given, read):
    assert split_bounds(given) == read


@pytest.mark.parametrize("bounds", [["0", "4000"], ["0:4000"]])
def test_both_ways_reach_the_request(expost, files, bounds):
    options = ("--epsilon", 50, "--sum", "u", "--bounds", *bounds, "--json")
    done = expost("count", files[0], "--user", "u", *options)
    assert done.document["query"]["bounds"] == [0.0, 4000.0]


@pytest.mark.parametrize("word", ["sum", "mean"])
def test_sums_and_means_name_their_option(expost, word):
    done = expost(word, "file.csv")
    assert done.code == 2
    assert f"count FILE --{word} COLUMN" in " ".join(done.err.split())


def test_help_is_a_word_too(expost):
    assert " ledger " in expost("help").out
    done = expost("help", "count")
    assert done.code == 0
    assert "--max-groups-per-user" in done.out
    assert expost("help", "nothing").code == 2


def test_a_column_that_is_nearly_right(expost, files):
    done = expost("count", files[0], "--user", "us", "--epsilon", 1)
    assert "did you mean 'u'? the table has the columns 'u', 'g'" in done.err
    assert "did you mean" not in expost("count", files[0], "--user", "xyz", "--epsilon", 1).err
