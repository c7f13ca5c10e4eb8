"""One cell changes nothing about how the other rows are read, at every door that takes tables.

The cells are those of Python lists, where nothing else gives a column its type: huge whole numbers,
floats, gaps, texts of any length, lists, rows of another length.
"""

from __future__ import annotations

import datetime
import math
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs the native extra")
pytest.importorskip("sklearn")

import expost
from expost import SimulationRandomness
from expost.sklearn import DPLogisticRegression, ExPostSearch
from expost.sklearn._rows import check_features, check_labels, check_targets, inside_selection
from expost.tables.sources import as_table
from expost.tuning.request.settings import read_settings
from expost.tuning.rows.job_rows import load_rows
from tests.tuning.jobs import clouds, job

N = 20
FIRST, SECOND = 2**53 + 1, 2**53
"""Labels that floats cannot tell apart; the second one is a float."""
ODD: dict[str, Any] = {
    "a float": float(SECOND),
    "a half": 0.5,
    "a gap": None,
    "NaN": math.nan,
    "infinity": math.inf,
    "a huge number": 10**400,
    "more digits than Python writes": 10**5000,
    "beyond 64 bits": 2**64,
    "a truth value": True,
    "a text": "x",
    "a number as text": str(FIRST),
    "a long text": "x" * 200_000,
    "bytes": b"\xff",
    "a list": [1, 2],
    "a list of one": [1],
    "an array": np.array([1.0]),
    "a mapping": {"a": 1},
    "a complex number": 1j,
    "a decimal": Decimal("sNaN"),
    "a date": datetime.date(2024, 2, 1),
    "half a letter": "\ud800",
    "an object": object(),
}
ROWS: dict[str, Any] = {
    "None": None,
    "a number": 0.5,
    "a text": "row",
    "a long text": "x" * 200_000,
    "no cells": [],
    "too few cells": [0.5],
    "too many cells": [0.5, 0.5, 0.5],
    "a list in a cell": [0.5, [0.5]],
    "lists in both cells": [[0.5], [0.5]],
    "a long text in a cell": ["x" * 200_000, 0.5],
    "a mapping": {0: 0.5, 1: 0.5},
    "an array": np.array([0.5, math.nan]),
    "an array of texts": np.array(["x", "y"]),
}
cells = st.one_of(
    st.sampled_from(list(ODD.values())),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.booleans(),
    st.none(),
    st.dates(),
    st.lists(st.integers(), max_size=3),
)
places = st.integers(0, N - 1)


def table() -> tuple[list[Any], list[Any]]:
    X, y = clouds(N)
    return np.clip(X, 0, 1).tolist(), [(FIRST, SECOND)[label] for label in y]


def told(**more: Any) -> Any:
    facts = {"feature_bounds": [0, 1], "classes": [FIRST, SECOND], **more}
    return read_settings(job(data=facts), given_data=True).data


def encoded(X: Any, y: Any = None, **more: Any) -> tuple[Any, Any]:
    """All rows as numbers, in their order; NaN as −1."""
    found = load_rows(told(**more), X, y)
    numbers = np.column_stack([found.X, found.y]), np.column_stack([found.score_X, found.score_y])
    return tuple(np.where(np.isnan(part), -1.0, part) for part in numbers)  # type: ignore[return-value]


def changed(here: tuple[Any, Any], there: tuple[Any, Any]) -> int:
    return sum(int((a != b).any(axis=1).sum()) for a, b in zip(here, there, strict=True))


WHOLE = encoded(*table())


def test_the_rows_are_usable():
    """Test of the test."""
    assert not any((part == -1).any() for part in WHOLE)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_list(name):
    """A row that cannot be read is an empty place; as before, the job takes the others."""
    X, y = table()
    X[7] = ROWS[name]
    assert changed(encoded(X, y), WHOLE) == 1
    assert changed(encoded(tuple(X), y), WHOLE) == 1


@pytest.mark.parametrize("odd", [[0.5], [0.5, 0.5, 0.5], ["x", "y"], [1, 0]])
def test_rows_that_are_arrays(odd):
    """An array of another type or length as one row."""
    X, y = table()
    rows = [np.array(row) for row in X]
    assert changed(encoded(rows, y), WHOLE) == 0
    assert changed(encoded([*rows[:3], np.array(odd), *rows[4:]], y), WHOLE) == 1


@settings(deadline=None, max_examples=60)
@given(cells, places, st.sampled_from(["X", "y"]))
def test_a_cell_of_a_list(cell, place, part):
    X, y = table()
    if part == "X":
        X[place][0] = cell
    else:
        y[place] = cell
    assert changed(encoded(X, y), WHOLE) <= 1


@settings(deadline=None, max_examples=40)
@given(cells, places, st.sampled_from(["object", "category", "Int64"]))
def test_a_cell_of_a_frame(cell, place, kind):
    """Categories of pandas have whole numbers and a gap; other cells would be other categories."""
    pandas = pytest.importorskip("pandas")
    X, y = table()
    column = [*y[:place], cell if kind == "object" else None, *y[place + 1 :]]
    labels = pandas.Series(
        pandas.Categorical(column, [FIRST, SECOND]) if kind == "category" else column,
        dtype=kind,
    )
    frame = pandas.DataFrame({"a": [row[0] for row in X], "c": labels})
    facts = {"categories": {"c": [FIRST, SECOND]}, "feature_bounds": {"a": [0, 1]}}
    whole = encoded(pandas.DataFrame({"a": frame["a"], "c": y}), y, **facts)
    assert changed(encoded(frame, y, **facts), whole) <= 1
    assert changed(encoded(X, labels), WHOLE) <= 1


def read_by_estimators(X: Any, y: Any) -> tuple[Any, Any]:
    """What the private estimators train on, inside a selection."""
    model = DPLogisticRegression(classes=[FIRST, SECOND], feature_bounds=(0, 1))
    with inside_selection():
        rows = check_features(model, X)
        return rows, check_labels(model._known(), check_targets(y, len(rows)))[:, None]


@settings(deadline=None, max_examples=60)
@given(st.one_of(cells, st.sampled_from(list(ROWS.values()))), places, st.sampled_from("Xxy"))
@example(-(2**63) - 1, 0, "x")
def test_a_cell_of_an_estimator(cell, place, part):
    X, y = table()
    whole = read_by_estimators(X, y)
    if part == "y":
        y[place] = cell
    elif part == "X":
        X[place] = cell
    else:
        X[place][0] = cell
    assert changed(read_by_estimators(X, y), whole) <= 1


def texts(records: Any, columns: Any = ("u", "g")) -> list[Any]:
    """What counts are made of: one line per row."""
    return as_table(records, columns).to_pyarrow().select(columns).to_pylist()  # type: ignore[no-any-return]


PEOPLE = [{"u": FIRST + 2 * index, "g": (FIRST, SECOND)[index % 2]} for index in range(N)]


@settings(deadline=None, max_examples=40)
@given(st.one_of(cells, st.sampled_from(list(ROWS.values()))), places, st.sampled_from("ug-"))
def test_a_cell_of_records(cell, place, column):
    """A row that is no record, records with further keys, and any cell."""
    pytest.importorskip("ibis", reason="needs the analytics extra")
    records: list[Any] = list(PEOPLE)
    records[place] = cell if column == "-" else {**PEOPLE[place], column: cell, "more": cell}
    same = [a == b for a, b in zip(texts(records), texts(PEOPLE), strict=True)]
    assert sum(same) >= N - 1


@pytest.mark.parametrize("kind", ["object", "category", "Int64"])
def test_a_gap_in_a_frame_that_is_counted(kind):
    pytest.importorskip("ibis", reason="needs the analytics extra")
    pandas = pytest.importorskip("pandas")

    def frame(users: list[Any]) -> Any:
        labels = pandas.Series(pandas.array(users, dtype="Int64"))
        column = pandas.Series(pandas.Categorical(users)) if kind == "category" else labels
        return pandas.DataFrame({"u": column.astype(kind), "g": "a"})

    users = [row["u"] for row in PEOPLE]
    whole, gap = texts(frame(users)), texts(frame([None, *users[1:]]))
    assert sum(a == b for a, b in zip(whole, gap, strict=True)) == N - 1
    assert len({row["u"] for row in whole}) == N


def test_count():
    """The whole way: people with long numbers stay apart, and no row ends the request."""
    pytest.importorskip("ibis", reason="needs the analytics extra")
    pandas = pytest.importorskip("pandas")
    options: dict[str, Any] = {"user": "u", "by": "g", "keys": [FIRST, SECOND], "epsilon": 1e7}
    options |= {"plus_minus": 0.4, "confidence": 1 - 1e-9}

    def counts(data: Any) -> list[int]:
        return [round(answer.estimate) for answer in expost.count(data, **options).answers]

    frame = pandas.DataFrame(PEOPLE)
    gap = pandas.DataFrame([*PEOPLE, {"u": None, "g": None}], dtype=object).astype("Int64")
    for data in (
        frame,
        frame.astype("category"),
        gap.astype("category"),
        [*PEOPLE, None],
        [*PEOPLE, [1, 2]],
        [*PEOPLE, {"u": "x" * 200_000, "g": [FIRST]}],
        [*PEOPLE, {"other": 0.5}],
    ):
        assert counts(data) == [N // 2, N // 2]
    assert counts([]) == [0, 0]
    with pytest.raises(expost.InvalidInput, match="no records"):
        counts([[1, 2], [3, 4]])


def released(X: Any, y: Any, seed: int = 1) -> Any:
    """All that leaves ``tune``: the certificate and the model, or the error."""
    X, y = [*X, *table()[0] * 3], [*y, *table()[1] * 3]
    made = expost.tune(
        job(data={"classes": [FIRST, SECOND]}),
        X,
        y,
        randomness=SimulationRandomness(seed),
        simulation=True,
    )
    model = [] if made.model is None else list(made.model.parameters.values())
    return made.certificate(), [weights.tolist() for weights in model]


def test_tune():
    """A whole job: an odd row leaves what an empty place leaves, for the same coins."""
    X, y = table()
    empty = released([*X, [None, None]], [*y, None])
    for row, label in (
        (ROWS["too few cells"], FIRST),
        (ROWS["None"], SECOND),
        (["x" * 200_000, 0.5], FIRST),
        ([0.5, [0.5]], FIRST),
        (X[0], 0.5),
        (X[0], "x" * 200_000),
        (X[0], [FIRST]),
    ):
        assert released([*X, row], [*y, label]) == empty
    assert released([*X, X[0]], [*y, FIRST]) != empty  # test of the test


def searched(X: Any, y: Any) -> Any:
    """All that leaves a search."""
    model = DPLogisticRegression(classes=[FIRST, SECOND], feature_bounds=(0, 1), epochs=2)
    search = ExPostSearch(model, {}, epsilons=[1.0, 2.0], random_state=1, simulation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    return search.best_score_, search.best_params_, search.best_estimator_.coef_.tolist()


def test_search():
    """The same label as a float leaves the other rows alone; cells that are no numbers are gaps."""
    pandas = pytest.importorskip("pandas")
    X, y = table()
    X, y = X * 4, y * 4
    place = y.index(SECOND)
    whole = searched(X, y)
    assert searched(X, [*y[:place], float(SECOND), *y[place + 1 :]]) == whole
    assert searched(X, pandas.Series(y, dtype="category")) == whole
    empty = searched([*X[:place], [None, None], *X[place + 1 :]], y)
    for row in (None, [0.5], [0.5] * 3, ["x" * 200_000, 0.5], [[1], 0.5]):  # an empty place
        assert searched([*X[:place], row, *X[place + 1 :]], y) == empty
    for label in (None, "x" * 200_000, [FIRST], 0.5):
        assert searched(X, [*y[:place], label, *y[place + 1 :]]) == empty
