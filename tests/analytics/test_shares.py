"""How a request shares its budget: the parts add up to the total, each at its own sensitivity."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

import expost
from expost.analytics.cap_ladder import MOST_SHARE
from expost.analytics.contribution import Measure
from expost.analytics.private_keys import KeySelection, gaussian_threshold, laplace_threshold
from expost.analytics.refinement_noise import GaussianLevels, LaplaceLevels
from expost.analytics.request import check_request
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.randomness.source import SimulationRandomness


def request(**more):
    asked = {"by": "g", "user": "u", "epsilon": 1.0, **more}
    return check_request("rows.csv", asked, open_table=False)


@pytest.mark.parametrize(
    "more",
    [
        {"keys": ["a", "b", "c"]},
        {"keys": ["a", "b", "c"], "max_groups_per_user": 2},
        {"keys": ["a", "b", "c"], "max_groups_per_user": "auto"},
        {"keys": ["a", "b", "c"], "max_groups_per_user": "auto", "delta": 1e-6},
        {"private_keys": True, "delta": 1e-6},
        {"private_keys": True, "delta": 1e-6, "max_groups_per_user": "auto"},
    ],
)
def test_the_parts_add_up_to_the_total(more):
    """What is spent on m, on groups and on the share of dropped pairs is not spent on values."""
    asked = request(**more)
    cap = 2 if asked.cap == "auto" else asked.cap
    parts = asked.cost_of_cap() + asked.cost_of_keys() + asked.cost_of_dropped(cap)
    assert (asked.cost_of_keys() > 0) == ("private_keys" in more)
    assert (asked.cost_of_cap() > 0) == (more.get("max_groups_per_user") == "auto")
    assert asked.counting_total(cap) + parts == asked.total


@pytest.mark.parametrize("kind", ["rows", "sum", "mean"])
def test_the_choice_of_rows_and_the_share_are_part_of_the_total(kind):
    """3 % for each choice; for what the caps remove 5 % of a mean, else up to 20 %.

    Rows and sums without any cap have one on all groups together, and its ladder of looks.
    """
    options = {"kind": kind, "column": "v", "bounds": (0, 5)}
    if kind == "rows":
        options = {"count_rows": True}
    options |= {"keys": ["a", "b", "c"], "epsilon": 1}
    chosen = request(max_groups_per_user="auto", max_rows_per_user="auto", **options).with_rows(4)
    if kind == "mean":
        assert chosen.counting_total(2) == Fraction(89, 100)
        assert chosen.cost_of_rows() == chosen.cost_of_cap() == Fraction(3, 100)
    else:
        assert chosen.counting_total(2) == 1 - MOST_SHARE
        assert (chosen.cost_of_rows(), chosen.cost_of_cap()) == (MOST_SHARE, 0)
    stated = request(max_groups_per_user=2, max_rows_per_user="auto", **options).with_rows(4)
    assert stated.counting_total(2) == Fraction(92 if kind == "mean" else 77, 100)
    assert (stated.cost_of_rows(), stated.cost_of_cap()) == (Fraction(3, 100), 0)
    one = request(one_row_per_user=True, **options)
    assert (one.measure.rows, one.counting_total(1)) == (1, 1)


def test_delta_is_shared_by_the_noise_and_the_groups():
    """Half of δ for the conversion of ρ, half for a group of one person."""
    asked = request(private_keys=True, delta=1e-6)
    assert asked.total == Fraction(gaussian_for(1.0, 5e-7).rho)
    assert asked.selection(10).delta == 5e-7
    assert request(keys=["a"], delta=1e-6).total == Fraction(gaussian_for(1.0, 1e-6).rho)


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_groups_are_found_with_noise_for_all_groups_of_a_user(noise, most):
    """The frequency with which a group of one person is found, far above a δ that is too small."""
    cost, delta = 0.02, 0.3
    threshold = {"laplace": laplace_threshold, "gaussian": gaussian_threshold}[noise]
    selection = KeySelection(noise, cost, delta, most, threshold(cost, delta, most))
    found = selection.select(np.ones(40_000, dtype=np.int64), SimulationRandomness(5)).mean()
    alone = 1 - (1 - delta) ** (1 / most)  # so that any of m groups is found with probability δ
    assert alone / 4 < found < alone * 1.05


@pytest.mark.parametrize("sensitivity", [1, 6])
def test_levels_have_noise_for_their_sensitivity(sensitivity):
    """Variances against the formulas: 2·(Δ/ε)² and Δ²/(2ρ), at every level."""
    zeros = np.zeros(20_000, dtype=np.int64)
    costs = (0.1, 0.4)
    wanted = {
        LaplaceLevels: [2 * (sensitivity / cost) ** 2 for cost in costs],
        GaussianLevels: [sensitivity**2 / (2 * cost) for cost in costs],
    }
    for kind, variances in wanted.items():
        made = kind(costs, sensitivity).estimates(zeros, SimulationRandomness(7))
        assert made.var(axis=1) == pytest.approx(variances, rel=0.08)


def test_the_sensitivity_of_a_measure():
    assert Measure("sum", "v", 3, Fraction(1), -5, 2).sensitivity == 15
    assert Measure("sum", "v", 3, Fraction(1), -2, 5).sensitivity == 15
    assert Measure("mean", "v", 3, Fraction(1), -2, 5).sensitivity == 21
    assert Measure("rows", rows=4).sensitivity == 4


ROWS = pa.table({"u": [1, 1, 2, 2, 3], "g": ["a", "b", "a", "a", "b"], "v": [1, 2, 3, 4, 5]})
ASKED = {"by": "g", "user": "u", "keys": ["a", "b"], "epsilon": 1e4}
ASKED |= {"plus_minus": 0.4, "confidence": 1 - 1e-9}  # rounding gives the true count


class TestOneRowPerUser:
    """A declaration that saves the share of dropped pairs; the caps hold all the same."""

    def test_nothing_is_paid_for_the_share(self):
        asked = request(keys=["a", "b", "c"], one_row_per_user=True)
        assert asked.cap == 1
        assert asked.cost_of_dropped(1) == 0
        assert asked.counting_total(1) == asked.total

    def test_a_wrong_declaration_changes_no_bound(self):
        """A user with rows in two groups counts in one. Catches a cap that is left out."""
        found = expost.count(ROWS, one_row_per_user=True, **ASKED)
        assert sum(round(answer.estimate) for answer in found.answers) == 3
        assert found.max_groups_per_user == 1
        assert found.dropped_share is None
        assert found.public["max_groups_per_user"] == "declared: one row per user"
        rows = expost.count(ROWS, count_rows=True, one_row_per_user=True, **ASKED)
        assert sum(round(answer.estimate) for answer in rows.answers) == 3
        assert rows.public["max_rows_per_user"] == 1
        assert verify_certificate(rows.certificate()) == []

    @pytest.mark.parametrize(
        "more",
        [{"max_groups_per_user": 2}, {"max_groups_per_user": "auto"}, {"max_rows_per_user": 2}],
    )
    def test_other_caps_contradict_it(self, more):
        with pytest.raises(InvalidInput, match="with one row per user it is 1"):
            expost.sum(ROWS, "v", bounds=(0, 5), one_row_per_user=True, **(ASKED | more))


class TestNearlyAllGroups:
    """A cap that keeps at least four fifths of the listed groups becomes all of them."""

    KEYS = tuple("abcdefghijkl")

    @pytest.mark.parametrize(("cap", "widened"), [(12, 12), (11, 12), (10, 12), (9, 9), (1, 1)])
    def test_a_cap_of_persons(self, cap, widened):
        asked = request(keys=self.KEYS, max_groups_per_user="auto")
        assert asked.widened(cap, asked.caps_that_fit()) == widened
        assert bool(asked.cost_of_dropped(asked.widened(cap, range(1, 13)))) == (widened < 12)

    def test_only_where_all_groups_fit(self):
        """At a small ε the noise of twelve groups may be too much for a first look."""
        asked = request(keys=self.KEYS, max_groups_per_user="auto")
        assert asked.widened(11, range(1, 12)) == 11

    def test_rows_have_another_cap_whose_share_is_bought_all_the_same(self):
        asked = request(keys=self.KEYS, max_groups_per_user="auto", count_rows=True)
        assert asked.widened(11, range(1, 13)) == 11

    def test_groups_that_are_not_listed_have_no_number(self):
        asked = request(private_keys=True, delta=1e-6, max_groups_per_user="auto")
        assert asked.widened(11, range(1, 13)) == 11

    def test_months_are_answered(self):
        """3,000 persons with visits in 4 of 12 months on average, at ε = 2 and 5 %: all of 10 runs.

        4 of them gave up before, with most of ε left, because the share was not known well enough.
        """
        generator = np.random.default_rng(7)
        users = np.repeat(np.arange(3000), np.minimum(generator.geometric(1 / 6, 3000), 60))
        months = pa.array([self.KEYS[month] for month in generator.integers(0, 12, len(users))])
        table = pa.table({"u": users, "g": months})
        asked = {"by": "g", "user": "u", "keys": self.KEYS, "epsilon": 2.0, "within": 0.05}
        for seed in range(10):
            found = expost.count(
                table,
                **asked,
                max_groups_per_user="auto",
                simulation=True,
                randomness=SimulationRandomness(seed),
            )
            assert len(found.answers) == 12
            assert verify_certificate(found.certificate()) == []
