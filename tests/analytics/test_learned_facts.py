"""``learn_facts`` of sums, means and counts: bounds and groups that nobody stated are bought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import ApproxBudget, InvalidInput, Ledger
from expost.certificates.verify import verify_certificate

pd = pytest.importorskip("pandas")
pytest.importorskip("ibis")


def visits(persons: int = 5000) -> Any:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": np.repeat(np.arange(persons), 2),
            "city": np.repeat(np.array(["Bern", "Zug"])[generator.integers(0, 2, persons)], 2),
            "minutes": generator.integers(5, 60, 2 * persons),
        }
    )


def test_a_mean_buys_its_bounds_and_groups(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(3, 1e-4))
    result = expost.mean(
        visits(), "minutes", by="city", user="who", epsilon=3.0, learn_facts=1.0, ledger=ledger
    )
    assert result.facts is not None
    assert {answer.group for answer in (*result.answers, *result.unanswered)} == {"Bern", "Zug"}
    for answer in result.answers:
        assert answer.estimate == pytest.approx(32, abs=6)
    assert result.total is not None
    assert result.total.epsilon == pytest.approx(3.0)
    document = json.loads(json.dumps(result.certificate()))
    assert verify_certificate(document) == []
    assert verify_certificate(document, ledger=ledger) == []
    assert verify_certificate({**document, "total": document["guarantee"]})
    assert float(ledger.remaining()["epsilon"]) >= 0


def test_what_is_stated_is_not_bought() -> None:
    result = expost.sum(
        visits(), "minutes", bounds=(0, 60), user="who", epsilon=2.0, learn_facts=1.0
    )
    assert result.facts is None
    assert result.guarantee.as_dict()["epsilon"] == 2.0


def test_groups_are_bought_with_a_delta() -> None:
    result = expost.count(visits(), by="city", user="who", epsilon=2.0, delta=1e-6, learn_facts=1.0)
    assert result.total is not None
    assert result.total.delta == pytest.approx(1e-6)
    assert len(result.answers) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"learn_facts": 2.0}, {"learn_facts": -1.0}, {"learn_facts": 1.0, "by": ["city", "who"]},
        {"learn_facts": 1.0, "user": None},
    ],
)  # fmt: skip
def test_wrong_requests_are_refused_before_anything_is_charged(
    options: dict[str, Any], tmp_path: Path
) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(3, 1e-4))
    asked: dict[str, Any] = {"by": "city", "user": "who", "epsilon": 2.0} | options
    with pytest.raises(InvalidInput):
        expost.count(visits(50), **asked, ledger=ledger)
    assert float(ledger.remaining()["epsilon"]) == 3


@pytest.mark.parametrize(
    "wrong", [{"where": ["absent=1"]}, {"within": -1.0}, {"delta": 2.0}, {"max_groups_per_user": 0}]
)
def test_a_request_that_is_refused_buys_nothing(tmp_path: Path, wrong: dict[str, Any]) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(3, 1e-4))
    with pytest.raises(InvalidInput):
        expost.mean(
            visits(50), "minutes", by="city", user="who", epsilon=2.0, learn_facts=1.0,
            ledger=ledger, **wrong,
        )  # fmt: skip
    assert float(ledger.remaining()["epsilon"]) == 3.0


def test_groups_of_several_columns_are_bought() -> None:
    """Fails with probability < 1e-6: 2,500 persons per city against a threshold of about 100."""
    table = visits().assign(day=np.tile(["a", "b"], 5000))
    result = expost.count(table, by=["city", "day"], user="who", epsilon=4.0, learn_facts=2.0)
    groups = {answer.group for answer in (*result.answers, *result.unanswered)}
    assert groups == {(c, d) for c in ("Bern", "Zug") for d in ("a", "b")}
