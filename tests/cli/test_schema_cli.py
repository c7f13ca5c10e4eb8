"""``expost schema``: JSON Schema of the questions, for editors."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from expost.analytics.request import CountRequest
from expost.cli.main import app
from expost.tuning import EXAMPLE
from expost.tuning.request.tune_request import KEYS
from tests.tuning.jobs import TOML, job

ROOT = Path(__file__).parent.parent.parent
jsonschema = pytest.importorskip("jsonschema")


def schema(question: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["schema", question])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.Draft7Validator.check_schema(document)
    return document


def test_job_files_are_valid() -> None:
    """Every job file of the repository, and the example with all its comments taken up."""
    validator = jsonschema.Draft7Validator(schema("tune"))
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.toml")]
    jobs = [text for text in files if "[goal]" in text]
    assert len(jobs) >= 2
    for text in (*jobs, EXAMPLE, TOML):
        assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize(
    ("table", "key", "wrong"),
    [
        ("goal", "at_leest", 0.8),
        ("goal", "confidence", 1),
        ("goal", "at_least", "0.8"),
        ("privacy", "delta", 0),
        ("privacy", "max_epsilon", 1e4),
        ("model", "training", "fast"),
        ("search", "epsilons", [0]),
        ("search", "optimisers", ["lion"]),
        ("data", "classes", 1),
        ("data", "categories", {"city": "Bern"}),
        ("data", "rows", 0.5),
    ],
)
def test_mistakes_are_found_by_editors_and_by_the_reader(table: str, key: str, wrong: Any) -> None:
    """Catches a schema that allows what a job refuses."""
    from expost.errors import InvalidInput
    from expost.tuning import read_settings

    changed = job(**{table: {key: wrong}})
    assert not jsonschema.Draft7Validator(schema("tune")).is_valid(changed)
    with pytest.raises(InvalidInput, match=rf"{table}\.{key}"):
        read_settings(changed, given_data=True)


def test_every_key_is_described() -> None:
    tables = schema("tune")["properties"]
    described = {
        (table, key): entry["description"]
        for table, part in tables.items()
        for key, entry in part["properties"].items()
    }
    assert described == {(key.table, key.name or name): key.help for name, key in KEYS.items()}


def test_counts() -> None:
    document = schema("count")
    assert set(document["properties"]) == set(CountRequest.__annotations__)
    validator = jsonschema.Draft7Validator(document)
    good = {"epsilon": 1, "by": ["city"], "bounds": [0, 10], "keys": ["a"], "kind": "sum"}
    assert validator.is_valid(good | {"column": "age", "max_rows_per_user": "auto"})
    for wrong in ({}, {"epsilon": 0}, {"epsilon": 1, "kind": "median"}, {"epsilon": 1, "of": 2}):
        assert not validator.is_valid(wrong)


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    assert CliRunner().invoke(app, ["schema", "tune", "--out", str(path)]).exit_code == 0
    assert json.loads(path.read_text(encoding="utf-8"))["title"] == "Tuning job of expost"
    assert CliRunner().invoke(app, ["schema", "tune", "--out", str(path)]).exit_code != 0
