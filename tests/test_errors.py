"""Error messages are plain text: they name the field, what was given and what is valid."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from expost import DiscreteLaplace, PureDP, Query, errors
from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget
from expost.budget.limits import Filter
from expost.errors import (
    BudgetRefused,
    ExpostError,
    InvalidCandidate,
    InvalidGuarantee,
    InvalidInput,
    InvalidRelease,
    MissingExtra,
    WorkersLost,
)


@pytest.mark.parametrize(
    "error", [InvalidInput, InvalidGuarantee, InvalidCandidate, InvalidRelease]
)
def test_a_missing_value_is_called_required(error: type[InvalidInput]) -> None:
    """Would catch "epsilon = None is not valid"."""
    message = str(error("epsilon", None, "give a number > 0"))
    assert message == "epsilon is required: give a number > 0"


def test_the_constructors_say_what_is_required() -> None:
    """Would catch a check that runs into None before the message is made."""
    with pytest.raises(InvalidGuarantee, match=r"^epsilon is required: give a finite real number$"):
        PureDP(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^epsilon is required: give a number > 0$"):
        DiscreteLaplace(Query(len), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"),
        (0.1, "0.1"),
        (True, "True"),
        ("blue", "'blue'"),
        (Fraction(1, 2), "0.5"),
        (Fraction(-3), "-3"),
        (Fraction(1, 3), "0.333333333333"),
        (Fraction(1, 10**400), "1e-400"),
        (Decimal("0.25"), "0.25"),
        (Decimal("1E-9"), "1e-9"),
        (Decimal("NaN"), "NaN"),
        (np.float64(0.5), "0.5"),
        (np.int64(-2), "-2"),
        ([Fraction(1, 2), 2], "[0.5, 2]"),
        ((np.float64(0.5), None), "(0.5, None)"),
        ({}, "a mapping with 0 entries"),
        ({"rate": "secret"}, "a mapping with 1 entry"),
        (OrderedDict(a=1, b=2), "a mapping with 2 entries"),
        ([{"rate": "secret"}], "[a mapping with 1 entry]"),
        (np.zeros((3, 2)), "an array of shape (3, 2)"),
    ],
)
def test_values_are_shown_as_people_write_them(value: Any, shown: str) -> None:
    """Would catch Fraction(1, 2), Decimal('0.25'), np.float64(0.5), a Python dict or an array."""
    error = InvalidInput("field", value, "give something else")
    assert str(error) == f"field = {shown} is not valid: give something else"
    assert (error.field, error.value, error.valid) == ("field", value, "give something else") or (
        isinstance(value, (np.ndarray, Decimal)) and error.value is value
    )


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_values_that_cannot_be_shown_are_named_by_type() -> None:
    """Would catch an error that is raised while an error is made, and messages without an end."""
    assert str(InvalidInput("x", Unprintable(), "…")) == "x = Unprintable is not valid: …"
    assert str(InvalidInput("x", [-(10**5000)], "…")) == "x = list is not valid: …"
    assert len(str(InvalidInput("x", "a" * 1000, "…"))) < 120
    endless: list[Any] = []
    endless.append(endless)
    assert str(InvalidInput("x", endless, "…")) == "x = list is not valid: …"


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0.5, "0.5"),
        (2.0, "2"),
        (1e-06, "1e-6"),
        (1.5e300, "1.5e300"),
        (Fraction(1, 4), "0.25"),
        ("nothing", "nothing"),
        ({"epsilon": 0.5, "delta": 1e-06}, "epsilon 0.5, delta 1e-6"),
        ({"orders": [2.0, 4.0], "epsilons": [1.0, 2.5]}, "epsilon 1 at order 2, 2.5 at order 4"),
        (
            {"orders": [2.0, 3.0, 4.0, 5.0, 6.0], "epsilons": [0.1, 0.2, 0.3, 0.4, 0.5]},
            "epsilon 0.1 at order 2, 0.2 at order 3, …, 0.5 at order 6 (5 orders)",
        ),
    ],
)
def test_a_refusal_shows_amounts_as_text(amount: Any, shown: str) -> None:
    """Would catch a Python dict in the message; the attributes keep the amounts as they were."""
    error = BudgetRefused("visits", amount, amount, amount)
    assert str(error) == (
        f"budget 'visits' refuses the request: requested {shown}; remaining {shown}; "
        f"held by running jobs {shown}; nothing was charged. Ask for less, or ask the owner of the "
        "budget to raise it"
    )
    assert (error.requested, error.remaining, error.held) == (amount, amount, amount)


def test_a_refusal_never_looks_as_if_it_fitted() -> None:
    """Six digits: what remains is rounded down, what was requested up."""
    message = str(BudgetRefused("visits", 0.7132989629619999, 0.7132989629619998, 0.0))
    assert "requested 0.713299; remaining 0.713298; held by running jobs 0;" in message


@pytest.mark.parametrize(
    "budget", [PureBudget(1), ApproxBudget(1, 1e-6), RenyiBudget((2, 4, 8, 16, 32), (1,) * 5)]
)
def test_no_budget_refuses_with_a_dict(budget: Any) -> None:
    state = Filter.empty(budget, "visits").reserve(budget.limits)
    with pytest.raises(BudgetRefused) as refused:
        state.reserve(budget.limits)
    assert not set("{}[]") & set(str(refused.value))


def test_a_missing_extra_names_the_command() -> None:
    """Would catch a message without the package, the extra or the reason."""
    plain = MissingExtra("ray", "ray")
    assert str(plain) == "ray is not installed; run: pip install 'expost[ray]'"
    reasoned = MissingExtra("numba", "sklearn", "training on the CPU")
    assert str(reasoned) == (
        "numba is not installed (needed for training on the CPU); "
        "run: pip install 'expost[sklearn]'"
    )
    assert (reasoned.package, reasoned.extra) == ("numba", "sklearn")
    assert isinstance(reasoned, ImportError)


def test_lost_workers_say_how_to_continue() -> None:
    message = str(WorkersLost(3, "ConnectionError"))
    for words in ("3 times", "ConnectionError", "nothing was released", "checkpoint", "charged"):
        assert words in message


def test_one_base_class_catches_all() -> None:
    for error in (InvalidInput, BudgetRefused, WorkersLost, MissingExtra):
        assert issubclass(error, ExpostError)


SAMPLES: dict[str, ExpostError] = {
    "BudgetRefused": BudgetRefused("visits", {"epsilon": 0.5, "delta": 1e-6}, 0.25, 0.0),
    "CheckpointMismatch": errors.CheckpointMismatch("another selection"),
    "ExpostError": ExpostError("something"),
    "InvalidCandidate": InvalidCandidate("repeats", -1, "give a number > 0"),
    "InvalidGuarantee": InvalidGuarantee("epsilon", Fraction(1, 3), "give a number"),
    "InvalidInput": InvalidInput("orders", (2, np.float64(0.5), [None]), "give orders"),
    "InvalidRelease": InvalidRelease("certificate", "the file", "not JSON"),
    "LedgerError": errors.LedgerError("the ledger is damaged"),
    "MissingExtra": MissingExtra("numba", "sklearn", "training on the CPU"),
    "SimulationOnly": errors.SimulationOnly("seeded"),
    "WorkersLost": WorkersLost(3, "ConnectionError"),
}
COPIES = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "oldest pickle": lambda error: pickle.loads(pickle.dumps(error, 0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def test_every_error_is_sampled() -> None:
    assert set(SAMPLES) == set(errors.__all__)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", SAMPLES)
def test_errors_survive_copies(name: str, how: str) -> None:
    """Would catch an error that a worker process cannot send: it would hang or lose its kind."""
    error = SAMPLES[name]
    error.add_note("while counting")
    found = COPIES[how](error)
    assert type(found) is type(error)
    assert (str(found), found.args) == (str(error), error.args)
    assert vars(found) == vars(error)
    if isinstance(error, ImportError):
        assert found.msg == error.msg
    with pytest.raises(type(error)) as caught:
        raise found
    assert str(caught.value) == str(error)


@pytest.mark.parametrize("how", COPIES)
def test_values_that_cannot_be_pickled_become_text(how: str) -> None:
    """Would catch an error that cannot be sent because of the value it quotes."""
    error = InvalidInput("score", lambda: None, "give a number")
    found = COPIES[how](error)
    assert str(found) == str(error)
    assert isinstance(found.value, str)
    assert "lambda" in found.value
