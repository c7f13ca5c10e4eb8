"""``expost.describe`` on files, data frames and databases, with hostile neighbours at each."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import ApproxBudget, BudgetRefused, Facts, InvalidInput, Ledger, SimulationRandomness
from expost.certificates.verify import verify_certificate

pd = pytest.importorskip("pandas")
pytest.importorskip("ibis")

SIZE = 4000


def frame(size: int = SIZE) -> Any:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": generator.integers(18, 80, size),
            "colour": np.array(["red", "green", "blue"])[generator.integers(0, 3, size)],
            "member": generator.integers(0, 2, size).astype(bool),
        }
    )


def simulated(data: Any, seed: int = 1, **options: Any) -> Facts:
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, **options}
    return expost.describe(data, **settings, randomness=SimulationRandomness(seed), simulation=True)


def test_facts_are_a_mapping_by_column() -> None:
    facts = simulated(frame())
    assert list(facts) == ["age", "colour", "member"]
    low, high = facts["age"].bounds or (0, 0)
    assert 15 <= low <= 22
    assert 74 <= high <= 85
    assert set(facts["colour"].categories) == {"red", "green", "blue"}
    assert facts["member"].kind == "boolean"
    assert facts.rows == pytest.approx(SIZE, rel=0.1)
    assert sum(column.cost for column in facts.values()) <= 1 + 1e-9
    assert "colour" in facts._repr_html_()


def test_toml_is_what_tune_reads() -> None:
    data = tomllib.loads(simulated(frame()).to_toml(target="colour"))["data"]
    assert data["classes"] == ["blue", "green", "red"]
    assert data["features"] == ["age", "member"]
    assert set(data["feature_bounds"]) == {"age"}
    assert data["booleans"] == ["member"]
    assert set(data["missing"]) == {"age", "member"}


def test_every_door_gives_the_same_facts(tmp_path: Path) -> None:
    table = frame()
    table.to_csv(tmp_path / "rows.csv", index=False)
    table.to_parquet(tmp_path / "rows.parquet")
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        table.assign(member=table["member"].map({True: "true", False: "false"})).to_sql(
            "people", connection, index=False
        )
    import pyarrow as pa

    expected = simulated(table).columns
    for data, more in (
        (tmp_path / "rows.csv", {}),
        (tmp_path / "rows.parquet", {}),
        (pa.Table.from_pandas(table), {}),
        (table.astype(object), {}),
        (tmp_path / "rows.db", {"table": "people"}),
    ):
        assert simulated(data, **more).columns == expected


@pytest.mark.parametrize("odd", ["odd", 1.5, None, 10**30, "2024-01-01", "\ud800", b"\xff"])
def test_a_cell_that_changes_the_type_of_its_column_changes_one_count(odd: Any) -> None:
    """Bounds, kinds and names stay: the cell is one of thousands, whatever its type is."""
    table = frame()
    ages = pd.Series([*table["age"].tolist(), odd], dtype=object)
    table = pd.concat([table, table[:1]], ignore_index=True).assign(age=ages)
    facts, usual = simulated(table), simulated(frame())
    assert {name: facts[name].kind for name in facts} == {name: usual[name].kind for name in usual}
    assert set(facts["colour"].categories) == {"red", "green", "blue"}
    low, high = facts["age"].bounds or (0, 0)
    assert 15 <= low <= 22
    assert 70 <= high <= 90


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_table_with_hardly_any_rows_has_facts(size: int) -> None:
    facts = simulated(frame(size))
    assert list(facts) == ["age", "colour", "member"]
    assert not facts["colour"].categories
    tomllib.loads(facts.to_toml())
    json.dumps(facts.certificate(), allow_nan=False)


def test_the_only_row_of_a_person_and_many_rows_of_another() -> None:
    table = pd.DataFrame({"who": ["a"] * 50_000 + ["b"], "x": ["name"] * 50_000 + ["other"]})
    facts = simulated(table, user="who", epsilon=1.0)
    assert facts["x"].categories == {}  # 50,000 rows of one person are one row
    assert list(facts) == ["x"]
    many = pd.DataFrame({"who": np.arange(9000) // 3, "x": ["name"] * 9000})
    facts = simulated(many, user="who")
    assert set(facts["x"].categories) == {"name"}
    assert facts.rows == pytest.approx(3000, rel=0.1)
    assert facts.max_rows_per_user == 4


def test_the_ledger_is_charged_once_and_refuses_before_rows_are_read(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(0.5, 1e-6))
    facts = expost.describe(frame(), epsilon=0.4, delta=1e-7, ledger=ledger)
    assert facts.ledger is not None
    left = ledger.remaining()
    with pytest.raises(BudgetRefused):
        expost.describe(frame(), epsilon=0.4, delta=1e-7, ledger=ledger)
    assert ledger.remaining() == left
    assert float(left["epsilon"]) == pytest.approx(0.1)


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    facts = expost.describe(frame(), epsilon=0.5)
    document = json.loads(json.dumps(facts.certificate()))
    assert verify_certificate(document) == []
    for change in (
        {"charged": {**document["charged"], "epsilon": 0.1}},
        {"mechanism": {**document["mechanism"], "mu": 1.0}},
        {"mechanism": {**document["mechanism"], "columns": 1}},
    ):
        assert verify_certificate({**document, **change})
    facts.save(tmp_path / "facts.json")
    assert json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))["kind"] == "facts"


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0}, {"epsilon": 1000}, {"delta": 0}, {"delta": 1}, {"columns": ["absent"]},
        {"columns": []}, {"columns": "age"}, {"columns": ["age", "age"]}, {"user": "absent"},
        {"columns": ["age"], "user": "age"}, {"quantiles": (0.5, 0.6)}, {"budget": "b"},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        simulated(frame(10), **wrong)
