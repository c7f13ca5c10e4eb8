"""The price of a job is a function of public facts, and it is the price of the job that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost.tuning import plan_job, read_settings
from expost.tuning.plan.strategies import price_job
from expost.tuning.rows.job_tables import head_and_places, head_as_dict, head_from_dict
from tests.tuning.jobs import clouds

GOAL = {"metric": "accuracy", "at_least": 0.7}
FACTS = {"feature_bounds": [0, 1], "classes": 2}


def write_csv(path: Path, values: Any, labels: Any) -> Path:
    lines = [
        "a,b,label",
        *(f"{a},{b},{label}" for (a, b), label in zip(values, labels, strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def job(path: Path, privacy: dict[str, Any], **data: Any) -> dict[str, Any]:
    named = {"target": "label"} if path.suffix == ".csv" else {}
    return {
        "data": {"path": str(path), **FACTS, **named, **data},
        "model": {"kind": "logistic"},
        "goal": GOAL,
        "privacy": {"delta": 1e-5, **privacy},
    }


@pytest.mark.parametrize("kind", ["rows.csv", "rows.npz"])
@pytest.mark.parametrize(
    ("privacy", "data"),
    [({}, {}), ({"max_epsilon": 1.5, "tell": 0.1}, {}), ({"order": "all"}, {"rows": 900})],
)
def test_the_price_is_that_of_the_job(
    tmp_path: Path, kind: str, privacy: dict[str, Any], data: dict[str, Any]
) -> None:
    """Catches a price that differs from what the job is planned, and charged, by."""
    path, (X, y) = tmp_path / kind, clouds(1000)
    if kind == "rows.csv":
        write_csv(path, X, y)
    else:
        np.savez(path, X=X, y=y)
    asked = job(path, privacy, **data)
    settings = read_settings(asked)
    head, places = head_and_places(path, settings.data)
    assert head.rows == 0
    assert places == 1000
    planned = plan_job(asked)
    path.unlink()  # no row is read
    again = head_from_dict(head_as_dict(head), "rows")
    order = settings.privacy.order
    for columns in (head, again):
        price = price_job(settings, columns, places, order)
        assert price.worst_case == planned.worst_case
        assert price.all_missed == planned.all_missed
        assert [step.charges for step in price.steps] == [step.charges for step in planned.steps]
        assert price.reasons == planned.reasons


def test_a_secret_number_of_rows_does_not_enter_the_price(tmp_path: Path) -> None:
    """Catches a price that depends on how many rows there are, where that is private."""
    prices = []
    for count in (1000, 1001):
        path = write_csv(tmp_path / "rows.csv", *clouds(count))
        settings = read_settings(job(path, {}, rows=900))
        prices.append(price_job(settings, *head_and_places(path, settings.data)))
    one, other = ([step.charges for step in price.steps] for price in prices)
    assert one == other
