"""``learn_facts``: a job buys the facts that nobody stated; one total, one certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost import ApproxBudget, InvalidInput, Ledger, SimulationRandomness
from expost.certificates.verify import verify_certificate
from expost.tuning.request.bought_facts import FILE
from expost.tuning.request.defaults import FactsMissing

pd = pytest.importorskip("pandas")


def people(size: int = 4000) -> Any:
    generator = np.random.default_rng(0)
    age = generator.integers(18, 80, size)
    colour = np.array(["red", "green", "blue"])[generator.integers(0, 3, size)]
    label = np.where(age + 5 * generator.normal(size=size) > 45, "old", "young")
    code = [f"K{number}" for number in range(size)]
    return pd.DataFrame({"age": age, "colour": colour, "code": code, "label": label})


GOAL = {"target": "label", "at_least": 0.7}


def test_what_is_missing_is_bought_and_the_total_holds_both(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    people().to_csv(path, index=False)
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(4, 1e-4, "zero-out"))
    result = expost.tune(path, **GOAL, learn_facts=1.0, ledger=ledger, out=tmp_path / "job")
    assert result.passed
    assert result.facts is not None
    assert result.spent.epsilon > 1.0
    assert result.worst_case.epsilon <= 4.0 + 1e-9
    assert result.facts.settings["features"] == ["age", "colour"]  # the code is an identifier
    document = json.loads(result.certificate())
    assert document["total"]["epsilon"] == result.spent.epsilon
    assert verify_certificate(document) == []
    assert verify_certificate(document, ledger=ledger) == []
    assert verify_certificate({**document, "total": {"epsilon": 0.1, "delta": 1e-5}})
    assert verify_certificate({k: v for k, v in document.items() if k != "facts"})
    cheaper = {**document["facts"], "charged": {**document["facts"]["charged"], "epsilon": 0.1}}
    assert verify_certificate({**document, "facts": cheaper})


def test_facts_that_are_stated_are_not_bought() -> None:
    stated = {
        "feature_bounds": {"age": [0, 100]},
        "categories": {"colour": ["red"]},
        "classes": ["old", "young"],
        "features": ["age", "colour"],
    }
    result = expost.tune(people(), **GOAL, **stated, learn_facts=1.0)
    assert result.facts is None
    stated.pop("categories")
    result = expost.tune(people(), **GOAL, **stated, learn_facts=1.0)
    assert result.facts is not None
    assert list(result.facts.certificate["facts"]["columns"]) == ["colour"]


def test_a_job_that_continues_keeps_its_facts(tmp_path: Path) -> None:
    def stop(planned: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        expost.tune(people(), **GOAL, learn_facts=1.0, out=tmp_path / "job", before=stop)
    kept = json.loads((tmp_path / "job" / FILE).read_text(encoding="utf-8"))
    other = people().rename(columns={"age": "years"})
    with pytest.raises(InvalidInput, match="another job"):
        expost.tune(other, **GOAL, learn_facts=1.0, out=tmp_path / "job")
    result = expost.tune(people(), **GOAL, learn_facts=1.0, out=tmp_path / "job")
    assert result.facts is not None
    assert dict(result.facts.certificate) == kept["certificate"]


def test_without_the_option_facts_are_asked_for_and_the_option_is_named() -> None:
    with pytest.raises(FactsMissing, match="--learn-facts"):
        expost.tune(people(100), **GOAL)


def test_facts_must_leave_something_for_the_tuning() -> None:
    with pytest.raises(InvalidInput, match="max_epsilon"):
        expost.tune(people(100), **GOAL, learn_facts=1.0, max_epsilon=1.0)


def test_arrays_have_bounds_per_feature() -> None:
    generator = np.random.default_rng(1)
    X = generator.normal([0, 100], [1, 10], (4000, 2))
    y = (X[:, 0] > 0).astype(int)
    result = expost.tune(
        X,
        y,
        at_least=0.7,
        classes=2,
        learn_facts=1.0,
        randomness=SimulationRandomness(3),
        simulation=True,
    )
    assert result.facts is not None
    bounds = result.facts.settings["feature_bounds"]
    assert -6 < bounds["0"][0] < -1.5
    assert 120 < bounds["1"][1] < 160
