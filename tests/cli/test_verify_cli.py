"""``expost certificate verify``: a changed charge, model or ledger is found."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from expost import Candidate, DiscreteLaplace, PureDP, Query, RandomDropping
from expost.budget.charging import Account
from expost.budget.ledger import Ledger
from expost.certificates.document import charges_of_grid
from tests.cli.test_ledger_cli import expost  # noqa: F401  (a fixture)

CANDIDATES = [Candidate(DiscreteLaplace(Query(len), e), {"epsilon": e}) for e in (0.1, 0.2)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(5), "visits")


@pytest.fixture
def document(tmp_path: Path, ledger: Ledger) -> dict[str, Any]:
    """The certificate of a selection that released a model, and its ledger entry."""
    model = tmp_path / "model.npz"
    model.write_bytes(b"weights")
    value = {"sha256": hashlib.sha256(b"weights").hexdigest()}
    candidates = [
        Candidate(lambda data, coins: value, each.params, guarantee=each.guarantee)
        for each in CANDIDATES
    ]
    release = RandomDropping(0.05).select(
        candidates, ["ana", "ben"], ledger=ledger, analyst="ann", score=lambda output: 1.0
    )
    return json.loads(release.to_json())


@pytest.fixture
def check(expost, tmp_path):  # noqa: F811
    """Write a certificate and verify it with every option."""
    key = tmp_path / "key"
    expost("ledger", "keys", key)

    def run(document: dict[str, Any], *, sign: bool = True, change: dict[str, Any] | None = None):
        place = tmp_path / "certificate.json"
        place.write_text(json.dumps(document))
        if sign:
            assert expost("certificate", "sign", place, "--key", key).code == 0
        if change:
            place.write_text(json.dumps(json.loads(place.read_text()) | change))
        options = ["--ledger", tmp_path / "ledger.db", "--model", tmp_path / "model.npz"]
        options += ["--key", tmp_path / "key.pub"]
        return expost("certificate", "verify", place, *options, "--json")

    return run


def test_a_certificate_that_is_right(check, document, expost, tmp_path):  # noqa: F811
    """Catches a check that fails on its own certificate."""
    done = check(document)
    assert done.code == 0, done.json
    assert done.json == {
        "valid": True,
        "checked": ["charge", "ledger", "model", "signature"],
        "problems": [],
        "not_checked": [],
    }
    words = expost("certificate", "verify", tmp_path / "certificate.json").out
    assert "signature: correct" in words
    assert "pass --key" in words


def test_what_was_not_checked_is_said(document, expost, tmp_path):  # noqa: F811
    """Catches "correct" that a reader takes for more than was checked."""
    place = tmp_path / "certificate.json"

    def left(change: dict[str, Any], *options: object) -> list[str]:
        place.write_text(json.dumps(document | change))
        found = expost("certificate", "verify", place, *options, "--json").json["not_checked"]
        words = expost("certificate", "verify", place, *options).out
        assert words.count("not checked:") == len(found)
        return [each.partition(":")[0] for each in found]

    ledger, model = ["--ledger", tmp_path / "ledger.db"], ["--model", tmp_path / "model.npz"]
    assert left({}) == ["signature", "model", "ledger"]
    assert left({}, *ledger, *model) == ["signature"]
    assert left({}, *model) == ["signature", "ledger"]
    assert left({"value": None, "ledger": None}) == ["signature", "ledger"]
    shown = expost("certificate", "verify", place).out
    assert "nothing shows that a budget was charged" in " ".join(shown.split())
    left({"kind": "tuning"}, *ledger)
    shown = expost("certificate", "verify", place, *ledger).out
    assert "bounds, categories, classes" in " ".join(shown.split())


def halved(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: {name: document[name] | {"epsilon": document[name]["epsilon"] / 2}}


def cheaper_grid(document: dict[str, Any]) -> dict[str, Any]:
    """Half the guarantees, and a charge that fits them."""
    grid = copy.deepcopy(document["grid"])
    for guarantee in grid["guarantees"]:
        guarantee["epsilon"] /= 2
    charges = charges_of_grid(grid)
    return {
        "grid": grid,
        "spent": charges[document["index"]].as_dict(),
        "worst_case": charges.worst_case.as_dict(),
    }


@pytest.mark.parametrize(
    ("change", "complaints"),
    [
        (halved("spent"), ["signature", "charge", "ledger"]),
        (lambda d: {"index": 1 - d["index"]}, ["signature", "charge", "ledger"]),
        (halved("worst_case"), ["signature", "charge", "ledger"]),
        (cheaper_grid, ["signature", "ledger"]),
        (lambda d: {"grid": None}, ["signature", "charge", "ledger"]),
        (lambda d: {"kind": "count"}, ["signature", "charge", "ledger"]),
        (lambda d: {"kind": "tuning"}, ["signature", "charge", "ledger"]),
        (lambda d: {"kind": "other"}, ["signature", "charge", "ledger"]),
        (lambda d: {"theorem": "a better one"}, ["signature", "charge", "ledger"]),
        (
            lambda d: {"selector": d["selector"] | {"overhead": 1}},
            ["signature", "charge", "ledger"],
        ),
        (lambda d: {"value": {"sha256": "0" * 64}}, ["signature", "model", "ledger"]),
        (lambda d: {"value": None}, ["signature", "model", "ledger"]),
        (lambda d: {"ledger": None}, ["signature", "ledger"]),
        (lambda d: {"spent": None}, ["signature", "charge", "ledger"]),
        (lambda d: {"grid": {}}, ["signature", "charge", "ledger"]),
        (lambda d: {"note": "new"}, ["signature", "ledger"]),
    ],
)
def test_a_changed_certificate_is_found(check, document, change, complaints):
    """Catches a smaller ε, another outcome, grid or model, or a note that was added."""
    change = change(document)
    done = check(document, change=change)
    assert done.code == 1
    found = {problem.partition(":")[0] for problem in done.json["problems"]}
    assert found == set(complaints)
    # Signed again by the owner of the key, the rest must still be found.
    again = check(document | change)
    found = {problem.partition(":")[0] for problem in again.json["problems"]}
    assert found == set(complaints) - {"signature"}


@pytest.mark.parametrize(
    "change",
    [
        {"reservation": "none"},
        {"analyst": "bob"},
        {"budget": "others"},
        {"date": "2020-01-01"},
        {"ledger": "0" * 64},
    ],
)
def test_evidence_that_does_not_fit_the_ledger(check, document, change):
    """Catches a certificate that borrows another entry."""
    done = check(document | {"ledger": document["ledger"] | change})
    assert done.code == 1
    assert all(problem.startswith("ledger") for problem in done.json["problems"])


def test_a_source_that_does_not_fit_the_ledger(check, document):
    """Catches a certificate that names another data set."""
    source = {"kind": "builtins.dict"}
    done = check(document | {"ledger": document["ledger"] | {"source": source}})
    assert "ledger: the ledger recorded another source" in done.json["problems"]


def test_entries_without_a_digest(check, document, ledger):
    """Catches a charge that differs from the ledger's, when the ledger holds no digest."""
    charges = charges_of_grid(document["grid"])
    with Account(ledger, analyst="ann").reserve(charges) as reserved:
        evidence = reserved.evidence()
        reserved.settle(1 - document["index"])
    told = document | {"ledger": evidence}
    found = check(told).json["problems"]
    assert "ledger: the ledger charged another amount" in found
    assert "ledger: the ledger settled another outcome" in found
    with Account(ledger, analyst="ann").reserve(charges) as reserved:
        evidence = reserved.evidence()
        reserved.settle(document["index"])
    assert check(document | {"ledger": evidence}).code == 0


def test_a_reservation_that_was_not_settled(check, document, ledger):
    """Catches a certificate of a job that is still open."""
    with Account(ledger, analyst="ann").reserve(charges_of_grid(document["grid"])) as reserved:
        evidence = reserved.evidence()
    done = check(document | {"ledger": evidence})
    assert done.json["problems"] == ["ledger: the ledger did not settle this reservation"]


def test_a_model_that_was_changed(check, document, tmp_path):
    """Catches another model under the same certificate."""
    (tmp_path / "model.npz").write_bytes(b"other weights")
    assert check(document).json["problems"] == [
        "model: the file is not the model that was released"
    ]


def test_certificates_without_a_signature(check, document):
    """Catches a missing signature that passes for a valid one."""
    done = check(document, sign=False)
    assert done.json["problems"] == ["signature: it is not signed"]


def test_files_that_are_no_certificates(expost, tmp_path):  # noqa: F811
    """Catches a traceback."""
    place = tmp_path / "file"
    for content in ("", "[]", "{}", '{"spent": 3}'):
        place.write_text(content)
        done = expost("certificate", "verify", place)
        assert done.code in (1, 2)
        assert "Traceback" not in done.err
