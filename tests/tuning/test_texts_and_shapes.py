"""Columns of text and flat pictures in a job: from the door to the saved model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import expost
from expost.cli.main import app
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.settings import DataSettings, read_settings
from expost.tuning.rows.job_rows import load_rows
from tests.tuning.jobs import job

pytest.importorskip("numba")
pandas = pytest.importorskip("pandas")

GOOD, BAD = (
    ("a lovely quiet room", "lovely staff"),
    ("a dirty noisy room", "rude staff, never again"),
)
FACTS: dict[str, Any] = {
    "target": "label",
    "classes": ["no", "yes"],
    "feature_bounds": {"stars": [1, 5]},
    "texts": ["review"],
}


def frame(rows: int = 400) -> Any:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, rows)
    texts = [(GOOD if label else BAD)[generator.integers(2)] for label in labels]
    table = {"stars": generator.integers(1, 6, rows), "review": texts}
    return pandas.DataFrame({**table, "label": np.where(labels == 1, "yes", "no")})


def test_a_column_of_text_from_the_door_to_the_saved_model(tmp_path: Path) -> None:
    tuned = expost.tune(
        job(data={**FACTS, "feature_bounds": FACTS["feature_bounds"]}),
        frame(),
        out=tmp_path / "out",
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert tuned.passed
    model = expost.load_model(tmp_path / "out")
    new = pandas.DataFrame({"review": [*GOOD, *BAD, None], "stars": [3] * 5})
    assert model.predict(new)[:4].tolist() == ["yes", "yes", "no", "no"]


@pytest.mark.parametrize(
    "cell", [None, "", float("nan"), 5, b"\xff", "\ud800", "x" * 10**6, [1], object(), float("inf")]
)
def test_no_text_fails_or_changes_another_row(cell: Any) -> None:
    settings = read_settings(job(data=FACTS), given_data=True).data
    table = frame(20)
    before = load_rows(settings, table)
    table["review"] = table["review"].astype(object)
    table.at[7, "review"] = cell
    after = load_rows(settings, table)
    where = int(np.flatnonzero(~(before.X == after.X).all(axis=1))[0])
    np.testing.assert_array_equal(np.delete(before.X, where, 0), np.delete(after.X, where, 0))
    np.testing.assert_array_equal(before.score_X, after.score_X)
    assert np.isfinite(after.X).all()
    assert after.X.min() >= 0
    assert after.X.max() <= 1


def test_text_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    frame(60).to_csv(path, index=False, quoting=csv.QUOTE_MINIMAL)
    options = [*("--target", "label", "--classes", "no,yes", "--at-least", "0.6", "--init")]
    asked = CliRunner().invoke(app, ["tune", str(path), *options])
    assert "texts" in asked.output
    facts = ["--texts", "review", "--bounds", "stars=1:5", "--shape", "2x2"]
    refused = CliRunner().invoke(app, ["tune", str(path), *options[:-1], *facts, "--plan"])
    assert "a row has 2 values" in str(refused.exception)
    done = CliRunner().invoke(app, ["tune", str(path), *options, *facts[:-2]])
    assert done.exit_code == 0, done.output
    assert 'texts = ["review"]' in done.output


def test_facts_about_texts_are_checked() -> None:
    for changes, problem in (
        ({"missing": {"review": "none"}}, "a missing text"),
        ({"categories": {"review": ["a"]}}, "is also in"),
        ({"texts": ["label", "review"]}, "is the target"),
        ({"texts": "review"}, "list of column names"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            read_settings(job(data={**FACTS, **changes}), given_data=True)
    with pytest.raises(InvalidInput, match="no such column"):
        load_rows(
            read_settings(job(data={**FACTS, "texts": ["reviews"]}), given_data=True).data, frame()
        )


def test_a_flat_row_has_the_shape_that_is_stated() -> None:
    X, y = np.zeros((10, 12)), np.arange(10) % 2
    settings = DataSettings(bounds=((0.0, 1.0),), classes=2, shape=(3, 4))
    assert load_rows(settings, X, y).shape == (3, 4)
    assert read_settings(job(data={"shape": "3x4"}), given_data=True).data.shape == (3, 4)
    json.dumps(read_settings(job(data={"shape": [3, 4]}), given_data=True).public())
    with pytest.raises(InvalidInput, match="a row has 12 values"):
        load_rows(DataSettings(bounds=((0.0, 1.0),), classes=2, shape=(3, 5)), X, y)
    for shape in ("28", [28], 28, "axb"):
        with pytest.raises(InvalidInput, match="shape"):
            read_settings(job(data={"shape": shape}), given_data=True)
