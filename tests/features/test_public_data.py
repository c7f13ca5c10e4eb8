"""What linear models without privacy reach on the features of well-known data sets."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost.features import Columns, OrientedGradients

DATA = Path(__file__).parent.parent.parent.parent / "shared" / "data"
BOUNDS = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education_num": (1, 16),
    "capital_gain": (0, 99_999),
    "capital_loss": (0, 5_000),
    "hours_per_week": (1, 99),
}


def file(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"needs {name}")
    return path


def score(rows: Any, labels: Any, test: Any) -> float:
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LogisticRegression(C=30.0, max_iter=300)
    return float(model.fit(rows[~test], labels[~test]).score(rows[test], labels[test]))


@pytest.mark.slow
def test_mnist() -> None:
    with np.load(file("mnist.npz")) as archive:
        pictures = np.concatenate([archive["x_train"][:20_000], archive["x_test"]])
        labels = np.concatenate([archive["y_train"][:20_000], archive["y_test"]])
    rows = OrientedGradients("28x28").transform(pictures)
    assert score(rows, labels, np.arange(len(rows)) >= 20_000) > 0.98


@pytest.mark.slow
def test_adult() -> None:
    with file("adult.csv").open(encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    labels = np.array([row.pop("income") for row in table])
    known = {
        name: sorted({row[name] for row in table} - {""}) for name in table[0] if name not in BOUNDS
    }
    cells = [[row[name] for name in (*BOUNDS, *known)] for row in table]
    rows = Columns(BOUNDS, known).transform(cells)
    assert rows.any(axis=1).all()
    assert score(rows, labels, np.arange(len(rows)) % 5 == 0) > 0.85
