"""``expost.quantile`` from outside: answers, caps, settings, ledger, certificate, engines, rows."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

import duckdb
import pyarrow as pa
import pyarrow.parquet as parquet

import expost
from expost import BudgetRefused, InvalidInput, Ledger, PureBudget, SimulationRandomness, ZCDPBudget
from expost.analytics import quantiles
from expost.analytics.contribution import Measure, select
from expost.analytics.quantile_request import (
    check_quantile,
    count_cells,
    kept_rows,
    plan_quantile,
    run_cells,
    run_users,
)
from expost.tables.sources import as_table

KEYS = ["north", "south", "empty"]


def table(rows: int = 3000, seed: int = 1) -> pa.Table:
    chosen = np.random.default_rng(seed)
    return pa.table(
        {
            "u": np.arange(rows),
            "g": np.array(KEYS)[chosen.integers(0, 2, rows)],
            "v": np.round(chosen.lognormal(4, 1, rows), 2),
        }
    )


def ask(data: Any, seed: int = 1, **more: Any) -> Any:
    options: dict[str, Any] = {
        "at": (0.25, 0.5, 0.75),
        "by": "g",
        "user": "u",
        "keys": KEYS,
        "bounds": (0, 1000),
        "within_rank": 0.05,
        "epsilon": 4.0,
        "max_groups_per_user": 1,
        "randomness": SimulationRandomness(seed),
        "simulation": True,
        **more,
    }
    return expost.quantile(data, "v", **options)


def test_answers_are_near_and_cost_less_than_epsilon() -> None:
    data = table()
    result = ask(data)
    values = {key: np.sort(data["v"].to_numpy()[data["g"].to_numpy() == key]) for key in KEYS}
    assert len(result.answers) >= 4
    for answer in result.answers:
        column = values[answer.group]
        rank = np.searchsorted(column, answer.estimate) / len(column)
        assert abs(rank - answer.at) < 0.1
        assert answer.rank_low >= answer.at - 0.0501
        assert answer.rank_high <= answer.at + 0.0501
        assert answer.low <= answer.high
    assert 0 < result.spent < 3
    assert {answer.group for answer in result.unanswered} >= {"empty"}
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["unit"] == "epsilon"


def test_one_total_without_groups_and_a_median_by_default() -> None:
    result = ask(table(), at=None, by=None, keys=None)
    (answer,) = (*result.answers, *result.unanswered)
    assert (answer.group, answer.at) == ("all", 0.5)


def test_bins_alone_and_with_quantiles() -> None:
    result = ask(table(), at=None, bins=[0, 30, 100, 1000])
    assert not result.answers
    assert {(share.start, share.end) for share in result.histogram} == {
        (0.0, 30.0),
        (30.0, 100.0),
        (100.0, 1000.0),
    }
    assert len(ask(table(), at=0.5, bins=4).histogram) >= 4


def test_several_columns_and_gaussian_noise() -> None:
    data = table().append_column("h", pa.array(["x"] * 3000))
    keys = [(key, "x") for key in KEYS]
    result = ask(data, by=["g", "h"], keys=keys, delta=1e-6)
    assert result.unit == "rho"
    assert all(answer.group[1] == "x" for answer in result.answers)
    assert result.answers


def test_groups_that_are_found_privately() -> None:
    result = ask(table(), keys=None, private_keys=True, delta=1e-6, max_groups_per_user=2)
    assert {answer.group for answer in result.answers} <= {"north", "south"}
    assert result.keys is not None
    assert result.answers


def test_caps_chosen_privately_are_paid_for() -> None:
    result = ask(table(), max_groups_per_user="auto", max_rows_per_user="auto")
    assert result.public["shares"]["max_rows_per_user"] == pytest.approx(0.12)
    assert result.public["shares"]["max_groups_per_user"] == pytest.approx(0.12)
    assert result.max_rows_per_user == 1


def test_no_goal_spends_all() -> None:
    result = ask(table(), at=0.5, within_rank=0, epsilon=0.5)
    assert result.spent == pytest.approx(0.5, abs=1e-9)
    assert len(result.unanswered) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"at": 0},
        {"at": (0.5, 0.5)},
        {"at": ()},
        {"at": 1.5},
        {"at": math.nan},
        {"within_rank": -0.1},
        {"within_rank": 0.7},
        {"bins": 1},
        {"bins": (0, 0.001, 0.002, 1000)},
        {"bins": (0, 2000, 3000)},
        {"bins": 5, "within_rank": 0},
        {"bounds": None},
        {"bounds": (5, 1)},
        {"grid": 1e-9},
        {"epsilon": 0},
        {"confidence": 0.99999},
        {"keys": None},
        {"user": None},
        {"by": "nobody"},
        {"max_rows_per_user": 0},
    ],
)
def test_settings_that_are_refused_cost_nothing(changed: Any, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(10))
    options = {"randomness": None, "simulation": False, "ledger": ledger, **changed}
    with pytest.raises(InvalidInput):
        ask(table(100), **options)
    assert [entry.action for entry in ledger.entries()] == ["create"]


def test_a_mapping_of_counts_and_no_column_are_refused() -> None:
    with pytest.raises(InvalidInput, match="table of rows"):
        expost.quantile({"a": 3}, "v", epsilon=1)
    with pytest.raises(InvalidInput, match="column"):
        expost.quantile(table(10), epsilon=1, user="u", bounds=(0, 1))


@pytest.mark.parametrize(("budget", "delta"), [(PureBudget(3), None), (ZCDPBudget(1.0), 1e-6)])
def test_the_ledger_is_charged_what_was_drawn(budget: Any, delta: Any, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", budget)
    options = {"randomness": None, "simulation": False, "ledger": ledger, "epsilon": 2.0}
    result = ask(table(), delta=delta, **options)
    document = json.loads(json.dumps(result.certificate()))
    assert expost.verify_certificate(document, ledger=ledger) == []
    with pytest.raises(BudgetRefused):
        ask(table(), delta=delta, **{**options, "epsilon": 900.0})


def test_an_error_while_running_is_charged(tmp_path: Path, monkeypatch: Any) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", PureBudget(10))
    options = {"randomness": None, "simulation": False, "ledger": ledger}

    def fail(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(quantiles.QuantileRun, "_look", fail)
    with pytest.raises(KeyboardInterrupt):
        ask(table(), **options)
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]
    assert 6 < float(ledger.remaining()) < 10


def test_a_changed_certificate_is_noticed() -> None:
    document = json.loads(json.dumps(ask(table()).certificate()))
    assert expost.verify_certificate(document) == []
    words = dict(expost.certificate_words(document))
    assert "quantiles at 0.25, 0.5, 0.75 of v" in words["question"][0]
    assert "within 0.05" in words["error"][0]
    assert all("cannot be read" not in line for lines in words.values() for line in lines)
    for change in (
        lambda d: d["spent"].update(epsilon=d["spent"]["epsilon"] / 2),
        lambda d: d["public"].update(group_costs=[0.01] * 3),
        lambda d: d["answers"][0].update(spent=0.001),
        lambda d: d.update(index=3),
        lambda d: d["guarantee"].update(epsilon=0.1),
        lambda d: d.pop("histogram"),
        lambda d: d["answers"][0].pop("at"),
    ):
        damaged = copy.deepcopy(document)
        change(damaged)
        assert expost.verify_certificate(damaged)


def cells_of(data: Any, most: int | None, rows: int, salt: str = "s") -> dict[str, Any]:
    measure = Measure("mean", "v", rows, low=0, high=100)
    chosen = select(as_table(data, ["g", "u", "v"]), ["g"], "u", measure)
    kept = kept_rows(chosen, measure, None, most, salt)
    cells = run_cells(count_cells(kept))
    users = run_users(kept)
    assert set(users) == set(cells)
    return {
        name: dict(zip(part.cells.tolist(), part.counts.tolist(), strict=True))
        for name, part in sorted(cells.items())
    }


MANY = {
    "u": ["p"] * 12 + ["q"] * 3 + [None],
    "g": [*"aaaabbbbcccc", "a", "b", "c", "a"],
    "v": [float(k) for k in range(12)] + [50.0, 60.0, 70.0] + [99.0],
}


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_one_person_changes_so_many_groups_by_so_many_rows(most: int | None, rows: int) -> None:
    everyone = cells_of(pa.table(MANY), most, rows)
    without = {name: values[12:] for name, values in MANY.items()}
    others = cells_of(pa.table(without), most, rows)
    gained = {
        name: sum(cells.values()) - sum(others.get(name, {}).values())
        for name, cells in everyone.items()
    }
    assert all(0 <= more <= min(rows, 4) for more in gained.values())
    assert sum(more > 0 for more in gained.values()) == min(3, most or 3)
    for name, cells in others.items():  # nobody else's rows change
        assert all(everyone[name].get(cell, 0) >= count for cell, count in cells.items())


def test_engines_agree(tmp_path: Path) -> None:
    """A frame, a Parquet file and a DuckDB table keep the same rows for the same salt."""
    data = table(400).append_column("w", pa.array(["x"] * 400))
    people = pa.array([f"p{k % 90}" for k in range(400)])
    data = data.set_column(0, "u", people)
    parquet.write_table(data, tmp_path / "t.parquet")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.register("frame", data)
        connection.execute("create table t as select * from frame")
    results = [
        ask(source, max_rows_per_user=2, max_groups_per_user=1, **more)
        for source, more in (
            (data, {}),
            (data.to_pandas(), {}),
            (tmp_path / "t.parquet", {}),
            (f"duckdb://{tmp_path}/t.duckdb", {"table": "t"}),
        )
    ]
    assert all(result.answers == results[0].answers for result in results)
    assert all(result.unanswered == results[0].unanswered for result in results)


HOSTILE = [None, math.nan, math.inf, -math.inf, 1e308, -5.0]


def shape(result: Any) -> Any:
    """All that leaves but noisy numbers."""
    told = result.as_dict()
    answers = [*told["answers"], *told["unanswered"]]
    names = sorted((answer["group"], answer["at"]) for answer in answers)
    kept = ("query", "guarantee", "max_groups_per_user", "max_rows_per_user", "keys", "unit")
    return sorted(told), names, {name: told[name] for name in kept}


@cache
def without_the_row() -> Any:
    return shape(ask(table(200)))


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("person", [7, None])
@pytest.mark.parametrize("group", ["north", "empty", "unlisted", None])
def test_one_row_changes_nothing_but_noisy_numbers(value: Any, person: Any, group: Any) -> None:
    base = table(200)
    row = pa.table({"u": [person], "g": [group], "v": [value]}, schema=base.schema)
    assert shape(ask(pa.concat_tables([base, row]))) == without_the_row()


def test_text_in_the_column_counts_nowhere() -> None:
    data = pa.table({"u": [str(k) for k in range(60)], "v": ["12"] * 30 + ["twelve"] * 30})
    result = ask(data, by=None, keys=None, at=0.5, epsilon=50.0, within_rank=0.2)
    (answer,) = (*result.answers, *result.unanswered)
    assert abs(answer.estimate - 12) < 60


def test_the_default_grid_has_short_decimals() -> None:
    checked = check_quantile(
        table(10), {"column": "v", "bounds": (0, 10_000), "epsilon": 1.0, "user": "u"}
    )
    assert float(checked.base.measure.grid) == 0.2
    assert checked.base.measure.high == 50_000


def test_plans_read_nothing() -> None:
    planned = plan_quantile(column="v", bounds=(0, 1000), epsilon=1.0)
    costs = [size["cost"] for size in planned["sizes"]]
    assert costs == sorted(costs, reverse=True)
    assert planned["total"] == 1
