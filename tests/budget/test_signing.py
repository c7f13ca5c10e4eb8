"""Signatures.

Every change is found, and a ledger that was rolled back does not continue its head.
"""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from expost import PureDP
from expost.budget.ledger import Ledger
from expost.budget.signing import (
    SigningKey,
    head_problems,
    load_document,
    load_public,
    signature_problem,
    signed_head,
)
from expost.certificates.document import document_text
from expost.errors import InvalidInput

NOW = "2026-01-31T12:00:00+00:00"


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.create(tmp_path / "key")


def test_keys_are_kept(key, tmp_path):
    """Catches a private key that others can read, or that is replaced by mistake."""
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (
        SigningKey.load(tmp_path / "key").public == key.public == load_public(tmp_path / "key.pub")
    )
    secret = (tmp_path / "key").read_text().split()[-1]
    assert secret not in repr(key)
    assert secret not in (tmp_path / "key.pub").read_text()
    with pytest.raises(InvalidInput, match="written"):
        SigningKey.create(tmp_path / "key")
    for wrong in ("key.pub", "none"):
        with pytest.raises(InvalidInput):
            SigningKey.load(tmp_path / wrong)
    with pytest.raises(InvalidInput):
        load_public(tmp_path / "key")
    (tmp_path / "bad").write_bytes(b"ed25519 private \xff")
    with pytest.raises(InvalidInput):
        SigningKey.load(tmp_path / "bad")


@pytest.mark.parametrize("bit", range(9))
def test_keys_that_others_can_use_are_refused(key, tmp_path, bit):
    """Catches a private key that is used although others may have it, whichever bit says so."""
    file = tmp_path / "key"
    file.chmod(0o600 | 1 << bit)
    if not 1 << bit & 0o077:
        assert SigningKey.load(file).public == key.public
        return
    with pytest.raises(InvalidInput, match=f"mode is {0o600 | 1 << bit:03o}") as refused:
        SigningKey.load(file)
    assert str(file) in str(refused.value)
    assert "chmod 600 " in str(refused.value)


def test_every_change_breaks_the_signature(key):
    """Catches a field that is not signed."""
    document = {"spent": {"epsilon": 0.5}, "list": [1, {"a": None}], "text": "ε"}
    signed = key.sign(document)
    assert signature_problem(signed) is None
    assert signature_problem(signed, key.public) is None
    assert signature_problem(json.loads(json.dumps(signed, indent=3))) is None
    assert signature_problem(dict(reversed(signed.items()))) is None
    for change in (
        {"spent": {"epsilon": 0.25}},
        {"list": [1, {"a": 0}]},
        {"more": 1},
        {"text": "e"},
    ):
        assert signature_problem(signed | change) == "it was changed after it was signed"
    assert signature_problem(document) == "it is not signed"


def test_signatures_of_others(key, tmp_path):
    """Catches a document that its forger signed with a key of his own."""
    other = SigningKey.create(tmp_path / "other")
    forged = other.sign({"spent": 0})
    assert signature_problem(forged) is None  # by somebody
    assert "another key" in str(signature_problem(forged, key.public))
    lying = forged | {"signature": forged["signature"] | {"public_key": key.public}}
    assert signature_problem(lying, key.public) is not None
    assert signature_problem(lying) is not None


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "x",
        {},
        {"algorithm": "ed25519", "public_key": "zz", "value": "AA=="},
        {"algorithm": "rsa", "public_key": "00" * 32, "value": "AA=="},
        {"algorithm": "ed25519", "public_key": "00" * 32, "value": "AA=="},
        {"algorithm": "ed25519", "public_key": "00" * 32, "value": "A" * 86 + "=="},
    ],
)
def test_signatures_that_are_none(signature):
    """Catches a traceback over nonsense."""
    assert signature_problem({"signature": signature}) is not None


def test_a_ledger_continues_its_head(key, tmp_path):
    """Catches a rolled-back copy, a rewritten chain and another ledger; all of them verify."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.create(path, PureDP(10))
    ledger.reserve(PureDP(1))
    ledger._store.close()
    shutil.copy(path, tmp_path / "yesterday.db")
    ledger.reserve(PureDP(1))
    head = signed_head(ledger, key, NOW)
    ledger.reserve(PureDP(1))
    assert head_problems(ledger, head, key.public) == []

    rolled_back = Ledger.open(tmp_path / "yesterday.db")
    assert rolled_back.verify() == []
    assert "rolled back" in head_problems(rolled_back, head)[0]
    rolled_back.reserve(PureDP(0.125), "another history")
    assert rolled_back.verify() == []
    assert "replaced" in head_problems(rolled_back, head)[0]

    other = Ledger.create(tmp_path / "other.db", PureDP(10))
    assert "another ledger" in head_problems(other, head)[0]
    assert "changed" in head_problems(ledger, head | {"sequence": 1})[0]
    assert "not the head" in head_problems(ledger, key.sign({"kind": "letter"}))[0]


def test_documents_that_are_none(tmp_path):
    """Catches a traceback over a file that is not a JSON object."""
    for content in ("", "[1]", "[" * 100_000):
        (tmp_path / "file").write_text(content)
        with pytest.raises(InvalidInput):
            load_document(tmp_path / "file", "head")


def test_documents_as_text() -> None:
    """Catches text that reads as another document, or that is as long as an indented one."""
    small = {"a b": [1, {"c": 'line\n, "quoted", ε'}], "empty": {}, "none": None}
    assert document_text(small) == json.dumps(small, indent=2, ensure_ascii=False)
    large = {**small, "numbers": [0.1] * 10_000}
    assert json.loads(document_text(large)) == large
    assert len(document_text(large)) < 1.1 * len(json.dumps(large))
    with pytest.raises(ValueError, match="JSON"):
        document_text({"a": float("nan")})
