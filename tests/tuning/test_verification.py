"""The certificate of a tuning job can be priced again, and matches its ledger entries."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.budgets import ApproxBudget, RenyiBudget
from expost.budget.ledger import Ledger
from expost.certificates.document import grids_of
from expost.certificates.verify import verify_certificate
from tests.tuning.jobs import clouds, job

HOPELESS = job(goal={"at_least": 0.96}, privacy={"attempts": 3})
REDUCED = {
    name: table
    for name, table in job(model={"training": "progressive"}).items()
    if name != "search"
} | {"privacy": {"delta": 1e-4, "max_epsilon": 10.0}}
JOBS: dict[str, tuple[dict[str, Any], Any]] = {
    "bar": (job(), ApproxBudget(100, 0.01, neighbours="zero-out")),
    "missed": (HOPELESS, ApproxBudget(100, 0.01, neighbours="zero-out")),
    "best of one draw": (
        job(goal={"at_least": None, "maximize": True}),
        ApproxBudget(100, 0.01, neighbours="zero-out"),
    ),
    "progressive": (
        REDUCED,
        ApproxBudget(100, 0.01, neighbours="zero-out"),
    ),
    "renyi": (job(), RenyiBudget((8.0,), (500.0,), neighbours="zero-out")),
    "two orders": (job(), RenyiBudget((4.0, 8.0), (500.0, 500.0), neighbours="zero-out")),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, tuple[dict[str, Any], Path]]:
    """Each job, once: its certificate and its folder."""
    found = {}
    for name, (config, budget) in JOBS.items():
        folder = tmp_path_factory.mktemp("job")
        ledger = Ledger.create(folder / "ledger.db", budget)
        expost.tune(config, *clouds(noise=0.3), ledger=ledger, out=folder / "out", analyst="ann")
        found[name] = (json.loads((folder / "out" / "release.json").read_text()), folder)
    return found


def test_the_level_of_a_released_model_is_computed_again(made):
    """The certificate names the accountant; verification repeats it for the level."""
    document, _ = made["bar"]
    assert document["outcome"] == "value" or document["index"] is not None
    assert document["tuning"]["accountant"] == "privacy loss distribution and zCDP"
    guarantees = document["requests"]["guarantees"]
    assert all(guarantee["profile"]["parts"][0]["kind"] == "dp-sgd" for guarantee in guarantees)
    forged = copy.deepcopy(document)
    for guarantee in forged["requests"]["guarantees"]:
        guarantee["profile"]["parts"][0]["noise_multiplier"] *= 0.97
    assert any("level that it names" in problem for problem in verify_certificate(forged))
    forged = copy.deepcopy(document)
    forged["tuning"]["accountant"] = "Rényi DP"
    assert any("accountant" in problem for problem in verify_certificate(forged))


@pytest.mark.parametrize("name", JOBS)
def test_a_certificate_that_is_right(made, name):
    """Catches a check that refuses the job's own certificate."""
    document, folder = made[name]
    ledger = Ledger.open(folder / "ledger.db", read_only=True)
    assert verify_certificate(document) == []
    assert verify_certificate(document, ledger=ledger) == []
    assert ledger.verify() == []
    if document["outcome"] == "value":
        assert verify_certificate(document, model=folder / "out" / "model.npz") == []


@pytest.mark.parametrize("name", JOBS)
def test_certificates_stay_small(made, name):
    """Catches a grid or a guarantee that is written once per attempt."""
    document, _ = made[name]
    grids = document["requests"]["grids"]
    assert len({json.dumps(grid, sort_keys=True) for grid in grids}) == len(grids)
    guarantees = document["requests"]["guarantees"]
    texts = {json.dumps(guarantee, sort_keys=True) for guarantee in guarantees}
    assert len(texts) == len(guarantees)
    assert len(json.dumps(document["requests"])) < 20_000


@pytest.mark.parametrize("name", JOBS)
def test_guarantees_may_stand_in_the_grids(made, name):
    """Catches a reader that knows the short form only."""
    document = copy.deepcopy(made[name][0])
    document["requests"]["grids"] = grids_of(document["requests"])
    del document["requests"]["guarantees"]
    assert verify_certificate(document) == []


def cheaper(document: dict[str, Any]) -> None:
    document["spent"]["epsilon"] /= 2


def cheaper_everywhere(document: dict[str, Any]) -> None:
    """A consistent lie: every place that states a charge."""
    part = document["spent"]["epsilon"] / 2
    document["spent"]["epsilon"] = document["tuning"]["spent"]["epsilon"] = part
    shown = document["tuning"]["attempts"], document["requests"]["made"]
    for each in [*shown[0], *shown[1]]:
        each["spent"]["epsilon"] = part / len(shown[0])


def cheaper_grid(document: dict[str, Any]) -> None:
    """The candidates guarantee less than they did."""
    for guarantee in document["requests"]["guarantees"]:
        guarantee["epsilons"] = [each / 2 for each in guarantee["epsilons"]]


def cheaper_overhead(document: dict[str, Any]) -> None:
    for grid in document["requests"]["grids"]:
        grid["selector"]["overhead"] /= 2


def other_outcome(document: dict[str, Any]) -> None:
    document["requests"]["made"][-1]["index"] = None


def fewer_attempts(document: dict[str, Any]) -> None:
    document["requests"]["made"] = document["requests"]["made"][-1:]
    document["tuning"]["attempts"] = document["tuning"]["attempts"][-1:]


def other_score(document: dict[str, Any]) -> None:
    document["score"] = 0.999


def screen_only(document: dict[str, Any]) -> None:
    document["tuning"]["spent"]["epsilon"] /= 2


def smaller_worst_case(document: dict[str, Any]) -> None:
    document["worst_case"]["epsilon"] *= 0.9


def other_analyst(document: dict[str, Any]) -> None:
    document["ledger"][0]["analyst"] = "eve"


def other_relation(document: dict[str, Any]) -> None:
    """Only what people read; the charge keeps its relation."""
    document["tuning"]["neighbours"] = "add-remove"


def other_theorem(document: dict[str, Any]) -> None:
    document["theorem"] = "no theorem"


def other_selector(document: dict[str, Any]) -> None:
    document["selector"]["overhead"] = 0.001


def attempt_passed(document: dict[str, Any]) -> None:
    document["tuning"]["attempts"][0]["passed"] = "yes"


CHANGES = (
    *(cheaper, cheaper_everywhere, cheaper_grid, cheaper_overhead, other_outcome, fewer_attempts),
    *(other_score, screen_only, smaller_worst_case),
    *(other_analyst, other_relation, other_theorem, other_selector, attempt_passed),
)


@pytest.mark.parametrize(
    ("name", "change"),
    [("missed", each) for each in CHANGES if each is not other_outcome]
    + [("bar", each) for each in CHANGES if each is not fewer_attempts]
    + [("progressive", each) for each in (cheaper, cheaper_everywhere, other_score)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_changed_certificate_is_found(made, name, change):
    """Catches a certificate that was edited to look cheaper or better."""
    document = copy.deepcopy(made[name][0])
    before = json.dumps(document)
    change(document)
    assert json.dumps(document) != before
    assert verify_certificate(document) != []


def test_a_consistent_lie_is_found_by_the_ledger(made):
    """Catches a grid, charges and sums that fit one another but not what was reserved."""
    document, folder = copy.deepcopy(made["missed"][0]), made["missed"][1]
    other, _ = made["bar"]
    for key in ("grids", "guarantees"):
        document["requests"][key] = other["requests"][key]
    ledger = Ledger.open(folder / "ledger.db", read_only=True)
    found = verify_certificate(document, ledger=ledger)
    assert found != []
    # A certificate of another job cannot borrow these entries either.
    borrowed = copy.deepcopy(other)
    for mine, theirs in zip(
        borrowed["requests"]["made"], made["missed"][0]["requests"]["made"], strict=False
    ):
        mine["ledger"] = theirs["ledger"]
    assert any(
        "another certificate" in each for each in verify_certificate(borrowed, ledger=ledger)
    )


def test_another_source_is_found(made):
    """Catches a certificate that names another data set."""
    document, folder = copy.deepcopy(made["bar"][0]), made["bar"][1]
    for each in document["requests"]["made"]:
        each["ledger"]["source"]["name"] = "other"
    ledger = Ledger.open(folder / "ledger.db", read_only=True)
    problems = verify_certificate(document, ledger=ledger)
    assert "ledger: the ledger recorded another source" in problems


def test_entries_hold_the_digests(made):
    """Catches an attempt whose source or release cannot be recognised afterwards."""
    _, folder = made["missed"]
    for entry in Ledger.open(folder / "ledger.db", read_only=True).entries():
        if entry.action == "reserve":
            assert set(entry.facts) >= {"charges", "request", "source"}
        if entry.action == "settle":
            assert len(entry.facts["release"]) == 64


@pytest.mark.parametrize("damage", ["requests", "tuning", "spent"])
def test_missing_parts_are_problems(made, damage):
    """Catches a certificate that passes because what would be checked was removed."""
    document = copy.deepcopy(made["bar"][0])
    del document[damage]
    assert verify_certificate(document) != []
    document[damage] = None
    assert verify_certificate(document) != []
