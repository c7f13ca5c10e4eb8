"""Schemas: columns by name, total encodings, and one question for all missing facts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.features.columns import Column, TableSchema
from expost.tables.cells import class_numbers, day_numbers, label_text, numbers, truth_values
from expost.tuning.request.defaults import missing_facts
from expost.tuning.request.settings import DataSettings, read_settings
from expost.tuning.rows.job_rows import load_rows
from tests.tuning.jobs import TOML, job

FACTS: dict[str, Any] = {
    "target": "label",
    "classes": ["no", "yes"],
    "feature_bounds": {"age": [0, 100], "income": [0, 1000]},
    "categories": {"city": ["Bern", "Zug", 3]},
    "booleans": ["member"],
    "dates": {"joined": ["2000-01-01", "2000-01-11"]},
    "missing": {"age": 40, "income": "indicator", "member": False, "joined": "indicator"},
}
KINDS = ("text", "toml")
HEADER = "city;age;income;member;joined;label\n"


def facts(**changes: Any) -> DataSettings:
    """The settings of a job on a table with columns of every kind."""
    told = {**FACTS, **changes}
    table = {"feature_bounds": None, "classes": None, **told}
    return read_settings(job(data=table), given_data=True).data


def anything() -> st.SearchStrategy[Any]:
    cells = st.none() | st.text() | st.binary() | st.booleans() | st.integers()
    return cells | st.floats() | st.dates() | st.datetimes() | st.complex_numbers()


def column(*cells: Any) -> Any:
    made = np.empty(len(cells), dtype=object)
    made[:] = cells
    return made


# Cells


@given(st.lists(anything(), min_size=1, max_size=5))
def test_no_cell_makes_an_encoding_fail(cells: list[Any]) -> None:
    """Each cell becomes what it becomes alone."""
    made = [
        Column(low=-1.0, high=2.0),
        Column(low=-1.0, high=2.0, fill=0.5),
        Column(indicator=True),
        Column("boolean"),
        Column("category", categories=("a", 1)),
        Column("date", 1.0, 2.0),
    ]
    for each in made:
        together = each.encode(column(*cells))
        assert together.shape == (len(cells), each.width)
        alone = np.concatenate([each.encode(column(cell)) for cell in cells])
        assert np.array_equal(together, alone, equal_nan=True)
        assert ((together >= 0) & (together <= 1) | np.isnan(together)).all()
    for classes in (3, ("a", 1)):
        found = class_numbers(column(*cells), classes)
        assert (np.isnan(found) | np.isin(found, [0, 1, 2])).all()


def test_what_cells_become() -> None:
    assert numbers(column("1", " 2.5 ", 3, "x", None, "inf", b"4"))[[0, 1, 2, 6]].tolist() == [
        1,
        2.5,
        3,
        4,
    ]
    assert np.isnan(numbers(column("x", None, "inf", "nan", "", [1]))).all()
    assert truth_values(column("True", "no", 1, 0.0, "YES", np.True_, "0")).tolist() == [
        *(1, 0, 1, 0, 1, 1, 0)
    ]
    assert np.isnan(truth_values(column("2", "maybe", None, float("nan")))).all()
    one = day_numbers(np.array(["2001-02-03", "NaT"], dtype="datetime64[s]"))
    assert (
        one[0] == day_numbers(column("2001-02-03"))[0] == day_numbers(column("2001-02-03T05:06"))[0]
    )
    assert np.isnan([one[1], *day_numbers(column("3.2.2001", None, 5))]).all()
    apart = day_numbers(column(np.datetime64("2001-02-03", "ns"), np.datetime64("NaT"), "x"))
    assert apart[0] == one[0]
    assert np.isnan(apart[1:]).all()


@pytest.mark.parametrize(
    "same", [(1, 1.0, "1", "1.0", np.int8(1)), (-1, "-1", "-1.0"), ("a", b"a")]
)
def test_equal_labels_of_different_types(same: tuple[Any, ...]) -> None:
    assert len({label_text(each) for each in same}) == 1
    for each in same:
        assert class_numbers(column(each), (7, same[0])).tolist() == [1]
        assert class_numbers(np.array([each]), (7, same[0])).tolist() == [1]


def test_one_bad_cell_does_not_change_the_type_of_the_others() -> None:
    """Catches 1 and 1.0 as different categories: a missing cell makes floats of whole numbers."""
    whole = Column("category", categories=("1", "2"))
    assert whole.encode(np.array([1, 2])).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert whole.encode(np.array([1, 2.0, np.nan]))[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


# Tables


def test_columns_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        HEADER
        + "Bern;50;500;yes;2000-01-06;yes\n"
        + "Basel;;;;;no\n"
        + "Zug;1;1;no;soon;maybe\n"  # the public split holds out this place of five
        + "3.0;999;-4;0;1999-01-01;no\n"
        + ";40;1000;TRUE;2030-01-01;yes\n",
        encoding="utf-8",
    )
    told = read_settings(
        job(data={"feature_bounds": None, **FACTS, "path": str(path), "holdout": 0.2})
    ).data
    rows = load_rows(told)
    assert rows.schema.names == ("city", "age", "income", "member", "joined")
    assert rows.schema.width == rows.X.shape[1] == 4 + 1 + 2 + 1 + 2
    assert rows.X.tolist() == [
        [1, 0, 0, 0, 0.5, 0.5, 0, 1, 0.5, 0],
        [0, 0, 0, 1, 0.4, 0.5, 1, 0, 0.5, 1],
        [0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0.4, 1, 0, 1, 1, 0],
    ]
    assert rows.y.tolist() == [1, 0, 0, 1]
    assert np.isnan(rows.score_y).all()  # a label outside the classes
    assert not rows.score_X.any()


def test_frames_of_all_libraries_encode_alike() -> None:
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    import datetime

    columns = {
        "member": [True, False, None, True],
        "city": ["Bern", None, "Genf", "Zug"],
        "extra": [1, 2, 3, 4],
        "joined": [datetime.date(2000, 1, 6), None, datetime.date(2001, 1, 1), None],
        "age": [50, None, 999, 1],
        "income": [1.5, None, float("nan"), 2.0],
        "label": ["yes", "no", "no", "perhaps"],
    }
    told = facts(features=["city", "age", "income", "member", "joined"], holdout=0.25)
    arrow = pa.table(columns)
    frames = [
        pd.DataFrame(columns),
        pd.DataFrame(columns).convert_dtypes(),
        pd.DataFrame(columns).assign(joined=lambda each: pd.to_datetime(each["joined"])),
        pl.DataFrame(columns),
        arrow,
        arrow.set_column(1, "city", arrow.column("city").dictionary_encode()),
    ]
    wanted = load_rows(told, frames[0])
    assert wanted.X.shape == (3, 10)
    for frame in frames[1:]:
        found = load_rows(told, frame)
        assert np.array_equal(found.X, wanted.X)
        assert np.array_equal(found.y, wanted.y, equal_nan=True)
        assert np.array_equal(found.score_X, wanted.score_X)


def test_types_that_no_column_may_have() -> None:
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    told = DataSettings(target="label", bounds=((0, 1),), classes=2)
    for frame in (
        pd.DataFrame({"a": [1j, 2j], "label": [0, 1]}),
        pd.DataFrame({"a": pd.to_timedelta([1, 2]), "label": [0, 1]}),
        pd.DataFrame({"a": pd.to_datetime(["2000-01-01"] * 2), "label": [0, 1]}),
        pl.DataFrame({"a": [[1], [2]], "label": [0, 1]}),
        pa.table({"a": [{"b": 1}, {"b": 2}], "label": [0, 1]}),
    ):
        with pytest.raises(InvalidInput, match="column 'a'"):
            load_rows(told, frame)
    with pytest.raises(InvalidInput, match="collect"):
        load_rows(told, pl.DataFrame({"a": [1], "label": [0]}).lazy())


def test_two_pairs_are_pairs_and_not_lows_and_highs() -> None:
    told = DataSettings(bounds=((0, 10), (5, 20)), classes=2, holdout=0.5)
    rows = load_rows(told, [[5.0, 12.5], [10.0, 20.0]], [0, 1])
    assert [*rows.X.tolist(), *rows.score_X.tolist()] == [[0.5, 0.5], [1.0, 1.0]]
    for wrong in ([[0, 5], [20, 10]], [[0, 5, 1], [10, 20, 3]], {"a": [3, 1]}, {"a": 5}):
        with pytest.raises(InvalidInput, match="feature_bounds"):
            read_settings(job(data={"feature_bounds": wrong}), given_data=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"booleans": ["city"]}, "also in categories"),
        ({"booleans": ["label"]}, "is the target"),
        ({"booleans": "member"}, "list of column names"),
        ({"categories": {"city": []}}, "different public categories"),
        ({"categories": {"city": ["1", 1.0]}}, "different public categories"),
        ({"dates": {"joined": ["2000-01-01"]}}, "first and the last day"),
        ({"dates": {"joined": ["2001-01-01", "2000-01-01"]}}, "first and the last day"),
        ({"missing": {"city": "Bern"}}, "leave it out"),
        ({"missing": {"age": "much"}}, "public number"),
        ({"missing": {"joined": "soon"}}, "ISO date"),
        ({"missing": {"member": 2}}, "true, false"),
        ({"feature_bounds": [[0, 1], [0, 2]]}, "by column name"),
        ({"delimiter": ";;"}, "one character"),
        ({"classes": ["1", 1]}, "list of labels"),
        ({"integers": True}, "whole numbers have bounds only"),
        ({"rows": 0}, "rows"),
    ],
)
def test_facts_that_do_not_fit_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        facts(**changes)


def test_facts_by_name_need_names() -> None:
    with pytest.raises(InvalidInput, match="no column names"):
        load_rows(facts(), np.zeros((10, 5)), [0] * 10)


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    """The file and the settings of docs/tables.md, as they are printed there."""
    guide = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
    text, toml = (guide.partition(f"```{kind}\n")[2].partition("```")[0] for kind in KINDS)
    (tmp_path / "members.csv").write_text(text, encoding="utf-8")
    _, _, rest = TOML.partition("[model]")
    (tmp_path / "job.toml").write_text(toml + "[model]" + rest, encoding="utf-8")
    rows = load_rows(read_settings(tmp_path / "job.toml").data)
    assert rows.schema.width == rows.X.shape[1] == 3 + 1 + 2 + 1 + 2
    assert (rows.places, rows.score_places) == (4, 1)
    assert not np.isnan([*rows.y, *rows.score_y]).any()


# What is missing is asked for once


def test_one_question_for_all_missing_facts(tmp_path: Path) -> None:
    """Catches a question that quotes a cell, or that leaves a column out."""
    path = tmp_path / "rows.csv"
    text = HEADER.replace("city", "home city")
    path.write_text(text + "secret;77;500;yes;2000-01-06;yes\n", encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        load_rows(DataSettings(path=path, target="label"))
    said = str(caught.value)
    assert not any(each in said for each in ("secret", "77", "2000", "yes"))
    filled = said.partition("[data]")[2].replace("LOW, HIGH", "0, 1").replace("LABEL", '"no"')
    asked = tomllib.loads(filled)
    assert set(asked["feature_bounds"]) == {"home city", "age", "income", "member", "joined"}
    assert "classes" in asked
    with pytest.raises(InvalidInput, match=r'target = "COLUMN"'):
        load_rows(DataSettings(path=path))
    with pytest.raises(InvalidInput, match="target_bounds"):
        load_rows(DataSettings(path=path, target="label", regression=True))
    assert missing_facts(DataSettings(), None).as_toml() == (
        "[data]\nclasses = [LABEL, LABEL]  # every label that may occur\n"
        "feature_bounds = [LOW, HIGH]  # bounds of all features"
    )


def test_the_question_for_a_frame_is_python_and_sorted_by_type() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "age": [77],
            "city": ["secret"],
            "member": [True],
            "joined": pd.to_datetime(["2000-01-06"]),
            "label": ["yes"],
        }
    )
    with pytest.raises(InvalidInput) as caught:
        load_rows(DataSettings(target="label"), frame)
    lines = str(caught.value).splitlines()[1:]
    assert lines[:5] == [
        "classes=[LABEL, LABEL],  # every label that may occur",
        "feature_bounds={'age': [LOW, HIGH]},",
        "categories={'city': [VALUE, VALUE]},",
        'booleans=["member"],',
        'dates={\'joined\': ["FIRST", "LAST"]},',
    ]
    told = DataSettings(target="label", classes=2, bounds={"age": (0, 1)}, booleans=("member",))
    with pytest.raises(InvalidInput) as caught:
        load_rows(told, frame)
    assert "age" not in str(caught.value)
    assert "classes" not in str(caught.value)
    assert "missing={'COLUMN': 40}" in str(caught.value)


# Records


@pytest.mark.parametrize(
    "schema",
    [
        TableSchema.plain(((0.0, 1.0),), 784, 10),
        TableSchema.plain(((0.0, 1.0), (2.0, 5.0)), 2, None, (0.0, 2.0)),
        TableSchema.plain(((0.0, 9.0),), 3, ("a", -1, 2.5, True), integers=True),
        TableSchema(
            (
                Column("category", categories=("a", 1), name="c"),
                Column("date", 3.0, 5.0, indicator=True, name="d"),
                Column("number", -1.0, 1.0, fill=0.5, name="n"),
            ),
            ("no", "yes"),
        ),
    ],
)
def test_a_schema_survives_json(schema: TableSchema) -> None:
    text = json.dumps(schema.as_dict())
    assert TableSchema.from_dict(json.loads(text)) == schema
    assert len(text) < 500
