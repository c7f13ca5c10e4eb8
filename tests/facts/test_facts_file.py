"""Files of facts: what describe writes is what tune and count read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.analytics.learned_facts import fill_stated_facts
from expost.errors import InvalidInput
from expost.facts.column_facts import read_facts, stated_facts, with_facts
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.defaults import default_job
from expost.tuning.request.tune_request import TuneRequest

pytest.importorskip("ibis")
pd = pytest.importorskip("pandas")

FILE = """
[facts]
user = "who"
max_rows_per_user = 4
[columns.age]
kind = "whole number"
bounds = [17, 76]
missing = 37
[columns.colour]
kind = "category"
categories = ["red", "blue"]
[columns."a b"]
kind = "boolean"
categories = ["no", "yes"]
missing = false
[columns.born]
kind = "date"
bounds = ["1950-01-01", "2001-12-31"]
[columns.number]
kind = "identifier"
bounds = [0, 900]
[columns.note]
kind = "text"
"""


@pytest.fixture
def stated(tmp_path: Path) -> Path:
    path = tmp_path / "facts.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def frame(size: int = 4000) -> Any:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": np.arange(size) // 2,
            "age": generator.integers(18, 80, size),
            "colour": np.array(["red", "blue"])[generator.integers(0, 2, size)],
            "flag": generator.integers(0, 2, size),
            'odd "name"': generator.normal(0, 1, size),
        }
    )


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    facts = expost.describe(
        frame(), user="who", epsilon=5.0, randomness=SimulationRandomness(1), simulation=True
    )
    for name in ("facts.toml", "facts.json"):
        facts.save(tmp_path / name)
        again = read_facts(tmp_path / name)
        assert again.columns == facts.stated().columns
        for target in (None, "colour", "flag", "age"):
            assert again.data_settings(target) == facts.data_settings(target)
        assert again.head["max_rows_per_user"] == 2
        assert again.names("flag") == ["0", "1"]
        assert again.bounds("age") == facts["age"].bounds


def test_a_job_takes_what_it_does_not_state(stated: Path) -> None:
    given = {"target": "colour", "categories": {"city": ["Bern"]}, "missing": {"age": "indicator"}}
    data = with_facts(given, read_facts(stated))
    assert data["classes"] == ["blue", "red"]
    assert data["feature_bounds"] == {"age": [17, 76]}
    assert data["categories"] == {"city": ["Bern"]}
    assert data["missing"] == {"age": "indicator", "a b": False}
    assert data["booleans"] == ["a b"]
    assert data["features"] == ["age", "a b", "born", "note", "city"]  # identifiers are left out
    own = {"target": "age", "features": ["colour"], "target_bounds": [0, 9]}
    narrow = with_facts(own, read_facts(stated))
    assert narrow == own | {"categories": {"colour": ["red", "blue"]}}


def test_jobs_of_files_and_keywords_name_the_file(stated: Path) -> None:
    job = stated.parent / "job.toml"
    job.write_text('[data]\ntarget = "colour"\nfacts = "facts.toml"\n', encoding="utf-8")
    assert TuneRequest.read(job).classes == ("blue", "red")
    assert "facts" not in TuneRequest.read(job).tables["data"]
    tables = default_job(frame(50), target="age", at_most=9, metric="rmse", facts=str(stated))
    assert tables["data"]["target_bounds"] == [17, 76]


def test_counts_take_bounds_groups_and_caps(stated: Path) -> None:
    options: dict[str, Any] = {
        "user": "who", "epsilon": 50.0, "facts": stated, "simulation": True,
        "randomness": SimulationRandomness(1),
    }  # fmt: skip
    means = expost.mean(frame(), "age", by="colour", **options)
    query = means.certificate()["query"]
    assert sorted(str(answer.group) for answer in means.answers) == ["blue", "red"]
    assert [float(end) for end in query["bounds"]] == [17, 76]
    asked: dict[str, Any] = {"kind": "mean", "column": "age", "user": "who"}
    fill_stated_facts(asked, stated)
    assert asked["max_rows_per_user"] == 4
    asked = {"kind": "count", "by": ["colour", "a b"], "user": "other", "count_rows": True}
    fill_stated_facts(asked, stated)
    assert asked["keys"][0] == ("red", "no")
    assert len(asked["keys"]) == 4
    assert "max_rows_per_user" not in asked  # that of another person


@pytest.mark.parametrize(
    "wrong",
    [
        "x = 1", "[columns.a]\nkind = 'colour'", "[columns.a]\nkind = 'number'\nbounds = [2, 1]",
        "[columns.a]\nkind = 'date'\nbounds = [1, 2]", "[columns.a]\nkind = 'number'\nlow = 1",
        "[columns.a]\nkind = 'category'\ncategories = ['x', 'x']", "[columns]\na = 1", "[", "",
        "[facts]\nmax_rows_per_user = 0\n[columns.a]\nkind = 'text'",
        "[columns.a]\nkind = 'number'\nbounds = [nan, 1]",
    ],
)  # fmt: skip
def test_wrong_files_are_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "facts.toml"
    path.write_text(wrong, encoding="utf-8")
    with pytest.raises(InvalidInput):
        read_facts(path)


def test_other_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        read_facts(tmp_path / "absent.toml")
    for document in ({"kind": "facts"}, [], {"kind": "facts", "facts": {"columns": {"a": 1}}}):
        with pytest.raises(InvalidInput):
            stated_facts(json.loads(json.dumps(document)))
