"""``expost certificate verify``: a changed charge, model or ledger is found."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from expost import Charges, PureDP
from expost.budget.charging import Account
from expost.budget.ledger import Ledger
from tests.cli.test_ledger_cli import expost  # noqa: F401  (a fixture)

CHARGES = Charges.from_list([PureDP(0.5), PureDP(0.25)], PureDP(0.0))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(1), "visits")


@pytest.fixture
def document(tmp_path: Path, ledger: Ledger) -> dict[str, Any]:
    """A certificate with everything in it, and its ledger entry."""
    model = tmp_path / "model.npz"
    model.write_bytes(b"weights")
    with Account(ledger, analyst="ann").reserve(CHARGES) as reserved:
        made = {
            "value": {"sha256": hashlib.sha256(b"weights").hexdigest()},
            "index": 1,
            "spent": PureDP(0.25).as_dict(),
            "worst_case": PureDP(0.5).as_dict(),
            "charges": CHARGES.as_dict(),
            "ledger": reserved.evidence(),
        }
        reserved.settle(1, release=made)
    return made


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
        "checked": ["ledger", "model", "price", "signature"],
        "problems": [],
    }
    words = expost("certificate", "verify", tmp_path / "certificate.json").out
    assert "signature: correct" in words
    assert "pass --key" in words


@pytest.mark.parametrize(
    ("change", "complaints"),
    [
        ({"spent": PureDP(0.1).as_dict()}, ["signature", "price", "ledger"]),
        ({"index": 0}, ["signature", "price", "ledger"]),
        ({"worst_case": PureDP(0.3).as_dict()}, ["signature", "price", "ledger"]),
        ({"value": {"sha256": "0" * 64}}, ["signature", "model", "ledger"]),
        ({"value": None}, ["signature", "model", "ledger"]),
        ({"ledger": None}, ["signature", "ledger"]),
        ({"spent": None}, ["signature", "price", "ledger"]),
        ({"charges": {}}, ["signature", "price", "ledger"]),
        ({"note": "new"}, ["signature", "ledger"]),
    ],
)
def test_a_changed_certificate_is_found(check, document, change, complaints):
    """Catches a smaller ε, another outcome, another model, or a note that was added."""
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


def test_entries_without_a_digest(check, document, ledger):
    """Catches a charge that differs from the ledger's, when the ledger holds no digest."""
    with Account(ledger).reserve(CHARGES) as reserved:
        evidence = reserved.evidence()
        reserved.settle(0)
    told = document | {"ledger": evidence}
    assert "charged another amount" in check(told).json["problems"][0]
    right = told | {"index": 0, "spent": PureDP(0.5).as_dict()}
    assert check(right).code == 0


def test_a_reservation_that_was_not_settled(check, document, ledger):
    """Catches a certificate of a job that is still open."""
    with Account(ledger).reserve(CHARGES) as reserved:
        evidence = reserved.evidence()
    done = check(document | {"ledger": evidence})
    assert "did not settle" in done.json["problems"][0]


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
