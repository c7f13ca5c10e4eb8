"""Charging through :class:`expost.budget.charging.Account`: reserve, run, settle.

The ledger here is a SQLite file; that PostgreSQL behaves alike is tested in ``test_ledger.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from expost import NOTHING, ZCDP, Candidate, Charges, PureDP, RandomDropping
from expost.budget.charging import Account
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import digest
from expost.errors import BudgetRefused, InvalidGuarantee, InvalidInput, LedgerError
from expost.privacy.guarantees import Guarantee

CHARGES = Charges.from_list([PureDP(0.5), PureDP(0.25), PureDP(1.0)], PureDP(0.125))


class Stop(Exception):
    """Raised by a test inside the block."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(2), "visits", caps={"ann": PureDP(1)})


def amounts(ledger: Ledger, analyst: str = "") -> tuple[object, object]:
    """Settled and held."""
    facts = ledger.standing("visits", analyst).as_dict()
    return facts["settled"], facts["held"]


def actions(ledger: Ledger) -> list[str]:
    return [entry.action for entry in ledger.entries()]


def refuse_to_run() -> None:
    pytest.fail("the block ran although the request was refused")


# Settling.


@pytest.mark.parametrize(
    ("outcome", "charge"), [(0, 0.5), (1, 0.25), (2, 1.0), (None, 0.125), (NOTHING, 0.125)]
)
def test_the_charge_of_the_outcome_is_settled(ledger, outcome, charge):
    """Catches a hold that is not the worst case, and an outcome that is charged as another."""
    with Account(ledger).reserve(CHARGES) as reserved:
        assert amounts(ledger) == (0.0, 1.0)  # recorded before the block runs
        assert not reserved.already_settled
        reserved.settle(outcome)
        assert reserved.already_settled
    assert amounts(ledger) == (charge, 0.0)
    assert ledger.verify() == []


def test_a_release_settles_what_it_spent(ledger):
    """Catches a release and a ledger that disagree."""
    candidates = [Candidate(lambda data, randomness: 1.0, guarantee=PureDP(0.25))]
    selector = RandomDropping(overhead=0.25)
    with Account(ledger).reserve(selector.charges(candidates)) as reserved:
        release = selector.select(candidates, None)
        reserved.settle(release)
    assert amounts(ledger) == (release.spent.epsilon, 0.0)


def test_settling_twice(ledger):
    """Catches a second charge for one request, and an outcome that can be changed later."""
    with Account(ledger).reserve(CHARGES) as reserved:
        reserved.settle(1)
        reserved.settle(1)
        with pytest.raises(LedgerError, match="settled already"):
            reserved.settle(0)
    assert amounts(ledger) == (0.25, 0.0)


def test_what_is_recorded_about_a_request(ledger):
    """Catches an analyst, a memo or a budget that is lost on the way to the ledger."""
    ledger.add_budget("income", PureDP(2))
    account = Account(ledger, "visits", "ann", "weekly count")
    with account.reserve(CHARGES, reservation_id="week 1") as reserved:
        reserved.settle(0)
    entry = next(each for each in ledger.entries() if each.action == "reserve")
    assert (entry.budget, entry.analyst, entry.memo, entry.reservation) == (
        "visits",
        "ann",
        "weekly count",
        "week 1",
    )
    assert amounts(ledger, "ann") == (0.5, 0.0)
    assert ledger.remaining("income") == 2.0


# Blocks that are left without settling.


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_leaves_the_worst_case_charged(ledger, error):
    """Catches a refund for a run that failed: its outputs may have been seen."""
    with pytest.raises(error), Account(ledger).reserve(CHARGES):
        raise error
    assert amounts(ledger) == (0.0, 1.0)
    assert [job.worst_case for job in ledger.open_reservations()] == [PureDP(1.0)]
    assert actions(ledger).count("reserve") == 1
    assert "settle" not in actions(ledger)


def test_a_block_that_forgets_to_settle_leaves_the_worst_case_charged(ledger):
    """Catches a context manager that settles or refunds by itself."""
    with Account(ledger).reserve(CHARGES):
        pass
    assert amounts(ledger) == (0.0, 1.0)


def test_an_exception_after_settling_changes_nothing(ledger):
    """Catches a context manager that charges the worst case on top of a settled request."""

    def settle_and_fail() -> None:
        with Account(ledger).reserve(CHARGES) as reserved:
            reserved.settle(1)
            raise Stop

    with pytest.raises(Stop):
        settle_and_fail()
    assert amounts(ledger) == (0.25, 0.0)


def test_an_outcome_that_cannot_be_leaves_the_worst_case_charged(ledger):
    """Catches a failed settlement that frees the reservation."""
    with pytest.raises(InvalidInput, match="outcome"), Account(ledger).reserve(CHARGES) as reserved:
        reserved.settle(3)
    assert amounts(ledger) == (0.0, 1.0)


# Refusals.


@pytest.mark.parametrize(
    ("charges", "error"),
    [
        (Charges.from_list([PureDP(2.5)], PureDP(0.0)), BudgetRefused),
        (Charges.from_list([ZCDP(0.1)], ZCDP(0.0)), InvalidGuarantee),
        (Charges.from_list([PureDP(0.1, "replace")], PureDP(0.0, "replace")), InvalidGuarantee),
    ],
    ids=["too large", "another kind", "another relation"],
)
def test_a_refusal_calls_back_once_and_changes_nothing(ledger, charges, error):
    """Catches a refused request that runs, is recorded, or is reported twice or not at all."""
    before, calls = list(ledger.entries()), []
    with (
        pytest.raises(error),
        Account(ledger).reserve(charges, on_refusal=lambda: calls.append("refused")),
    ):
        refuse_to_run()
    assert calls == ["refused"]
    assert list(ledger.entries()) == before
    assert amounts(ledger) == (0.0, 0.0)


def test_a_refusal_without_a_callback(ledger):
    """Catches a refusal that is hidden by the missing callback."""
    with (
        pytest.raises(BudgetRefused),
        Account(ledger).reserve(Charges.from_list([PureDP(3)], PureDP(0))),
    ):
        refuse_to_run()
    assert amounts(ledger) == (0.0, 0.0)


def test_a_cap_refuses_too(ledger):
    """Catches an analyst who is not passed on: the budget alone would admit this request."""
    charges = Charges.from_list([PureDP(1.5)], PureDP(0.0))
    with (
        pytest.raises(BudgetRefused, match="cap of ann"),
        Account(ledger, analyst="ann").reserve(charges),
    ):
        refuse_to_run()
    assert amounts(ledger) == (0.0, 0.0)


def test_errors_inside_the_block_are_no_refusals(ledger):
    """Catches a callback that discards a checkpoint although the request was recorded."""
    calls = []
    for error in (BudgetRefused("other", 1, 0, 0), InvalidInput("score", 1, "give another")):
        with (
            pytest.raises(type(error)),
            Account(ledger).reserve(
                CHARGES,
                reservation_id="one",
                secret="hush",
                on_refusal=lambda: calls.append("refused"),
            ),
        ):
            raise error
    assert calls == []
    assert amounts(ledger) == (0.0, 1.0)


class LostConnection:
    """A ledger whose connection is lost during a commit: nobody knows what was recorded."""

    identity = "lost"

    def reserve(self, *_: object, **__: object) -> None:
        raise LedgerError("the connection to the ledger was lost during a commit")

    def settle(self, reservation: object, outcome: object) -> Guarantee:
        raise AssertionError("nothing was reserved")

    def status_of(self, reservation: object) -> str:
        raise AssertionError("nothing was reserved")

    def kind_of(self, budget: str | None = None) -> str:
        return "pure"


def test_an_unknown_result_is_no_refusal():
    """Catches a callback after an error that does not prove that nothing was recorded."""
    calls = []
    with (
        pytest.raises(LedgerError, match="lost"),
        Account(LostConnection()).reserve(CHARGES, on_refusal=lambda: calls.append("refused")),
    ):
        refuse_to_run()
    assert calls == []


# Resuming.


def test_a_resumed_reservation_is_recognised(ledger):
    """Catches a second charge for a selection that is resumed, before or after it was settled."""
    account = Account(ledger, "visits", memo="weekly count")
    mine = {"reservation_id": "week 1", "secret": "hush"}
    with pytest.raises(Stop), account.reserve(CHARGES, **mine):
        raise Stop
    again = Account(Ledger.open(ledger._store.location.file), "visits", memo="weekly count")
    with again.reserve(CHARGES, **mine) as reserved:
        assert not reserved.already_settled
        assert amounts(ledger) == (0.0, 1.0)
        reserved.settle(1)
    with account.reserve(CHARGES, **mine) as reserved:
        assert reserved.already_settled
    for secret in (None, "guess"):
        with (
            pytest.raises(LedgerError),
            account.reserve(CHARGES, reservation_id="week 1", secret=secret),
        ):
            refuse_to_run()
    assert amounts(ledger) == (0.25, 0.0)
    assert actions(ledger).count("reserve") == actions(ledger).count("settle") == 1


def test_a_resumed_reservation_needs_no_room(ledger):
    """Catches a selection that cannot be resumed because its own worst case fills the budget."""
    charges = Charges.from_list([PureDP(2)], PureDP(0))
    for _ in range(2):
        with Account(ledger).reserve(charges, reservation_id="all", secret="hush"):
            pass
    assert amounts(ledger) == (0.0, 2.0)


def test_another_request_under_the_same_id(ledger):
    """Catches an id that lets one request run at the price of another; it is no refusal."""
    calls = []
    with Account(ledger).reserve(CHARGES, reservation_id="one"):
        pass
    with (
        pytest.raises(LedgerError, match="another request"),
        Account(ledger).reserve(
            Charges.from_list([PureDP(0.5)], PureDP(0)),
            reservation_id="one",
            on_refusal=lambda: calls.append("refused"),
        ),
    ):
        refuse_to_run()
    assert calls == []


def test_without_an_id_every_request_is_charged(ledger):
    """Catches two requests that share one reservation."""
    for _ in range(2):
        with Account(ledger).reserve(CHARGES):
            pass
    assert amounts(ledger) == (0.0, 2.0)


def test_an_abandoned_reservation_cannot_be_resumed(ledger):
    """Catches a request that runs although its reservation was given up."""
    with Account(ledger).reserve(CHARGES, reservation_id="one"):
        pass
    ledger.abandon("one")
    with (
        pytest.raises(LedgerError, match="abandoned"),
        Account(ledger).reserve(CHARGES, reservation_id="one"),
    ):
        refuse_to_run()
    assert amounts(ledger) == (1.0, 0.0)


def test_one_key_does_not_pay_for_many_jobs(ledger):
    """Catches a reservation id under which any number of jobs run for one charge."""
    charges, runs = Charges.from_list([PureDP(2)], PureDP(2)), []
    for secret in (None, None, "hush", "hush"):
        try:
            with Account(ledger).reserve(
                charges, reservation_id="nightly", secret=secret
            ) as reserved:
                runs.append(reserved)
                reserved.settle(0)
        except LedgerError:
            continue
    assert len(runs) == 1
    assert ledger.remaining() == 0.0


# Evidence.


def test_evidence_names_the_entry(ledger):
    """Catches a certificate from which the ledger's entry cannot be found."""
    with Account(ledger, analyst="ann").reserve(CHARGES, source={"file": "a.csv"}) as reserved:
        evidence = reserved.evidence()
        reserved.settle(0, release={"value": 1, "ledger": evidence})
    _, _, reserve, settle = ledger.entries()
    assert evidence == {
        "ledger": ledger.identity,
        "budget": "visits",
        "analyst": "ann",
        "reservation": reserve.reservation,
        "date": reserve.time[:10],
    }
    assert "source" in reserve.facts
    assert settle.facts["release"] == digest({"value": 1, "ledger": evidence})
    with Account().reserve(CHARGES) as reserved:
        assert reserved.evidence() is None


# Without a ledger, and simulations.


def test_without_a_ledger_nothing_happens(tmp_path, monkeypatch):
    """Catches a ledger that is made by itself, or a request that needs one."""
    monkeypatch.chdir(tmp_path)
    account = Account()
    account.check_simulation(True)
    with account.reserve(CHARGES, reservation_id="one", on_refusal=refuse_to_run) as reserved:
        assert not reserved.already_settled
        reserved.settle(0)
        reserved.settle("not an outcome")  # nothing looks at it
        assert not reserved.already_settled
    with pytest.raises(Stop), account.reserve(CHARGES):
        raise Stop
    assert account.identity is None
    assert list(tmp_path.iterdir()) == []


def test_simulations_are_refused(ledger):
    """Catches a charge for a release without a guarantee; real requests pass the same check."""
    account = Account(ledger)
    with pytest.raises(InvalidInput, match="simulation"):
        account.check_simulation(True)
    account.check_simulation(False)
    assert amounts(ledger) == (0.0, 0.0)


def test_accounts_can_be_told_apart(ledger, tmp_path):
    """Catches a checkpoint that is resumed on another ledger, budget or analyst."""
    other = Ledger.create(tmp_path / "other.db", PureDP(2), "visits")
    accounts = [
        Account(ledger, "visits"),
        Account(other, "visits"),
        Account(ledger),
        Account(ledger, "visits", "ann"),
    ]
    identities = [account.identity for account in accounts]
    assert all(a != b for i, a in enumerate(identities) for b in identities[:i])
    assert Account(ledger, "visits", memo="another note").identity == accounts[0].identity
