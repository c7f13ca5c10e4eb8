"""Certificates that were changed: refused with a reason, or shown as what they say; a charge above
its worst case is never accepted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from expost import Candidate, DiscreteLaplace, PureDP, Query, RandomDropping, tune
from expost.budget.ledger import Ledger
from expost.certificates.document import read_certificate
from expost.errors import InvalidRelease
from expost.privacy.guarantees import guarantee_from_dict
from expost.randomness.source import SimulationRandomness
from expost.selection.release import Release
from tests.fuzz.command import assert_refused, expost
from tests.fuzz.profiles import examples
from tests.fuzz.strategies import changed_json, damaged
from tests.tuning.jobs import clouds

CANDIDATES = [
    Candidate(DiscreteLaplace(Query(len), epsilon), {"epsilon": epsilon}, repeats=10)
    for epsilon in (0.05, 0.1)
]
RELEASE = RandomDropping(overhead=0.02).select(
    CANDIDATES, [1] * 10, randomness=SimulationRandomness(7), simulation=True
)
RECORD: dict[str, Any] = json.loads(RELEASE.to_json())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates") / "release.json"


@examples(70)
@given(record=changed_json(RECORD))
def test_changed_certificates(file: Path, record: Any) -> None:
    """Catches a traceback (nesting, halves of letters, whole numbers beyond floats), and two forms
    that say different things.
    """
    file.write_text(json.dumps(record), encoding="utf-8")
    done = expost("certificate", str(file), "--json")
    shown = expost("certificate", str(file))
    assert done.code == shown.code
    assert "\x1b" not in shown.text
    if done.code != 0:
        assert_refused(done)
        assert_refused(shown)
        return
    document = json.loads(done.out)
    assert guarantee_from_dict(document["spent"]) == Release.load(file).spent
    assert Release.load(file).spent <= Release.load(file).worst_case
    assert read_certificate(document) == read_certificate(file)  # what is shown is what is there


@pytest.fixture(scope="module")
def tuned() -> dict[str, Any]:
    """The certificate of a tuning job."""
    settings = {"feature_bounds": [0, 1], "classes": 2, "delta": 1e-4}
    result = tune(
        *clouds(),
        at_least=0.7,
        training="progressive",
        randomness=SimulationRandomness(3),
        simulation=True,
        **settings,
    )
    found: dict[str, Any] = json.loads(result.certificate())
    return found


@examples(15)
@given(choices=st.data())
def test_changed_tuning_certificates(
    file: Path, tuned: dict[str, Any], choices: st.DataObject
) -> None:
    """Catches a traceback while a job is shown in words or priced again."""
    file.write_text(json.dumps(choices.draw(changed_json(tuned))), encoding="utf-8")
    for words in (["certificate"], ["certificate", "show", "--verbose"], ["certificate", "verify"]):
        done = expost(*words, str(file))
        assert done.code in (0, 1, 2)
        assert "Traceback" not in done.text
        assert "\x1b" not in done.text


@examples(40)
@given(content=damaged(json.dumps(RECORD).encode()) | st.binary(max_size=40))
def test_damaged_certificates(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    done = expost("certificate", str(file), "--json")
    if done.code != 0:
        assert_refused(done)


@examples(40)
@given(
    epsilon=st.floats(0, 1e6, allow_nan=False),
    kind=st.sampled_from(["pure", "zcdp", "approx"]),
    relation=st.sampled_from(["add-remove", "replace"]),
)
def test_a_charge_that_cannot_be_is_refused(epsilon: float, kind: str, relation: str) -> None:
    """More than the worst case, another kind, another neighbouring relation. (A smaller charge is
    caught by the ledger, below.)
    """
    numbers = {
        "pure": {"epsilon": epsilon},
        "zcdp": {"rho": epsilon},
        "approx": {"epsilon": epsilon, "delta": 0.0},
    }[kind]
    record = {**RECORD, "spent": {"kind": kind, "neighbours": relation, **numbers}}
    if kind == "pure" and relation == "add-remove" and epsilon <= RELEASE.worst_case.epsilon:  # type: ignore[attr-defined]
        assert Release.from_json(json.dumps(record)).spent == PureDP(epsilon)
    else:
        with pytest.raises(InvalidRelease):
            Release.from_json(json.dumps(record))


@examples(20)
@given(epsilon=st.floats(0, 0.3, allow_nan=False))
def test_a_ledger_does_not_settle_a_tampered_charge(
    tmp_path_factory: pytest.TempPathFactory, epsilon: float
) -> None:
    """The reservation knows what each outcome costs: a certificate that says anything else settles
    nothing.
    """
    assume(epsilon != RELEASE.spent.epsilon)  # type: ignore[attr-defined]
    ledger = Ledger.create(tmp_path_factory.mktemp("tampered") / "ledger.db", PureDP(1))
    held = ledger.reserve(RandomDropping(overhead=0.02).charges(CANDIDATES))
    record = {**RECORD, "spent": PureDP(epsilon).as_dict(), "worst_case": PureDP(0.3).as_dict()}
    with pytest.raises(ValueError, match="another charge"):
        ledger.settle(held, Release.from_json(json.dumps(record)))
    assert ledger.status_of(held) == "open"
    assert ledger.settle(held, RELEASE) == RELEASE.spent
