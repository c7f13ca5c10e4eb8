"""Rows: public bounds, a split that no value can move, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.tuning.data_settings import DataSettings
from expost.tuning.rows import held_out, load_rows, scale
from tests.tuning.jobs import clouds


def test_the_split_is_public_even_and_disjoint() -> None:
    out = held_out(1000, 0.2)
    assert out.sum() == 200
    assert out.reshape(-1, 5).sum(axis=1).tolist() == [1] * 200
    assert abs(held_out(17, 0.3).sum() - 17 * 0.3) < 1
    X, y = clouds()
    first, other = (
        load_rows(DataSettings(bounds=((0, 1),), classes=2), X, y),
        load_rows(DataSettings(bounds=((0, 1),), classes=2), X[::-1], y[::-1]),
    )
    assert first.X.shape == other.X.shape == (240, 2)
    assert first.score_X.shape == (60, 2)


def test_one_row_changes_one_part_in_one_place() -> None:
    X, y = clouds()
    settings = DataSettings(bounds=((0, 1),), classes=2)
    before = load_rows(settings, X, y)
    for place in range(10):
        changed = X.copy()
        changed[place] = 1e9
        after = load_rows(settings, changed, y)
        moved = (
            (before.X != after.X).any(axis=1).sum(),
            (before.score_X != after.score_X).any(axis=1).sum(),
        )
        assert sorted(moved) == [0, 1]
        assert after.X.max() <= 1


def test_features_are_clipped_to_public_bounds() -> None:
    assert scale([[-5.0, 3.0], [5.0, 99.0]], ((0, 10), (2, 4))).tolist() == [[0.0, 0.5], [0.5, 1.0]]
    with pytest.raises(InvalidInput, match="feature_bounds"):
        scale([[1.0, 2.0, 3.0]], ((0, 1), (0, 1)))
    with pytest.raises(InvalidInput, match="NaN"):
        scale([[float("nan")]], ((0, 1),))


def test_files_of_every_kind_give_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    X, y = clouds(40)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    names = np.array(["no", "yes"])[y]
    rows = "\n".join(
        f"{a!r},{label},{b!r}" for (a, b), label in zip(X.tolist(), names, strict=True)
    )
    (tmp_path / "rows.csv").write_text("a,label,b\n" + rows + "\n", encoding="utf-8")
    parquet.write_table(
        pa.table({"a": X[:, 0], "label": names.tolist(), "b": X[:, 1]}), tmp_path / "rows.parquet"
    )
    wanted = load_rows(DataSettings(path=tmp_path / "rows.npz", bounds=((0, 1),), classes=2))
    for file in ("rows.csv", "rows.parquet"):
        settings = DataSettings(
            path=tmp_path / file, target="label", bounds=((0, 1),), classes=("no", "yes")
        )
        found = load_rows(settings)
        assert np.array_equal(found.X, wanted.X)
        assert np.array_equal(found.y, wanted.y)
        assert np.array_equal(found.score_y, wanted.score_y)


def test_built_in_data() -> None:
    pytest.importorskip("sklearn")
    rows = load_rows(DataSettings(name="breast_cancer", classes=2))
    assert rows.X.shape == (456, 30)
    assert len(rows.bounds) == 30
    assert (rows.X.min(), rows.X.max()) == (0.0, 1.0)


def test_errors_name_no_value(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,label\n1,0\nsecret-value,1\n", encoding="utf-8")
    settings = DataSettings(path=tmp_path / "rows.csv", target="label", bounds=((0, 1),), classes=2)
    with pytest.raises(InvalidInput, match="line 3") as caught:
        load_rows(settings)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidInput, match="labels outside") as caught:
        load_rows(DataSettings(bounds=((0, 1),), classes=2), [[0.5]] * 10, [7717] * 10)
    assert "7717" not in str(caught.value)
    with pytest.raises(InvalidInput, match="one class"):
        load_rows(DataSettings(bounds=((0, 1),), classes=2), [[0.5]] * 10, [1] * 10)
    with pytest.raises(InvalidInput, match="no such column"):
        load_rows(
            DataSettings(path=tmp_path / "rows.csv", target="class", bounds=((0, 1),), classes=2)
        )


@pytest.mark.parametrize(
    "settings",
    [
        DataSettings(bounds=((0, 1),), classes=2),
        DataSettings(bounds=((0, 1),), target_bounds=(0, 1)),
    ],
)
def test_targets_are_flat(settings: DataSettings) -> None:
    """Catches a column of targets: every row would be compared with every flat prediction."""
    X, y = clouds()
    with pytest.raises(InvalidInput, match="2 dimensions"):
        load_rows(settings, X, y[:, None])
