"""``expost.count`` around the job.

Any table gives the same counts; the ledger is charged before data is read, and never too little.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest

import expost
from expost import ZCDP, ApproxDP, PureDP, SimulationRandomness
from expost.analytics import query
from expost.analytics.refinement import Answer
from expost.analytics.request import check_request
from expost.budget.budgets import RenyiBudget
from expost.budget.ledger import Ledger
from expost.budget.limits import amount_of
from expost.errors import BudgetRefused, InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.rationals import round_up

SIZES = {"one": 1200, "two": 800, "three": 37, "none": 0}
USERS = [place for size in SIZES.values() for place in range(size)]
GROUPS = [group for group, size in SIZES.items() for _ in range(size)]
EXACT = {"plus_minus": 0.4, "confidence": 1 - 1e-9}  # rounding gives the true count
HUGE = 1e7  # ε for which the chance of any noise at all is below e^{−10⁵}


def tables() -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rows = {"who": USERS * 2, "where": GROUPS * 2}  # every row twice: persons count, not rows
    return {
        "pandas": pandas.DataFrame(rows),
        "polars": polars.DataFrame(rows),
        "pyarrow": pa.table(rows),
        "ibis": ibis.memtable(rows),
        "records": [
            {"who": who, "where": where} for who, where in zip(*rows.values(), strict=True)
        ],
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "ibis", "records"])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_every_kind_of_table_gives_the_true_counts(kind, delta):
    """With next to no noise; catches rows counted instead of persons, and columns mixed up."""
    result = expost.count(
        tables()[kind], by="where", user="who", keys=list(SIZES), epsilon=HUGE, delta=delta, **EXACT
    )
    assert {answer.group: round(answer.estimate) for answer in result.answers} == SIZES


@pytest.mark.parametrize("order", ["race", "given"])
def test_a_mapping_gives_the_true_counts(order):
    result = expost.count(SIZES, keys=list(SIZES), epsilon=HUGE, group_order=order, **EXACT)
    assert {answer.group: round(answer.estimate) for answer in result.answers} == SIZES


def test_private_keys_find_the_large_groups():
    """At a large ε the selection is certain.

    The empty group is unknown to it, and one person alone never shows up.
    """
    rows = {"u": [*USERS, 1], "g": [*GROUPS, "only one person"]}
    result = expost.count(
        pa.table(rows), by="g", user="u", private_keys=True, epsilon=200, delta=1e-6
    )
    assert {answer.group for answer in (*result.answers, *result.unanswered)} == {
        "one",
        "two",
        "three",
    }
    assert result.keys["delta"] == 5e-7
    assert result.keys["threshold"] < 20
    assert result.guarantee == ApproxDP(200.0, 1e-6)


def test_private_keys_that_find_nothing_give_nothing():
    """Catches a job that trips over an empty list of groups."""
    result = expost.count(
        pa.table({"u": [1], "g": ["a"]}), by="g", user="u", private_keys=True, epsilon=1, delta=1e-6
    )
    assert (result.answers, result.unanswered) == ((), ())
    # Finding groups costs a tenth, and what the cap drops at most 20 %.
    assert 0 < result.spent < 0.3001 * gaussian_for(1, 5e-7).rho


def test_what_is_published_has_no_infinities_in_json():
    """A group nobody could look at has no estimate.

    JSON has no NaN. Here the cap leaves one look for the first of two groups.
    """
    result = expost.count(
        {"a": 5, "b": 5}, keys=["a", "b"], epsilon=1, max_group_epsilon=1, group_order="given"
    )
    for answer in result.as_dict()["unanswered"]:
        assert all(value is None or isinstance(value, (str, float)) for value in answer.values())
        assert not any(
            isinstance(value, float) and not np.isfinite(value) for value in answer.values()
        )


class Forbidden(Exception):
    """The table was counted."""


@ibis.udf.scalar.python
def never(user: int) -> int:
    raise Forbidden


def untouchable() -> Any:
    """A table that cannot be counted without a Forbidden inside the engine; opening it is fine."""
    connection = ibis.duckdb.connect()
    connection.raw_sql("CREATE TABLE t AS SELECT 1 AS u, 'a' AS g")
    table = connection.table("t")
    return table.mutate(u=never(table.u))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(10))


def settled(ledger: Ledger, budget: str | None = None) -> tuple[Fraction, ...]:
    return ledger.standing(budget).filter.settled


def held(ledger: Ledger, budget: str | None = None) -> tuple[Fraction, ...]:
    return ledger.standing(budget).filter.held


def actions(ledger: Ledger) -> list[str]:
    return [entry.action for entry in ledger.entries()]


class TestLedger:
    """Reserve the whole, read, settle at what was looked at."""

    def test_pure(self, ledger):
        """Catches a charge below what was spent, and one that does not give back the rest."""
        result = expost.count(SIZES, keys=list(SIZES), epsilon=4, ledger=ledger)
        (charged,) = settled(ledger)
        assert charged == amount_of(result.spent)
        assert held(ledger) == (0,)
        assert actions(ledger)[-2:] == ["reserve", "settle"]
        assert ledger.verify() == []

    def test_zcdp(self, tmp_path):
        """With δ in a zCDP budget: ρ of what was looked at."""
        total = gaussian_for(4, 1e-6).rho
        ledger = Ledger.create(tmp_path / "l.db", ZCDP(1))
        result = expost.count(SIZES, keys=list(SIZES), epsilon=4, delta=1e-6, ledger=ledger)
        (charged,) = settled(ledger)
        assert result.unit == "rho"
        assert charged == amount_of(result.spent) <= Fraction(total)
        assert held(ledger) == (0,)

    def test_renyi(self, tmp_path):
        ledger = Ledger.create(tmp_path / "l.db", RenyiBudget((2.0, 8.0), (10.0, 40.0)))
        result = expost.count(SIZES, keys=list(SIZES), epsilon=4, delta=1e-6, ledger=ledger)
        charged = settled(ledger)
        assert charged[0] >= 2 * Fraction(result.spent)
        assert charged[1] == 4 * charged[0]

    def test_approx(self, tmp_path):
        """With δ in an (ε, δ) budget: the whole, because a realised ρ has no (ε, δ) of its own."""
        ledger = Ledger.create(tmp_path / "l.db", ApproxDP(10, 1e-5))
        expost.count(SIZES, keys=list(SIZES), epsilon=4, delta=1e-6, ledger=ledger)
        assert settled(ledger) == (4, Fraction(1, 10**6))

    def test_pure_counts_in_an_approx_budget(self, tmp_path):
        ledger = Ledger.create(tmp_path / "l.db", ApproxDP(10, 1e-5))
        result = expost.count(SIZES, keys=list(SIZES), epsilon=4, ledger=ledger)
        assert result.spent == round_up(settled(ledger)[0]) <= 4
        assert settled(ledger)[1] == 0

    def test_private_keys(self, tmp_path):
        """The selection is part of the charge: the whole (ε, δ)."""
        ledger = Ledger.create(tmp_path / "l.db", ApproxDP(10, 1e-5))
        table = pa.table({"u": USERS, "g": GROUPS})
        expost.count(
            table, by="g", user="u", private_keys=True, epsilon=4, delta=1e-6, ledger=ledger
        )
        assert settled(ledger) == (4, Fraction(1, 10**6))

    @pytest.mark.parametrize(
        ("budget", "options"),
        [
            (PureDP(10), {"delta": 1e-6}),
            (ZCDP(10), {}),
            (ZCDP(10), {"delta": 1e-6, "keys": None, "private_keys": True}),
            (PureDP(10, "replace"), {}),
        ],
    )
    def test_budgets_that_cannot_add_the_charge_refuse_it(self, tmp_path, budget, options):
        """Catches a pure ex-post charge squared into zCDP, a δ dropped, and relations mixed.

        Nothing is read.
        """
        ledger = Ledger.create(tmp_path / "l.db", budget)
        with pytest.raises(InvalidInput):
            expost.count(
                untouchable(),
                by="g",
                user="u",
                **({"keys": ["a"], "epsilon": 1, "ledger": ledger} | options),
            )
        assert actions(ledger) == ["create"]

    def test_a_refused_budget_reads_no_data(self, ledger):
        """Catches counting first and asking later."""
        with pytest.raises(BudgetRefused):
            expost.count(untouchable(), by="g", user="u", keys=["a"], epsilon=11, ledger=ledger)
        assert (settled(ledger), held(ledger)) == ((0,), (0,))

    def test_a_failing_table_costs_nothing(self, ledger):
        """Reading went wrong before any look was released: settled at 0. Nor is a value shown."""
        with pytest.raises(InvalidInput, match="cannot be counted") as caught:
            expost.count(untouchable(), by="g", user="u", keys=["a"], epsilon=3, ledger=ledger)
        assert (settled(ledger), held(ledger)) == ((0,), (0,))
        assert ledger.open_reservations() == []
        assert actions(ledger)[-2:] == ["reserve", "settle"]
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize(
        "options",
        [
            {"by": "no such column"},
            {"user": "no such column"},
            {"by": None},
            {"keys": ["a", "a"]},
            {"ratio": 1},
            {"prior": {"a": "many"}},
            {"max_groups_per_user": 0},
            {"keys": None, "private_keys": True, "delta": 1e-6, "max_groups_per_user": 1.5},
            {"group_order": "backwards"},
            {"budget": "no such budget"},
        ],
    )
    def test_a_bad_request_charges_nothing(self, ledger, options):
        """Catches a mistake that is noticed only after the reservation."""
        table = untouchable()
        with pytest.raises(InvalidInput):
            expost.count(
                table,
                **(
                    {"by": "g", "user": "u", "keys": ["a"], "epsilon": 1, "ledger": ledger}
                    | options
                ),
            )
        assert actions(ledger) == ["create"]

    def test_an_interrupt_settles_what_was_looked_at(self, ledger):
        """Ctrl-C while an answer is published.

        Catches a reservation left open, and one settled at nothing.
        """
        heard = []

        def released(answer: Any, spent: float) -> None:
            heard.append((answer, spent))
            if len(heard) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            expost.count(SIZES, keys=list(SIZES), epsilon=4, ledger=ledger, released=released)
        (charged,) = settled(ledger)
        assert (
            sum(Fraction(answer.spent) for answer, _ in heard)
            <= Fraction(heard[-1][1])
            <= charged
            < 4
        )
        assert held(ledger) == (0,)

    def test_a_simulation_is_not_charged(self, ledger):
        with pytest.raises(InvalidInput, match="simulation"):
            expost.count(
                SIZES,
                keys=["one"],
                epsilon=1,
                ledger=ledger,
                randomness=SimulationRandomness(1),
                simulation=True,
            )

    def test_two_counts_add_up(self, ledger):
        """The second is refused when the first has left too little.

        Catches a ledger that is asked about the actual charge only.
        """
        first = expost.count(SIZES, keys=list(SIZES), epsilon=8, ledger=ledger)
        left = ledger.remaining()
        assert left <= 10 - first.spent
        with pytest.raises(BudgetRefused):
            expost.count(SIZES, keys=list(SIZES), epsilon=left * 1.01, ledger=ledger)
        expost.count(SIZES, keys=list(SIZES), epsilon=left, ledger=ledger)
        assert ledger.verify() == []


def test_released_hears_every_answer_in_order():
    """What is published as it is made is what is returned."""
    heard: list[tuple[Any, float]] = []
    result = expost.count(
        SIZES, keys=list(SIZES), epsilon=50, released=lambda *each: heard.append(each)
    )
    assert tuple(answer for answer, _ in heard) == result.answers
    assert [spent for _, spent in heard] == sorted(spent for _, spent in heard)
    assert heard[-1][1] <= result.spent


@pytest.mark.parametrize(("users", "ignored"), [([1, 2, 3], False), ([1, None, 3], True)])
def test_on_ignored_says_whether_and_no_more(users, ignored):
    heard: list[bool] = []
    table = pa.table({"u": users, "g": ["a", "a", "b"]})
    expost.count(table, by="g", user="u", keys=["a"], epsilon=1, on_ignored=heard.append)
    assert heard == [ignored]


def test_an_interval_below_0_ends_at_its_half_width():
    """Counts are never negative: [0, 0] would look like a number that is known exactly."""
    asked = {"kind": "count", "by": ["g"], "user": "u", "keys": ["a"], "epsilon": 1}
    request = check_request(pa.table({"u": ["1"], "g": ["a"]}), asked)
    noisy = Answer("a", -960.0, -1600.0, -320.0, 0.1)
    told = query.in_data_units(request, query.Progress(), noisy)
    assert (told.estimate, told.low, told.high) == (0.0, 0.0, 640 / request.finer)
    near = query.in_data_units(request, query.Progress(), replace(noisy, high=320.0))
    assert (near.low, near.high) == (0.0, 320 / request.finer)
