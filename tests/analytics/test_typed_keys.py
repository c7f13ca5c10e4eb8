"""Keys and conditions are read by the type of their column, or refused before they are charged."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

import pyarrow as pa

import expost
from expost import Ledger, PureDP
from expost.errors import InvalidInput
from expost.tables.sources import as_table
from tests.analytics.tables import EXACT

DAY = datetime.datetime(2024, 2, 1)
NOON = DAY.replace(hour=12, microsecond=500_000)
CLOCK = datetime.time(12, 30)
COLUMNS: dict[str, Any] = {
    "whole": pa.array([1, 1, 2**53 + 1, None], pa.int64()),
    "gap": pa.array([1.0, 1.0, 2.5, None], pa.float64()),
    "single": pa.array([1.0, 1.0, 2.5, None], pa.float32()),
    "truth": pa.array([True, True, False, None], pa.bool_()),
    "day": pa.array([DAY.date()] * 2 + [datetime.date(1, 1, 1), None], pa.date32()),
    "moment": pa.array([DAY, DAY, NOON, None], pa.timestamp("us")),
    "nanoseconds": pa.array([DAY, DAY, NOON, None], pa.timestamp("ns")),
    "zone": pa.array([DAY, DAY, NOON, None], pa.timestamp("us", "Europe/Zurich")),
    "clock": pa.array([CLOCK, CLOCK, datetime.time(1, 2, 3, 450), None], pa.time64("us")),
    "money": pa.array([Decimal("1.50")] * 2 + [Decimal("-2.05"), None], pa.decimal128(9, 2)),
    "text": pa.array(["1", "1", "True", None], pa.string()),
}
TABLE = pa.table({"u": list(range(4)), **COLUMNS})
FIRST: dict[str, tuple[Any, ...]] = {
    "whole": (1, "1", 1.0, "1.0", np.int64(1), Decimal("1"), " 1", "1e0"),
    "gap": (1, "1", "1.0", np.float32(1), Decimal("1.00")),
    "single": (1, "1.0", 1.0),
    "truth": (True, "True", "true", "TRUE", np.True_, "yes", 1, "1"),
    "day": (DAY.date(), DAY, "2024-02-01", "2024-02-01 00:00:00", np.datetime64("2024-02-01")),
    "moment": (DAY, DAY.date(), "2024-02-01", "2024-02-01T00:00", np.datetime64(DAY)),
    "nanoseconds": (DAY, DAY.date(), "2024-02-01", "2024-02-01 00:00:00.000"),
    "zone": (DAY.replace(tzinfo=datetime.UTC), "2024-02-01T01:00+01:00", "2024-02-01 00:00:00+00"),
    "clock": (CLOCK, "12:30", "12:30:00.000"),
    "money": (Decimal("1.5"), 1.5, "1.5", "1.500"),
    "text": (1, "1"),
}
SECOND: dict[str, tuple[Any, ...]] = {
    "whole": (2**53 + 1, str(2**53 + 1)),
    "gap": (2.5, "2.50"),
    "single": ("2.5",),
    "truth": (False, "no", 0),
    "day": ("0001-01-01",),
    "moment": (NOON, "2024-02-01 12:00:00.500"),
    "nanoseconds": (NOON, "2024-02-01 12:00:00.5"),
    "zone": ("2024-02-01 13:00:00.5+01:00", "2024-02-01 12:00:00.5"),
    "clock": ("01:02:03.000450",),
    "money": ("-2.05",),
    "text": ("True",),
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "whole": ("one", 1.5, True, None, "nan", "1e999999999", 2**70),
    "gap": ("x", float("nan"), float("inf"), True),
    "single": ("x",),
    "truth": (2, "maybe", None),
    "day": ("yesterday", NOON, 20240132),
    "moment": ("monday", "2024-02-30", "2024-02-01 00:00:00.000000001"),
    "nanoseconds": ("2024-02-01 00:00:00.0000000011",),
    "zone": ("Zurich",),
    "clock": ("25:00", "noon"),
    "money": ("1.505", "x"),
}


def asked(data: Any = TABLE, **options: Any) -> Any:
    return expost.count(data, user="u", epsilon=1e7, **EXACT, **options)


def counts(column: str, keys: Any, data: Any = TABLE) -> list[int]:
    found = asked(data, by=column, keys=keys).answers
    return [round(answer.estimate) for answer in found]


@pytest.mark.parametrize("column", COLUMNS)
def test_keys_are_read_by_the_type_of_the_column(column):
    for key in FIRST[column]:
        assert counts(column, [key]) == [2], key
    for key in SECOND[column]:
        assert counts(column, [key]) == [1], key
    both = asked(by=column, keys=[FIRST[column][0], SECOND[column][0]])
    assert sorted(round(answer.estimate) for answer in both.answers) == [1, 2]


@pytest.mark.parametrize("column", REFUSED)
def test_keys_that_a_column_cannot_have_are_not_charged(tmp_path, column):
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    for key in REFUSED[column]:
        with pytest.raises(InvalidInput, match="keys") as refused:
            asked(by=column, keys=[key], ledger=ledger)
        assert repr(column) in str(refused.value)
    if column == "whole":
        with pytest.raises(InvalidInput, match="name each group once"):
            asked(by=column, keys=[1, "1.0"], ledger=ledger)
    assert len(list(ledger.entries())) == 1  # that of its creation


def where(*conditions: str, data: Any = TABLE) -> int:
    (answer,) = asked(data, where=conditions).answers
    return round(answer.estimate)


@pytest.mark.parametrize("column", COLUMNS)
def test_conditions_are_read_by_the_type_of_the_column(column):
    keys = [key for key in FIRST[column] if isinstance(key, str)] or [str(FIRST[column][0])]
    day = column in ("moment", "nanoseconds")
    for key in keys:
        whole = 3 if day and len(key) == 10 else 2  # a day is the whole day
        if column in ("moment", "nanoseconds", "zone") or not key.startswith(" "):
            assert where(f"{column}={key}") == whole, key
            assert where(f"{column}='{key}'") == whole, key
            assert where(f"{column}!={key}") == 3 - whole, key


def test_days_and_moments():
    assert where("moment>=2024-02-01") == 3
    assert where("moment>2024-02-01") == 0
    assert where("moment<=2024-02-01") == 3
    assert where("moment<2024-02-01") == 0
    assert where("moment<2024-02-01 00:00:01") == 2
    assert where("zone=2024-02-01") == 3
    assert where("zone>2024-02-01 01:00:00+01:00") == 1
    assert where("day>0001-01-01") == 2
    assert where("clock<12:00") == 1
    assert where(f"whole>{2**53}") == 1
    assert where(f"whole={2**53}") == 0  # exact, although a float cannot tell them apart
    assert where("whole<1.5") == 2
    assert where("text=true") == 1  # as pandas writes it, or JSON


@pytest.mark.parametrize(
    "condition",
    [
        "whole=one",
        "truth=maybe",
        "day=yesterday",
        "day>2024-02-01 12:00",
        "moment=tomorrow",
        "clock=25:00",
        "money=much",
        "gap=nan",
        "text=1 or text=True",
        "text=1 OR (whole=1)",
        "text=1 and whole = 1",
        "text=1,whole=1",
        "text=a, b or text=c",
        "text=1 && whole>=1",
        'text=1 || "whole"=1',
    ],
)
def test_conditions_that_match_nothing_are_not_charged(tmp_path, condition):
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(100))
    with pytest.raises(InvalidInput, match="where"):
        asked(where=[condition], ledger=ledger)
    assert len(list(ledger.entries())) == 1


def test_texts_with_words_of_conditions():
    """Other texts than a second condition are texts, and so is everything in quotes."""
    texts = ["salt and pepper", "a or x=1", "text=1 or text=2", "url?a=1&b=2", "'quoted'"]
    data = pa.table({"u": range(5), "text": texts})
    for text in texts[:2] + texts[3:4]:
        assert where(f"text={text}", data=data) == 1
    for text in texts:
        assert where(f'text="{text}"', data=data) == 1


def test_frames_and_records():
    """A gap makes floats of whole numbers in pandas; the keys stay what they are."""
    pandas = pytest.importorskip("pandas")
    column = [2, 2, 3, None]
    day = pandas.to_datetime(["2024-02-01", "2024-02-01", "2024-02-02", None])
    frame = pandas.DataFrame({"u": range(4), "g": column, "day": day})
    kinds = (frame["g"], frame["g"].astype("Int64"), pandas.Series(column, dtype=object))
    for cells in (*kinds, pandas.Series(column, dtype="Int64").astype("category")):
        assert counts("g", [2, 3], frame.assign(g=cells)) == [2, 1], cells.dtype
    assert counts("day", [DAY.date()], frame) == [2]
    assert where("day=2024-02-01", data=frame) == 2
    records = [{"u": index, "g": cell} for index, cell in enumerate([True, True, False, None])]
    assert counts("g", [True, False], records) == [2, 1]
    assert where("g=True", data=records) == 2
    assert counts("g", [True], pandas.DataFrame(records)) == [2]


def test_truth_values_of_a_text_file(tmp_path):
    """Which letters a file has is not known: True is refused, and "True" is a text."""
    (tmp_path / "rows.csv").write_text("u,g\n1,True\n2,true\n")
    with pytest.raises(InvalidInput, match="as they are written"):
        counts("g", [True], tmp_path / "rows.csv")
    assert counts("g", ["True"], tmp_path / "rows.csv") == [1]


def test_several_columns():
    keys = [(1.0, "2024-02-01"), (str(2**53 + 1), NOON)]
    found = asked(by=["whole", "moment"], keys=keys).answers
    assert sorted(round(answer.estimate) for answer in found) == [1, 2]


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from([name for name in COLUMNS if name not in ("text", "nanoseconds", "zone")]),
    st.data(),
)
def test_a_key_is_written_as_the_engine_writes_the_cell(column, data):
    """Every value that a column can have is found by the same value as a key."""
    cells = {
        "whole": st.integers(-(2**63), 2**63 - 1),
        "gap": st.floats(allow_nan=False, allow_infinity=False, max_value=1e300, min_value=-1e300),
        "single": st.floats(-(2.0**99), 2.0**99, width=32),
        "truth": st.booleans(),
        "day": st.dates(),
        "moment": st.datetimes(),
        "clock": st.times(),
        "money": st.decimals(-9_999_999, 9_999_999, places=2),
    }
    from expost.analytics.contribution import select
    from expost.tables.typed_columns import key_text

    cell = data.draw(cells[column])
    table = as_table(pa.table({"u": [1], "g": pa.array([cell], COLUMNS[column].type)}))
    (written,) = select(table, ["g"], "u").execute()["expost_group"]
    assert key_text(table, ["g"], cell, objects=False) == written
