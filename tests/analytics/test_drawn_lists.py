"""Top lists that are drawn: the lemma about U, the law of the draw, the charge, the confidence.

Simulations have fixed seeds and reject at 1e-8; all else is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics.refinement import Refinement, make_job
from expost.analytics.refinement_goals import ListLaw, Wanted, draw_list, draws_list, top_rule
from expost.analytics.refinement_noise import (
    GaussianLevels,
    LaplaceLevels,
    NoiseLevels,
    joint_half_widths,
)
from expost.certificates.verify import verify_certificate
from tests.analytics import laws
from tests.analytics.test_refinement_goals import wrong


def qualities(values: tuple[int, ...], size: int) -> dict[tuple[int, ...], int]:
    """q of every list, from its definition."""
    lists = itertools.combinations(range(len(values)), size)
    return {
        listed: min(values[g] for g in listed)
        - max(values[g] for g in range(len(values)) if g not in listed)
        for listed in lists
    }


def clear_by(values: tuple[int, ...], size: int, odds: float) -> float:
    """U by bisection of its definition."""
    every = sorted(qualities(values, size).values(), reverse=True)
    low, high = 0.0, float(every[0] - every[1]) + 1
    for _ in range(80):
        u = (low + high) / 2
        whole = sum(math.exp(-odds * (every[0] - q) / (2 * u)) for q in every[1:])
        low, high = (u, high) if whole <= math.exp(-odds) else (low, u)
    return low


tables = st.lists(st.integers(-30, 60), min_size=2, max_size=6).map(tuple)


@given(tables, st.data(), st.integers(1, 4))
def test_how_clear_a_list_is_moves_by_at_most_one_sensitivity(values, data, sensitivity):
    """Lemma (b), both directions, and ⌊U⌋ as computed against its definition."""
    size = data.draw(st.integers(1, len(values) - 1))
    steps = st.lists(st.integers(0, sensitivity), min_size=len(values), max_size=len(values))
    other = tuple(v + d for v, d in zip(values, data.draw(steps), strict=True))
    odds = data.draw(st.sampled_from([Fraction(1, 2), Fraction(2), Fraction(4)]))
    here, there = (ListLaw(np.array(table), size).clear_by(odds) for table in (values, other))
    assert abs(here - there) <= sensitivity
    for table, whole in ((values, here), (other, there)):
        assert abs(whole - math.floor(clear_by(table, size, float(odds)) + 1e-9)) <= (
            abs(clear_by(table, size, float(odds)) - whole) > 1 - 1e-6
        )


def test_the_gap_without_the_number_of_lists_is_no_substitute():
    """With ties on both sides U is far below the gap, and moves by at most as much."""
    values = np.array([100] * 5 + [60] * 15)
    assert ListLaw(values, 5).clear_by(Fraction(4)) < 20
    assert ListLaw(np.array([100] * 5 + [100] * 5), 5).clear_by(Fraction(4)) == 0
    assert ListLaw(np.array([100, 40]), 1).clear_by(Fraction(4)) == 60


def test_a_doubt_of_floating_point_is_decided_exactly(monkeypatch):
    law = ListLaw(np.array([90, 70, 64, 20, 3]), 2)
    fast = law.clear_by(Fraction(3))
    monkeypatch.setattr(np, "exp", lambda x: np.where(np.asarray(x) > -1e9, 1 / np.size(x), 0.0))
    assert law.clear_by(Fraction(3)) == fast


@given(tables, st.data())
def test_boundaries_stand_for_all_lists(values, data):
    size = data.draw(st.integers(1, len(values) - 1))
    law, every = ListLaw(np.array(values), size), sorted(qualities(values, size).values())
    counted = [0, *np.repeat(law.distances, law._masses()).tolist()]
    assert sorted(counted) == sorted(every[-1] - q for q in every)
    assert np.allclose(np.exp(law._logs), law._masses())


def chances(values: tuple[int, ...], size: int, rate: Fraction) -> dict[tuple[int, ...], float]:
    every = qualities(values, size)
    best = max(every.values())
    weights = {b: math.exp(-float(rate) * (best - q)) for b, q in every.items()}
    return {b: w / sum(weights.values()) for b, w in weights.items()}


def test_lists_are_drawn_with_their_chances():
    values, rate, runs = (9, 7, 7, 4, 2), Fraction(2, 5), 4000
    randomness, law = SimulationRandomness(5), ListLaw(np.array(values), 2)
    drawn = [tuple(sorted(law.draw(rate, randomness))) for _ in range(runs)]
    for listed, chance in chances(values, 2, rate).items():
        assert stats.binomtest(drawn.count(listed), runs, chance).pvalue > 1e-8


class Seen(LaplaceLevels):
    """Laplace levels whose path shows one value at all levels; the table's U is noted."""

    value: ClassVar[float]
    clear: ClassVar[int]

    def estimates(self, counts: Any, randomness: Any) -> Any:
        Seen.clear = int(counts[0])
        return np.full((len(self.costs), 1), Seen.value)


def transcripts(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    size: int,
    *,
    signed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[float, float, float]]:
    """Charge, loss of the path and of the list, for all that can be seen of two tables.

    Noise that was kept or renewed has the same law for both, so only the last value matters.
    """
    levels = Seen((0.001,), 1)
    rule = top_rule(levels, 0.6, signed)
    rates: list[Fraction] = []
    monkeypatch.setattr(ListLaw, "draw", lambda self, rate, _: rates.append(rate) or [0])
    for value in range(-12, 40):
        Seen.value, clears, charges = float(value), [], []
        rates.clear()
        for table in pair:
            _, spent = draw_list(np.array(table), size, levels, rule, Fraction(9), None)  # type: ignore[arg-type]
            clears.append(Seen.clear)
            charges.append(spent)
        assert charges[0] == charges[1]  # released values alone decide
        rate = rates[0] if rates else Fraction(0)
        sensitivity = 2 if signed else 1
        path = charges[0] - 2 * sensitivity * rate
        noise = [float(laws.laplace(float(path) / sensitivity, value - u)) for u in clears]
        told = math.log(noise[0] / noise[1])
        if not rates:
            yield float(path), told, 0.0
            continue
        here, there = (chances(table, size, rate) for table in pair)
        for listed, chance in here.items():
            yield float(charges[0]), told, math.log(chance / there[listed])


PAIRS = (
    ((9, 8, 2, 1), (8, 8, 2, 1)),
    ((9, 8, 2, 1), (8, 7, 2, 1)),
    ((9, 8, 2, 1), (9, 8, 1, 0)),
    ((5, 5, 5, 5), (5, 5, 4, 4)),
    ((20, 3, 2), (19, 2, 2)),
)


@pytest.mark.parametrize("pair", PAIRS)
def test_no_transcript_tells_more_than_it_cost(pair, monkeypatch):
    """Joint law of the path's last look and the list, both directions."""
    worst = free = -math.inf
    for charge, path, listed in transcripts(pair, 2, signed=False, monkeypatch=monkeypatch):
        worst = max(worst, abs(path + listed) - charge)
        free = max(free, abs(listed) - charge / 3)
    assert worst <= 1e-9


def test_mutants_of_the_charge(monkeypatch):
    """The draw is not free, and values of either sign need twice the noise."""
    told = list(transcripts(PAIRS[1], 2, signed=False, monkeypatch=monkeypatch))
    assert any(abs(listed) > 0.1 for _, _, listed in told)
    pair = ((9, 8, 2, 1), (9, 7, 3, 1))  # one up, one down
    signed = list(transcripts(pair, 2, signed=True, monkeypatch=monkeypatch))
    assert all(abs(path + listed) <= charge + 1e-9 for charge, path, listed in signed)
    plain = list(transcripts(pair, 2, signed=False, monkeypatch=monkeypatch))
    assert any(abs(path + listed) > charge + 0.01 for charge, path, listed in plain)


class SeenGaussian(GaussianLevels):
    """One Gaussian look, at 60 % of the limit, that shows this value."""

    value: ClassVar[float]

    def estimates(self, counts: Any, randomness: Any) -> Any:
        assert len(self.costs) == 1
        return np.full((1, 1), SeenGaussian.value)


def renyi(here: dict[Any, float], there: dict[Any, float], order: float) -> float:
    """The divergence of two laws of lists, by logarithms."""
    terms = [order * math.log(p) + (1 - order) * math.log(there[b]) for b, p in here.items()]
    largest = max(terms)
    return (largest + math.log(sum(math.exp(one - largest) for one in terms))) / (order - 1)


MOVES = tuple(itertools.product((0, 1), repeat=4))


@pytest.mark.parametrize("values", [(9, 8, 2, 1), (5, 5, 5, 5), (7, 6, 6, 0)])
def test_a_draw_costs_its_rho_for_any_number_of_groups(values, monkeypatch):
    """ρ of the draw beside that of the path, at all orders, all neighbours, both directions."""
    rates: list[Fraction] = []
    monkeypatch.setattr(ListLaw, "draw", lambda self, rate, _: rates.append(rate) or [0])
    limit, nearest = Fraction(9), 0.0
    levels, rule = SeenGaussian((9.0,), 1), top_rule(GaussianLevels((9.0,), 1), 0.6, signed=False)
    for SeenGaussian.value in (4.0, 6.0, 12.0):
        drawn, charge = draw_list(np.array(values), 2, levels, rule, limit, None)  # type: ignore[arg-type]
        assert drawn is not None
        rho = float(charge) - 0.6 * float(limit)
        here = chances(values, 2, rates[-1])
        for move in MOVES:
            there = chances(tuple(v + d for v, d in zip(values, move, strict=True)), 2, rates[-1])
            for order in (1.01, 1.5, 2.0, 8.0, 64.0):
                told = max(renyi(here, there, order), renyi(there, here, order)) / order
                assert told <= rho + 1e-9
                nearest = max(nearest, told / rho)
    assert nearest > 0.5 or len(set(values)) == 1  # a charge of half as much would be too small


@pytest.mark.parametrize("law", [LaplaceLevels, GaussianLevels])
def test_joint_half_widths_hold_at_all_levels(law):
    """4,000 paths; the bound is not far above what is needed."""
    levels: NoiseLevels = law(tuple(0.001 * 2.0**n for n in range(8)), 1)
    widths = joint_half_widths(levels, 0.1)
    noise = levels.estimates(np.zeros(4000, dtype=np.int64), SimulationRandomness(1))
    missed = int((noise >= widths[:, None]).any(axis=0).sum())
    assert stats.binom.sf(missed - 1, 4000, 0.1) > 1e-8
    assert missed > 0.04 * 4000


HOSTILE = {
    "near tie": (100, 50, 49, *[10] * 17),
    "many near ties": (30, *[21] * 2, *[20] * 17),
    "all tie": (20,) * 20,
    "one apart": tuple(range(20, 0, -1)),
    "clear": (300, 290, *[5] * 18),
}


def drawn_lists(values: tuple[int, ...], law: str, runs: int) -> list[tuple[int, ...]]:
    wanted, lists = Wanted(0.1, None, 0.8, top=2), []
    total = Fraction(8) if law == "laplace" else Fraction(4)
    job = make_job(len(values), wanted, law=law, total=total, most_groups=None)
    assert draws_list(2, len(values), job.most_groups, law)
    for seed in range(runs):
        groups, randomness = list(range(len(values))), SimulationRandomness(seed)
        run = Refinement(job, groups, np.array(values), randomness)
        lists.append(tuple(sorted(answer.group for answer in run)))
        assert run.spent <= job.total
    return lists


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_list_that_is_drawn_is_rarely_wrong(name, law):
    """At most 20 % are stated and wrong."""
    values, runs = HOSTILE[name], 150
    lists = drawn_lists(values, law, runs)
    assert stats.binom.sf(wrong(values, lists) - 1, runs, 0.2) > 1e-8
    assert name != "clear" or sum(map(bool, lists)) > 0.9 * runs


def test_lists_that_are_not_clear_would_be_wrong(monkeypatch):
    """The test of the test: U of another table."""
    monkeypatch.setattr(ListLaw, "clear_by", lambda self, odds: 40)
    values = HOSTILE["many near ties"]
    missed = wrong(values, drawn_lists(values, "laplace", 150))
    assert stats.binom.sf(missed - 1, 150, 0.2) < 1e-8


def test_without_a_cap_a_list_costs_little_and_its_intervals_hold():
    """Through the public door: 60 groups, everybody may be in all of them."""
    sizes = {f"g{rank}": 40_000 // (rank + 1) for rank in range(60)}
    missed = stated = wrong = 0
    for seed in range(60):
        result = expost.count(
            sizes,
            keys=list(sizes),
            epsilon=1,
            top=5,
            confidence=0.95,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        assert result.max_groups_per_user is None
        wrong += {answer.group for answer in result.answers} != {f"g{rank}" for rank in range(5)}
        assert result.spent < 0.06  # looks at all groups would cost 60 times one group's
        assert len(result.unanswered) == 55
        stated += len(result.answers)
        missed += sum(not a.low <= sizes[a.group] <= a.high for a in result.answers)
    assert wrong <= 2  # 5 % may be; 1 in 1,200 was, in a simulation
    assert stats.binom.sf(missed - 1, stated, 0.05) > 1e-8
    assert verify_certificate(result.certificate()) == []


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize(("groups", "top"), [(20, 2), (300, 5), (3000, 1), (20_000, 1)])
def test_no_list_costs_more_than_the_total(law: str, groups: int, top: int) -> None:
    """All values are equal: no list is clear. Catches looks at all groups that nobody can pay."""
    job = make_job(groups, Wanted(0.1, top=top), law=law, total=Fraction(1), most_groups=None)
    assert draws_list(top, groups, job.most_groups, law)
    names = [str(number) for number in range(groups)]
    run = Refinement(job, names, np.full(groups, 5), SimulationRandomness(1))
    assert len(list(run)) in (0, top)
    assert run.spent <= job.total
