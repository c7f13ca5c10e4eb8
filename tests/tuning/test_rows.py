"""Rows: no value makes loading fail, and one row changes one place of one part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.settings import DataSettings
from expost.tuning.rows.job_rows import JobRows, drawn_out, held_out, load_rows
from tests.tuning.jobs import clouds

UNIT = DataSettings(bounds=((0, 1),), classes=2)


def changed(before: JobRows, after: JobRows) -> tuple[int, int]:
    """How many places differ in training and in scoring; the shapes must be equal."""
    assert before.X.shape == after.X.shape
    assert before.score_X.shape == after.score_X.shape
    found = []
    for one, other, y, z in (
        (before.X, after.X, before.y, after.y),
        (before.score_X, after.score_X, before.score_y, after.score_y),
    ):
        same = np.isclose(y, z, atol=0, rtol=0, equal_nan=True)
        found.append(int(((one != other).any(axis=1) | ~same).sum()))
    return found[0], found[1]


# The split


@pytest.mark.parametrize("share", [0.2, 0.25, 0.35, 0.5])
def test_the_split_follows_no_period(share: float) -> None:
    """Catches a split that takes every k-th row of a file whose order repeats.

    The chance that a random split fails is below 1e-5: 40 counts, each beyond five deviations.
    """
    out = held_out(100_000, share)
    for period in (2, 3, 4, 5, 7, 10):
        kept = np.array([out[start::period].mean() for start in range(period)])
        assert np.abs(kept - share).max() < 5 * np.sqrt(share * (1 - share) * period / 100_000)


def test_the_split_is_public_even_and_disjoint() -> None:
    out = held_out(1000, 0.2)
    assert out.sum() == 200
    assert out.reshape(-1, 100).sum(axis=1).tolist() == [20] * 10
    assert abs(held_out(17, 0.3).sum() - 17 * 0.3) < 1
    assert held_out(10**6, 0.35).sum() == 350_000
    assert [held_out(n, 0.5).sum() for n in (1, 2, 3, 100, 101)] == [0, 1, 1, 50, 50]
    X, y = clouds()
    first, other = load_rows(UNIT, X, y), load_rows(UNIT, X[::-1], y[::-1])
    assert first.X.shape == other.X.shape == (240, 2)
    assert first.score_X.shape == (60, 2)
    assert (first.places, first.score_places, first.relation) == (240, 60, ZERO_OUT)
    assert first.public_rows is None
    assert first.as_data("job")["rows"] is first.as_data("job")["score_rows"] is None


ODD: dict[str, Callable[[Any, Any], None]] = {
    "huge": lambda x, y: x.__setitem__(slice(None), 1e300),
    "NaN": lambda x, y: x.__setitem__(0, np.nan),
    "infinity": lambda x, y: x.__setitem__(1, np.inf),
    "a label outside": lambda x, y: y.__setitem__(0, 7717),
    "a label that is no number": lambda x, y: y.__setitem__(0, np.nan),
    "half a label": lambda x, y: y.__setitem__(0, 0.5),
}


@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("place", range(8))
def test_an_odd_row_changes_one_place_and_nothing_fails(odd: str, place: int) -> None:
    """Catches a row that stops the job, or that moves others: its place is empty."""
    X, y = clouds()
    y = y.astype(float)
    before = load_rows(UNIT, X, y)
    X, y = X.copy(), y.copy()
    ODD[odd](X[place], y[place : place + 1])
    after = load_rows(UNIT, X, y)
    out = held_out(len(X), UNIT.holdout)
    assert changed(before, after) == ((0, 1) if out[place] else (1, 0))
    part_X, part_y = (after.score_X, after.score_y) if out[place] else (after.X, after.y)
    at = int(np.count_nonzero(out[:place] == out[place]))
    if odd == "huge":
        assert part_X[at].tolist() == [1, 1]
    else:
        assert part_X[at].tolist() == [0, 0]
        assert np.isnan(part_y[at])


def test_one_class_only_is_no_error() -> None:
    """Catches the only row of a class deciding between a model and an error."""
    X, _ = clouds()
    y = np.zeros(len(X))
    alone = y.copy()
    alone[0] = 1
    assert changed(load_rows(UNIT, X, y), load_rows(UNIT, X, alone)) == (1, 0)
    assert np.isnan(load_rows(UNIT, X, y + 5).y).all()


def test_the_arrays_of_the_caller_stay_as_they_are() -> None:
    for dtype in (np.float64, np.int64):
        X, y = (10 * clouds()[0]).astype(dtype), clouds()[1].astype(np.float64)
        y[3] = 9
        before = X.copy(), y.copy()
        load_rows(DataSettings(bounds=((0, 5),), classes=2, integers=dtype is np.int64), X, y)
        assert np.array_equal(X, before[0])
        assert np.array_equal(y, before[1])


# A secret number of rows


def secret(rows: int, **more: Any) -> DataSettings:
    return DataSettings(bounds=((0, 1),), classes=2, rows=rows, **more)


def test_with_a_public_number_the_actual_one_decides_nothing() -> None:
    """Catches a number of places that follows the rows."""
    for count in (0, 1, 10, 299, 300, 5000):
        X, y = clouds(max(count, 1))
        found = load_rows(secret(300), X[:count], y[:count])
        assert (found.places, found.score_places) == (240, 60)
        assert (found.relation, found.public_rows) == (ADD_REMOVE, 240)
        assert len(found.X) + len(found.score_X) == count
        data = found.as_data("job")
        assert (data["rows"], data["score_rows"]) == (240, 60)


def test_the_coins_are_fresh_secret_and_of_the_right_share() -> None:
    keys = {load_rows(secret(300), *clouds()).key for _ in range(5)}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}
    share = np.mean([drawn_out(2000, 0.3, key).mean() for key in keys])
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 10_000) ** 0.5
    one, other = (drawn_out(2000, 0.5, key) for key in list(keys)[:2])
    assert 800 < (one == other).sum() < 1200  # independent of one another


def test_removing_a_row_leaves_the_law_of_the_others() -> None:
    """Catches a split by position: with row 0 away, every other row keeps its chance of 1/2, and
    the split of D without row 0 is as likely as the same split of D.
    """
    X, y = np.arange(6)[:, None] / 10, np.zeros(6)
    halves = secret(6, holdout=0.5)
    laws: list[dict[tuple[float, ...], int]] = [{}, {}]
    for seed in range(4000):
        for law, first in zip(laws, (0, 1), strict=True):
            source = SimulationRandomness(2 * seed + first)
            rows = load_rows(halves, X[first:], y[first:], randomness=source)
            others = tuple(np.round(10 * rows.score_X[:, 0]).tolist())
            key = tuple(each for each in others if each != 0)
            law[key] = law.get(key, 0) + 1
    assert len(laws[0]) == len(laws[1]) == 32
    for split in laws[0]:
        for law in laws:
            assert abs(law[split] - 125) < 5 * 125**0.5


def test_the_key_of_an_interrupted_job_splits_again_in_the_same_way() -> None:
    before, after = (load_rows(secret(300), *clouds()) for _ in range(2))
    assert not np.array_equal(before.score_X, after.score_X)
    again = after.with_key(before.key)
    assert changed(before, again) == (0, 0)
    assert np.array_equal(before.whole("job")["X"], after.whole("job")["X"])
    open_split = load_rows(UNIT, *clouds())
    assert open_split.with_key(b"") is open_split


# Files


def test_files_of_every_kind_give_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    X, y = clouds(40)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    names = np.array(["no", "yes"])[y]
    columns = {"a": X[:, 0], "label": names.tolist(), "b": X[:, 1]}
    for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t"), ("rows.txt", ";")):
        lines = [
            delimiter.join((repr(a), label, repr(b)))
            for (a, b), label in zip(X.tolist(), names, strict=True)
        ]
        text = "\n".join([delimiter.join(columns), *lines, ""])
        (tmp_path / name).write_text(text, encoding="utf-8")
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    wanted = load_rows(DataSettings(path=tmp_path / "rows.npz", bounds=((0, 1),), classes=2))
    told: dict[str, Any] = {"target": "label", "bounds": ((0, 1),), "classes": ("no", "yes")}
    found = [
        load_rows(DataSettings(path=tmp_path / file, **told))
        for file in ("rows.csv", "rows.tsv", "rows.txt", "rows.parquet")
    ]
    frames = (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns))
    found += [load_rows(DataSettings(**told), frame) for frame in frames]
    found += [load_rows(DataSettings(**told), frames[0].drop(columns="label"), frames[0]["label"])]
    for each in found:
        assert np.array_equal(each.X, wanted.X)
        assert np.array_equal(each.y, wanted.y)
        assert np.array_equal(each.score_y, wanted.score_y)


ODD_LINES = [
    "",
    "   ",
    "0.5",
    "0.5,0.5,1,1",
    "much,0.5,1",
    "0.5,0.5,secret",
    '"0.5,0.5,1',
    '0.5,"0.5"x,1',
    ",,",
    "\x00,\x00,\x00",
    '"' + 200_000 * "9" + '",0,1',
    "nan,0.5,1",
    "\N{SNOWMAN},0.5,1",
]


@pytest.mark.parametrize("line", ODD_LINES)
def test_a_line_of_a_csv_file_is_a_place(tmp_path: Path, line: str) -> None:
    """Catches a blank or broken line that shifts the split or stops the job."""
    lines = [f"0.{place % 10},0.{place // 10},{place % 2}" for place in range(50)]
    path = tmp_path / "rows.csv"
    settings = DataSettings(path=path, target="label", bounds=((0, 1),), classes=2)

    def load(text: bytes) -> JobRows:
        path.write_bytes(b"a,b,label\n" + text)
        return load_rows(settings)

    before = load("\n".join(lines).encode() + b"\n")
    for place in (0, 4, 49):
        odd = [*lines[:place], line, *lines[place + 1 :]]
        after = load("\n".join(odd).encode() + b"\n")
        assert sum(changed(before, after)) == 1
        assert (before.places, before.score_places) == (after.places, after.score_places)
        crlf = load("\r\n".join(odd).encode() + b"\r\n")
        assert changed(after, crlf) == (0, 0)
    lines[7] = "\udcff,0.5,1"
    broken = load("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    assert sum(changed(before, broken)) == 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40).filter(lambda line: b"\n" not in line), st.integers(0, 9))
def test_any_bytes_in_a_line_leave_the_others(line: bytes, place: int) -> None:
    """The neighbour with an empty place differs there and nowhere else."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        told = DataSettings(path=path, target="label", bounds=((0, 1),), classes=2)
        both = []
        for text in (b"", line):
            lines = [b"0.%d,0.5,1" % number for number in range(10)]
            lines[place] = text
            path.write_bytes(b"a,b,label\n" + b"\n".join(lines) + b"\n")
            both.append(load_rows(told))
    assert sum(changed(*both)) <= 1


def test_an_odd_cell_of_a_frame_changes_one_place() -> None:
    """Catches a column that one cell turns into another type, and everybody's values with it."""
    pd = pytest.importorskip("pandas")
    X, y = clouds(50)
    frame = pd.DataFrame({"a": X[:, 0], "b": np.arange(50), "label": y})
    told = DataSettings(target="label", bounds={"a": (0, 1), "b": (0, 50)}, classes=(0, 1))
    before = load_rows(told, frame)
    for cell in (None, "secret", np.inf, [1], object()):
        for column in ("a", "b", "label"):
            odd = frame.astype({column: object})
            odd.at[3, column] = cell
            assert changed(before, load_rows(told, odd)) == (1, 0)


def test_built_in_data() -> None:
    pytest.importorskip("sklearn")
    rows = load_rows(DataSettings(name="breast_cancer", classes=2))
    assert rows.X.shape == (456, 30)
    assert rows.schema.width == 30
    assert (rows.X.min(), rows.X.max()) == (0.0, 1.0)
    assert not np.isnan(rows.y).any()


def test_features_are_clipped_to_public_bounds() -> None:
    told = DataSettings(bounds=((0, 10), (2, 4)), classes=2, holdout=0.5)
    rows = load_rows(told, [[-5.0, 3.0], [5.0, 99.0]], [0, 1])
    assert sorted([*rows.X.tolist(), *rows.score_X.tolist()]) == [[0.0, 0.5], [0.5, 1.0]]
    with pytest.raises(InvalidInput, match="feature_bounds"):
        load_rows(told, [[1.0, 2.0, 3.0]] * 2, [0, 1])


def test_whole_numbers_stay_whole() -> None:
    tokens = np.array([[0, 7], [3, 999], [-4, 2], [5, 5]])
    told = DataSettings(bounds=((0, 99),), classes=2, integers=True, holdout=0.5)
    rows = load_rows(told, tokens, [0, 1, 5, 0])
    assert rows.X.dtype == rows.score_X.dtype == np.int64
    assert rows.X.tolist() == [[0, 7], [5, 5]]
    assert rows.score_X.tolist() == [[3, 99], [0, 0]]
    with pytest.raises(InvalidInput, match="whole numbers"):
        load_rows(told, tokens / 2, [0, 1, 1, 0])


# What is refused, by public facts only


def test_public_facts_that_do_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,label\n1,0\nsecret-value,1\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="did you mean 'label'"):
        load_rows(DataSettings(path=path, target="lable", bounds=((0, 1),), classes=2))
    with pytest.raises(InvalidInput, match=r"categories.*did you mean 'a'"):
        load_rows(DataSettings(path=path, target="label", classes=2, categories={"A": ("x",)}))
    with pytest.raises(InvalidInput, match="no such file"):
        load_rows(DataSettings(path=tmp_path / "gone.csv", target="label"))
    with pytest.raises(InvalidInput, match="no rows"):
        load_rows(UNIT, np.empty((0, 2)), [])
    with pytest.raises(InvalidInput, match="cannot be split"):
        load_rows(secret(1), *clouds())
    np.savez(tmp_path / "objects.npz", X=np.array([object()]), y=np.array([0]))
    with pytest.raises(InvalidInput, match="objects"):
        load_rows(DataSettings(path=tmp_path / "objects.npz", bounds=((0, 1),), classes=2))


def test_columns_of_public_rows_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,t\n0.1,0.9,0\n0.2,0.8,1\n")
    (tmp_path / "test.csv").write_text("t,b,more,a\n1,0.7,x,0.3\n")
    told = DataSettings(
        path=tmp_path / "rows.csv",
        target="t",
        bounds=((0, 1),),
        classes=2,
        public_test=tmp_path / "test.csv",
    )
    assert load_rows(told).score_X.tolist() == [[0.3, 0.7]]


def test_public_test_rows_are_checked(tmp_path: Path) -> None:
    X, y = clouds(30)
    path = tmp_path / "test.npz"
    told = DataSettings(bounds=((0, 1),), classes=2, public_test=path)
    np.savez(path, X=X, y=y)
    found = load_rows(told, X, y)
    assert (found.public, found.places, found.score_places) == (True, 30, 30)
    for broken in (np.where(y == 1, 7, y), np.where(y == 1, np.nan, y)):
        np.savez(path, X=X, y=broken)
        with pytest.raises(InvalidInput, match="public_test"):
            load_rows(told, X, y)
    np.savez(path, X=X[:, :1], y=y)
    with pytest.raises(InvalidInput, match="same columns"):
        load_rows(told, X, y)


@pytest.mark.parametrize("told", [UNIT, DataSettings(bounds=((0, 1),), target_bounds=(0, 1))])
def test_targets_are_flat(told: DataSettings) -> None:
    """Catches a column of targets: every row would be compared with every flat prediction."""
    X, y = clouds()
    with pytest.raises(InvalidInput, match="2 dimensions"):
        load_rows(told, X, y[:, None])
