"""One list of settings: files, keywords, options, schema and forms have the same keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.tuning.request.tune_request import (
    KEYS,
    KEYWORDS,
    TuneRequest,
    job_schema,
    keys_of,
    parsed,
    tables_of,
)
from tests.tuning.jobs import TOML, job


def test_keywords_reach_the_key_of_their_name() -> None:
    """Catches a keyword that lands in another table, or in none."""
    for name, key in KEYWORDS.items():
        tables = tables_of({name: "value"})
        assert {table: keys for table, keys in tables.items() if keys} == {
            key.table: {key.name or name: "value"}
        }
        assert (key.name or name) in keys_of(key.table)
    assert tables_of({"features": "auto"})["model"] == {"features": "auto"}
    assert tables_of({"features": ["auto", "plain"]})["search"] == {"features": ["auto", "plain"]}
    assert tables_of({"features": ["age"]})["data"] == {"features": ["age"]}


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("at_least = 0.7", "at_leest = 0.7", r"goal.at_leest \(line 18\) = 0.7 .*mean at_least"),
        ("classes = 2", "clases = 2", r"data.clases \(line 4\) = 2 .*did you mean classes\?"),
        ("delta = 1e-4", "zebra = 1", r"privacy.zebra .*the keys are delta, overhead, "),
        ("classes = 2", "at_least = 2", r"data.at_least .*it belongs to \[goal\]"),
        ("delta = 1e-4", "delta = 3", r"privacy.delta \(line 21\) = 3 .*0 < delta < 1"),
    ],
)
def test_a_mistake_names_the_key_the_value_and_what_is_valid(
    tmp_path: Path, line: str, instead: str, said: str
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TOML.replace(line, instead), encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        TuneRequest.read(path)


def test_a_request_holds_what_was_given() -> None:
    request = TuneRequest.read(job())
    assert (request.at_least, request.model, request.attempts) == (0.7, "logistic", 3)
    assert request.feature_bounds == ((0.0, 1.0),)
    assert request.tell is None
    assert request.given("at_least", "tell")
    assert not request.given("tell", "holdout")
    assert set(request.tables) == {"data", "model", "search", "goal", "privacy"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epsilons", "0.5:2:0.5", [0.5, 1.0, 1.5, 2.0]),
        ("epsilons", "0.5, 1", [0.5, 1.0]),
        ("classes", "3", 3),
        ("classes", "no,yes", ["no", "yes"]),
        ("features", "plain", "plain"),
        ("features", "age,b", ["age", "b"]),
        ("target_bounds", "0:1", [0.0, 1.0]),
        ("categories", ["city=Bern,Zug", "x=1"], {"city": ["Bern", "Zug"], "x": ["1"]}),
        ("dates", ["born=1900-01-01:2026-12-31"], {"born": ["1900-01-01", "2026-12-31"]}),
        ("missing", ["age=40", "b=indicator"], {"age": 40.0, "b": "indicator"}),
        ("booleans", ["a,b", "c"], ["a", "b", "c"]),
        ("integers", False, None),
        ("max_epsilon", 1.5, 1.5),
        ("max_epsilon", "1.5", 1.5),
        ("attempts", "7", 7),
        ("input_shape", "1,28,28", [1, 28, 28]),
    ],
)
def test_texts_become_values(name: str, text: Any, value: Any) -> None:
    assert parsed(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("epsilons", "a"),
        ("epsilons", "0:1:0"),
        ("epsilons", "0:1e9:1"),
        ("expected_shares", "few"),
        ("attempts", "1,000"),
        ("max_epsilon", "1,5"),
        ("dates", ["born=1900"]),
        ("categories", ["city"]),
        ("categories", ["city=a", "city=b"]),
    ],
)
def test_texts_that_cannot_be_read_name_their_setting(name: str, text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed(name, text)
    assert caught.value.field == name


def test_every_key_has_a_schema_and_help() -> None:
    for name, key in KEYS.items():
        assert key.help.endswith("."), name
        assert key.kind.schema, name
        assert not key.first or key.label, name
    some = job_schema(lambda name: name == "at_least")["properties"]
    assert [key for part in some.values() for key in part["properties"]] == ["at_least"]
