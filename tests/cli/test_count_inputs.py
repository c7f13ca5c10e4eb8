"""Options of ``expost count`` as people write them: bounds, columns, and commands that they try."""

from __future__ import annotations

import pytest

from expost.cli.count import split_bounds
from tests.cli.counting import count, expost, files

__all__ = ["count", "expost", "files"]  # fixtures


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--bounds", "0:120"], ["--bounds", "0", "120"]),
        (["--bounds=-5:5", "--count-rows"], ["--bounds", "-5", "5", "--count-rows"]),
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


@pytest.mark.parametrize("header", ["", "g\n", '"g"\r\n', "\ufeffg\n"])
def test_a_header_of_a_keys_file(expost, files, tmp_path, header):
    """A line that names the column is no group: it would be counted and charged."""
    keys = tmp_path / "groups.csv"
    keys.write_text(header + "large\nmiddle\n", encoding="utf-8")
    options = ("--by", "g", "--user", "u", "--keys", keys, "--epsilon", 50, "--json")
    document = expost("count", files[0], *options).document
    groups = [answer["group"] for answer in document["answers"] + document["unanswered"]]
    assert sorted(groups) == ["large", "middle"]


def test_a_header_of_keys_of_several_columns(expost, tmp_path):
    (tmp_path / "rows.csv").write_text("u,a,b\n1,x,y\n2,x,z\n")
    (tmp_path / "keys.csv").write_text("a,b\nx,y\nx,z\n")
    options = ("--by", "a", "--by", "b", "--user", "u", "--epsilon", 50, "--json")
    found = expost("count", tmp_path / "rows.csv", *options, "--keys", tmp_path / "keys.csv")
    answers = found.document["answers"] + found.document["unanswered"]
    assert sorted(answer["group"] for answer in answers) == [["x", "y"], ["x", "z"]]


@pytest.mark.parametrize("condition", ["g=large or g=middle", "n=one", "day=2024-02-31"])
def test_a_condition_that_matches_nothing_is_refused(expost, tmp_path, condition):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"u": [1, 2], "g": ["large", "middle"], "n": [1, None]}
    day = pa.array([0, 1], pa.timestamp("s"))
    parquet.write_table(pa.table({**columns, "day": day}), tmp_path / "rows.parquet")
    done = expost(
        "count", tmp_path / "rows.parquet", "--user", "u", "--epsilon", 1, "--where", condition
    )
    assert done.code == 2
    assert "where" in done.err
