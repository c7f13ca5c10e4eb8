"""The certificate of a count states what the ledger charged, and can be priced again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import expost
from expost import ZCDP, ApproxDP, Charges, PureDP
from expost.analytics.pricing import source_description
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import digest, document_digest
from expost.certificates.document import read_certificate
from expost.certificates.verify import verify_certificate

RANDOM = np.random.default_rng(1)  # test data only
TABLE = pa.table(
    {
        "u": [f"u{k}" for k in range(1500)],
        "g": [f"g{k % 3}" for k in range(1500)],
        "v": RANDOM.integers(0, 10, 1500),
    }
)
KEYS = ["g0", "g1", "g2", "g3"]
ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "pure": (PureDP(10), {"keys": KEYS, "epsilon": 1}),
    "odd total": (PureDP(10), {"keys": KEYS, "epsilon": 1 / 3}),
    "capped": (PureDP(10), {"keys": KEYS, "epsilon": 1, "max_groups_per_user": 2}),
    "chosen cap": (PureDP(10), {"keys": KEYS, "epsilon": 1, "max_groups_per_user": "auto"}),
    "pure in approx": (ApproxDP(10, 1e-5), {"keys": KEYS, "epsilon": 1}),
    "zcdp": (ZCDP(1), {"keys": KEYS, "epsilon": 2, "delta": 1e-6}),
    "whole": (ApproxDP(10, 1e-5), {"keys": KEYS, "epsilon": 2, "delta": 1e-6}),
    "private groups": (
        ApproxDP(10, 1e-5),
        {"private_keys": True, "epsilon": 2, "delta": 1e-6, "max_groups_per_user": 1},
    ),
}
every_request = pytest.mark.parametrize("name", ASKED)


def counted(name: str, folder: Path) -> tuple[Ledger, Any]:
    budget, options = ASKED[name]
    ledger = Ledger.create(folder / "ledger.db", budget)
    result = expost.count(TABLE, by="g", user="u", within=0.2, ledger=ledger, **options)
    return ledger, result


@every_request
def test_the_ledger_charges_what_the_certificate_says(name, tmp_path):
    """Catches a ledger that is charged more, or less, than the certificate states."""
    ledger, result = counted(name, tmp_path)
    state = ledger.standing().filter
    assert state.settled == state.budget.coordinates(result.charged)
    assert ledger.verify() == []
    if result.unit == "epsilon" or name == "zcdp":
        assert result.charged.as_dict()[result.unit] == result.spent


@every_request
def test_an_entry_takes_kilobytes(name, tmp_path):
    """Catches a table of a thousand prices per job: the ledger stores a rule."""
    ledger, _ = counted(name, tmp_path)
    with ledger._store.reading() as rows:
        (charges,) = rows.one("SELECT charges FROM expost_reservations")
    assert len(charges) < 500
    assert sum(len(entry.detail) for entry in ledger.entries()) < 2500


@every_request
def test_entries_hold_the_digests(name, tmp_path):
    """Catches a request whose source or release cannot be recognised afterwards."""
    ledger, result = counted(name, tmp_path)
    _, reserve, settle = ledger.entries()
    document = json.loads(json.dumps(result.certificate()))
    assert settle.facts["release"] == document_digest(document, "release")
    assert reserve.facts["source"] == digest(
        source_description(document["source"], document["query"])
    )
    assert reserve.facts["charges"] == digest(document["charges"])
    told = document["ledger"]
    assert (told["ledger"], told["reservation"]) == (ledger.identity, reserve.reservation)
    assert told["budget"] == "default"
    assert told["date"] == reserve.time[:10]


@every_request
def test_the_price_is_computed_again(name, tmp_path):
    """Catches a check that refuses a right certificate."""
    _, result = counted(name, tmp_path)
    document = json.loads(json.dumps(result.certificate()))
    assert verify_certificate(read_certificate(document)) == []


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_sums_and_means_are_priced_again(kind, delta, tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10) if delta is None else ZCDP(10))
    ask = {"sum": expost.sum, "mean": expost.mean}[kind]
    result = ask(
        *(TABLE, "v"),
        bounds=(0, 10),
        by="g",
        user="u",
        keys=KEYS,
        epsilon=2,
        delta=delta,
        within=0.3,
        ledger=ledger,
    )
    assert verify_certificate(result.certificate()) == []
    state = ledger.standing().filter
    assert state.settled == state.budget.coordinates(result.charged)


def test_without_a_ledger():
    """Catches a certificate that can be priced only if a ledger paid."""
    for delta in (None, 1e-6):
        result = expost.count(TABLE, by="g", user="u", keys=KEYS, epsilon=1, delta=delta)
        assert verify_certificate(result.certificate()) == []
        assert result.ledger is None


CHANGES: dict[str, Any] = {
    "cheaper": lambda d: d["spent"].update(epsilon=d["spent"]["epsilon"] / 2),
    "cheaper in two places": lambda d: (
        d["spent"].update(epsilon=d["spent"]["epsilon"] / 2),
        d["charged"].update(epsilon=d["spent"]["epsilon"]),
    ),
    "another outcome": lambda d: d.update(index=1),
    "a consistent cheaper outcome": lambda d: d.update(
        index=1,
        charged=Charges.from_dict(d["charges"])[1].as_dict(),
        spent={"epsilon": Charges.from_dict(d["charges"])[1].epsilon},
    ),
    "another rule": lambda d: d["charges"]["worst"].update(epsilon=0.5),
    "cheaper answers": lambda d: [each.update(spent=0.0) for each in d["answers"]],
    "dearer answers": lambda d: [each.update(spent=0.9) for each in d["unanswered"]],
    "fewer groups per user": lambda d: d.update(max_groups_per_user=1),
    "a smaller total": lambda d: (
        d["public"].update(total=0.9),
        d["worst_case"].update(epsilon=0.9),
    ),
    "another source": lambda d: d.update(source="another table"),
    "a smaller guarantee": lambda d: d["guarantee"].update(epsilon=0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_price_is_found(change, tmp_path):
    """Catches a certificate that says it was cheaper than its answers were."""
    _, result = counted("pure", tmp_path)
    document = copy.deepcopy(json.loads(json.dumps(result.certificate())))
    CHANGES[change](document)
    assert verify_certificate(document) != []


def test_an_outcome_that_was_not_priced_is_found(tmp_path):
    """Catches an index that counts from the end."""
    _, result = counted("whole", tmp_path)
    document = json.loads(json.dumps(result.certificate())) | {"index": -1}
    assert any("no such outcome" in problem for problem in verify_certificate(document))
