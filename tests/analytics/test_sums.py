"""Sums, means, rows, conditions and totals: right numbers, and rows that never raise."""

from __future__ import annotations

import math
from fractions import Fraction

import pyarrow as pa
import pytest

import expost
from expost import PureDP
from expost.analytics.contribution import Measure
from expost.analytics.count_plan import plan_count
from expost.analytics.request import completed, measure_of
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput

TABLE = pa.table(
    {
        "u": [place // 2 for place in range(4000)],
        "g": ["a", "b"] * 2000,
        "v": [float(place % 10) for place in range(4000)],
    }
)
COMMON = {"user": "u", "epsilon": 1e4, "confidence": 1 - 1e-9}


def test_sums():
    """Catches a grid that is applied twice, values of the wrong group, and bounds not applied."""
    found = expost.sum(TABLE, "v", bounds=(0, 10), by="g", keys=["a", "b"], plus_minus=3, **COMMON)
    assert {a.group: a.estimate for a in found.answers} == {
        "a": pytest.approx(8000, abs=3),
        "b": pytest.approx(10000, abs=3),
    }
    clipped = expost.sum(TABLE, "v", bounds=(0, 1), plus_minus=3, max_rows_per_user=2, **COMMON)
    assert clipped.answers[0].estimate == pytest.approx(3600, abs=3)
    negative = expost.sum(TABLE, "v", bounds=(-5, -1), plus_minus=9, max_rows_per_user=2, **COMMON)
    assert negative.answers[0].estimate == pytest.approx(-4000, abs=9)


def test_means():
    found = expost.mean(
        TABLE, "v", bounds=(0, 10), by="g", keys=["a", "b"], plus_minus=0.02, **COMMON
    )
    assert {a.group: a.estimate for a in found.answers} == {
        "a": pytest.approx(4, abs=0.02),
        "b": pytest.approx(5, abs=0.02),
    }
    assert found.query["kind"] == "mean"


def test_rows_and_their_cap():
    """Two rows per user in the total: catches users counted, and a cap that is not applied."""
    for cap, expected in ((1, 2000), (2, 4000), (None, 4000)):
        found = expost.count(TABLE, count_rows=True, max_rows_per_user=cap, plus_minus=2, **COMMON)
        assert found.answers[0].estimate == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["g=a"], 2000),
        (["g!=a"], 2000),
        (["v>=5"], 1200),
        (["v<2", "g=b"], 400),
        (["v=3"], 400),
        (["g=nobody"], 0),
    ],
)
def test_conditions(where, expected):
    found = expost.count(TABLE, where=where, plus_minus=0.4, **COMMON)
    assert round(found.answers[0].estimate) == expected


def test_several_columns():
    keys = [("a", "0.0"), ("b", "1.0"), ("a", "1.0")]
    found = expost.count(TABLE, by=["g", "v"], keys=keys, plus_minus=0.4, **COMMON)
    counts = {answer.group: round(answer.estimate) for answer in found.answers}
    assert counts == {("a", "0"): 400, ("b", "1"): 400, ("a", "1"): 0}  # as the engines write them
    assert found.as_dict()["answers"][0]["group"] == list(found.answers[0].group)


def test_odd_values_contribute_nothing():
    """NaN, NULL and infinities never raise; catches a sum that becomes NaN."""
    values = [1.0, math.nan, None, math.inf, -math.inf, 3.0, 1e300]
    table = pa.table({"u": list(range(7)), "v": values})
    for column in (table, table.set_column(1, "v", table["v"].cast(pa.string()))):
        found = expost.sum(column, "v", bounds=(0, 2), plus_minus=0.4, **COMMON)
        assert found.answers[0].estimate == pytest.approx(5, abs=0.4)


def test_words_are_missing_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("u;v\n1;1\n2;two\n3;\n4;1\n")
    found = expost.sum(path, "v", bounds=(0, 2), plus_minus=0.4, **COMMON)
    assert found.answers[0].estimate == pytest.approx(2, abs=0.4)


def test_bad_types_are_refused_before_the_reservation(tmp_path):
    ledger = Ledger.create(tmp_path / "l.db", PureDP(1e5))
    table = pa.table({"u": [1], "v": [[1, 2]], "d": pa.array([0], pa.date32())})
    for column in ("v", "d"):
        with pytest.raises(InvalidInput):
            expost.sum(table, column, bounds=(0, 1), ledger=ledger, **COMMON)
    with pytest.raises(InvalidInput, match="bounds"):
        expost.sum(table, "d", bounds=(1, 0), ledger=ledger, **COMMON)
    assert [entry.action for entry in ledger.entries()] == ["create"]


def test_the_sensitivity_is_stated_in_grid_units():
    def measure(kind, bounds, rows):
        asked = {"kind": kind, "column": "v", "bounds": bounds, "epsilon": 1}
        return measure_of(completed(asked | {"max_rows_per_user": rows}))

    assert measure("sum", (-3, 2), 4).sensitivity == 12
    assert measure("mean", (10, 30), 2).sensitivity == 40
    fine = measure("sum", (0, 0.5), 1)
    assert fine.grid < Fraction(1, 1000)
    assert fine.sensitivity * fine.grid == Fraction(1, 2)
    assert Measure("rows", rows=7).sensitivity == 7


def test_certificates_round_trip(tmp_path):
    """Saved, it has every key of the contract and is accepted by the check."""
    import json

    from expost.certificates.document import read_certificate

    ledger = Ledger.create(tmp_path / "l.db", PureDP(10))
    found = expost.count(TABLE, by="g", keys=["a", "b"], user="u", epsilon=2, ledger=ledger)
    found.save(tmp_path / "c.json")
    record = read_certificate(json.loads((tmp_path / "c.json").read_text()))
    assert (record["schema"], record["kind"]) == (2, "count")
    assert record["ledger"]["reservation"]
    assert record["spent"]["epsilon"] == found.spent


def test_plans_read_no_data():
    """A larger group needs less; what every group can have answers all of them."""
    planned = plan_count(groups=1000, epsilon=1, max_groups_per_user=3)
    costs = [each.cost for each in planned.sizes]
    assert costs == sorted(costs, reverse=True)
    assert planned.sizes[0].groups is None
    private = plan_count(epsilon=2, delta=1e-6, private_keys=True, max_groups_per_user=10)
    assert 50 < private.threshold < 200
    assert plan_count(groups=300, epsilon=1).sizes[0].groups < 10
