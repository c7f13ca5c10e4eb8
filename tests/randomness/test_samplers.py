"""Tables of words: exact bounds, and an exact law although nearly every draw is one look-up."""

from __future__ import annotations

from collections import Counter
from decimal import localcontext
from fractions import Fraction
from functools import partial
from itertools import islice
from math import exp as exponential
from math import floor

import mpmath
import numpy as np
import pytest
from mpmath import exp, mpf

from expost.errors import InvalidInput
from expost.randomness import samplers
from expost.randomness.coins import (
    BinomialLaw,
    FoldedGaussianLaw,
    GeometricLaw,
    Law,
    PoissonLaw,
    invert,
)
from expost.randomness.samplers import (
    InversionTable,
    discrete_gaussians,
    discrete_laplaces,
    geometrics,
)
from expost.randomness.source import Randomness, SimulationRandomness
from tests.randomness.bit_tree import assert_law, enumerate_law, rational
from tests.randomness.test_inverse_cdf import true_mass

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)

CASES: list[tuple[Law, int, bool]] = [  # a law, the size of its table, whether that is all of it
    (GeometricLaw(THIRD), 4, False),
    (GeometricLaw(THIRD), 60, False),
    (GeometricLaw(Fraction(9)), 3, False),
    (GeometricLaw(THIRD, 5), 5, True),
    (GeometricLaw(Fraction(1, 100), 7), 7, True),
    (GeometricLaw(Fraction(40), 6), 6, True),
    (BinomialLaw(3, HALF), 4, True),
    (PoissonLaw(Fraction(2)), 9, False),
    (FoldedGaussianLaw(HALF), 7, False),
    (FoldedGaussianLaw(Fraction(4)), 15, False),
]


class Words(Randomness):
    """Serves the words it is given, then refuses."""

    def __init__(self, words: list[int]) -> None:
        super().__init__()
        self.queue = words

    def words(self, count: int) -> np.ndarray:
        served, self.queue = self.queue[:count], self.queue[count:]
        return np.array(served, dtype=np.uint64)

    def bits(self, count: int) -> int:
        raise AssertionError("a settled word asked for more bits")


@pytest.mark.parametrize("width", [6, 8, 20, 64])
@pytest.mark.parametrize(("law", "size", "complete"), CASES)
def test_bounds_are_exact_floors(law: Law, size: int, complete: bool, width: int) -> None:
    """Would catch a bound rounded up or to nearest: each is ⌊2^width·F(k)⌋."""
    table = InversionTable(law, size, complete=complete, width=width)
    assert len(table.bounds) <= (size - 1 if complete else size)
    with mpmath.workdps(120):
        total = Fraction(0)
        for k, bound in enumerate(table.bounds):
            total += rational(true_mass(law, k))
            assert int(bound) == floor(total * 2**width), k
        if len(table.bounds) < size - 1:  # a table may stop where F is 1 to 45 digits
            assert 1 - total - rational(true_mass(law, len(table.bounds))) < Fraction(1, 10**40)


@pytest.mark.parametrize(
    ("law", "by_integers"),
    [
        (GeometricLaw(Fraction(1, 90)), "_geometric_bounds"),
        (FoldedGaussianLaw(Fraction(10_001, 7)), "_gaussian_bounds"),
    ],
)
def test_bounds_by_integers_are_those_by_decimals(
    law: Law, by_integers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a long table by integers that is wrong at its end, or never made."""
    bounds = getattr(samplers, by_integers)(law, 760, 64)
    monkeypatch.setattr(samplers, by_integers, lambda *_: None)
    assert bounds == InversionTable(law, 760).bounds.tolist()


@pytest.mark.parametrize("width", [6, 8])
@pytest.mark.parametrize(("law", "size", "complete"), CASES)
def test_every_word_gives_the_exact_law(
    law: Law, size: int, complete: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch an ambiguous word settled by a guess, a wrong side of a bound, or a cut tail.

    All words of ``width`` bits are fed, and every ambiguous one is refined bit by bit.
    """
    monkeypatch.setattr(samplers, "invert", partial(invert, chunk=2))
    table = InversionTable(law, size, complete=complete, width=width)
    walk = enumerate_law(
        lambda r: int(table.draw(1, r)[0]),
        40,
        within=1e-4,
        single_bits=True,
        word_width=width,
        merge=False,
    )
    assert_law(walk, partial(true_mass, law), within=1e-4)


@pytest.mark.parametrize("width", [6, 8])
@pytest.mark.parametrize(("law", "size", "complete"), CASES)
def test_settled_words_are_settled(law: Law, size: int, complete: bool, width: int) -> None:
    """Would catch a look-up that disagrees with inversion, or that spends bits where the word tells
    all.
    """
    table = InversionTable(law, size, complete=complete, width=width)
    unsure = {int(bound) for bound in table.bounds}
    last = int(table.bounds[-1]) if len(table.bounds) else -1
    words = [w for w in range(2**width) if w not in unsure and (table.complete or w < last)]
    drawn = table.draw(len(words), Words([word << (64 - width) for word in words]))
    for word, outcome in zip(words, drawn, strict=True):
        assert outcome == invert(
            law, SimulationRandomness(1), prefix=word << 60, prefix_bits=width + 60
        )


def test_a_floor_that_integers_leave_open_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a bound taken from one end of its bracket: few guard bits leave some open."""
    monkeypatch.setattr(samplers, "_GUARD", 8)
    assert samplers._gaussian_bounds(FoldedGaussianLaw(Fraction(1000)), 300, 64) is None


def test_full_width_words_next_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an off-by-one at 64 bits.

    The words bound−1 and bound+1 are settled, the bound itself is refined.
    """
    refined: list[int] = []
    monkeypatch.setattr(
        samplers,
        "invert",
        lambda _law, _r, *, prefix, prefix_bits: refined.append(prefix) or -prefix_bits,
    )
    table = InversionTable(GeometricLaw(THIRD), 30)
    bounds = [int(bound) for bound in table.bounds]
    words = [bound + shift for bound in bounds[:-1] for shift in (-1, 0, 1)]
    drawn = table.draw(len(words), Words(words)).tolist()
    assert drawn == [outcome for k in range(len(bounds) - 1) for outcome in (k, -64, k + 1)]
    assert refined == bounds[:-1]


def test_words_beyond_the_table_are_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a tail lumped into the last entry."""
    monkeypatch.setattr(samplers, "invert", lambda *_a, **_k: 10**6)
    table = InversionTable(GeometricLaw(THIRD), 3)
    assert table.draw(2, Words([2**64 - 1, 0])).tolist() == [10**6, 0]


def test_a_complete_table_that_stops_early_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch outcomes 1 and 2 lost where F(0) is 1 to 45 digits.

    Such words are refined instead.
    """
    monkeypatch.setattr(samplers, "invert", lambda *_a, **_k: 2)
    table = InversionTable(GeometricLaw(Fraction(120), 3), 3, complete=True)
    assert table.draw(2, Words([0, 2**64 - 1])).tolist() == [2, 2]


def digit_mass(rate: Fraction, base: int, place: int, digit: int) -> mpf:
    """P(the digit of base^place in k is ``digit``), by the geometric series over all k that have it
    (from the pmf of k).
    """
    r = mpf(rate.numerator) / rate.denominator
    block = mpf(base) ** place
    # Σ_{m≥0} P(k ∈ [(base·m + digit)·block, (base·m + digit + 1)·block))
    return exp(-r * block * digit) * (1 - exp(-r * block)) / (1 - exp(-r * block * base))


@pytest.mark.parametrize(
    ("scale", "base", "places"),
    [
        *[(10**3, 4096, 1), (10**4, 4096, 1), (10**6, 4096, 1), (2**50, 4096, 4)],
        *[(5, 64, 0), (10**3, 64, 2), (10**4, 64, 2), (10**6, 64, 3), (2**50, 64, 8)],
    ],
)
def test_digits_of_large_draws(scale: int, base: int, places: int) -> None:
    """Would catch a digit table with the wrong rate.

    Each digit has the law that it has in a geometric draw.
    """
    digits, top = samplers._geometric_tables(Fraction(1, scale), base)
    assert len(digits) == places
    step = 97 if base == 4096 else 3
    with mpmath.workdps(90):
        for place, table in enumerate(digits):
            assert table.complete
            for digit, (low, high) in enumerate(islice(table.law.masses(60), 0, base, step)):
                truth = rational(digit_mass(Fraction(1, scale), base, place, step * digit))
                assert Fraction(low) <= truth <= Fraction(high)
        above = next(iter(top.law.masses(60)))
        truth = rational(1 - exp(-(mpf(base) ** len(digits)) / scale))
        assert Fraction(above[0]) <= truth <= Fraction(above[1])


@pytest.mark.parametrize("base", ["_DIGIT", "_SMALL_DIGIT"])
def test_small_base_digits_make_a_geometric_draw(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch digits put together in the wrong order or with the wrong weight.

    Exact law of the whole draw, base 2, of draws that are few and of draws that are many.
    """
    monkeypatch.setattr(samplers, "_MANY", 1 if base == "_DIGIT" else 2)
    monkeypatch.setattr(samplers, base, 2)
    monkeypatch.setattr(samplers, "_LARGEST_TABLE", 15)
    monkeypatch.setattr(samplers, "InversionTable", partial(InversionTable, width=4))
    monkeypatch.setattr(samplers, "invert", partial(invert, chunk=2))
    samplers._geometric_tables.cache_clear()
    rate = HALF
    digits, _ = samplers._geometric_tables(rate, 2)
    assert len(digits) == 2
    walk = enumerate_law(
        lambda r: int(geometrics(rate, 1, r)[0]), 40, within=1e-4, single_bits=True, word_width=4
    )
    samplers._geometric_tables.cache_clear()
    assert_law(walk, partial(true_mass, GeometricLaw(rate)), within=1e-4)


@pytest.mark.parametrize("rate", [Fraction(1, 2**50 + 1), Fraction(1, 10**30)])
def test_too_large_a_scale_is_refused(rate: Fraction) -> None:
    """Would catch 64-bit sums that wrap around."""
    with pytest.raises(InvalidInput, match="scale"):
        geometrics(rate, 3, SimulationRandomness(1))
    with pytest.raises(InvalidInput, match="scale"):
        discrete_laplaces(1 / rate, 3, SimulationRandomness(1))


def test_the_largest_scale_works() -> None:
    """Would catch a wrap-around inside the limit.

    4,000 draws of scale 2^50 are positive, with that mean.
    """
    draws = geometrics(Fraction(1, 2**50), 4000, SimulationRandomness(2))
    assert draws.min() >= 0
    assert abs(draws.astype(float).mean() / 2**50 - 1) < 6 / 4000**0.5


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_count(count: int) -> None:
    """Would catch a crash on nothing, or a shape that depends on the refinement."""
    source = SimulationRandomness(3)
    for draws in (
        geometrics(THIRD, count, source),
        discrete_laplaces(Fraction(10**6), count, source),
        discrete_gaussians(Fraction(4), count, source),
        discrete_gaussians(Fraction(5000**2), min(count, 50), source),
    ):
        assert draws.dtype == np.int64
        assert draws.ndim == 1
    assert len(geometrics(THIRD, count, source)) == count


@pytest.mark.parametrize("scale", [Fraction(1, 100), Fraction(1, 300), Fraction(1, 10**6)])
def test_hardly_any_noise(scale: Fraction) -> None:
    """Would catch a crash where F(0) is 1 to 45 digits and the table is empty: the draws are 0."""
    source = SimulationRandomness(4)
    assert not discrete_laplaces(scale, 100, source).any()
    assert not discrete_gaussians(scale, 100, source).any()


def test_gaussian_unfolds_both_signs() -> None:
    """Would catch outcomes 0, 1, 2, 3, 4 of the folded law unfolded to anything but 0, −1, 1, −2,
    2.
    """
    table = samplers._gaussian_table(Fraction(4))
    words = [0, *(int(bound) + 1 for bound in table.bounds[:8])]
    assert discrete_gaussians(Fraction(4), 9, Words(words)).tolist() == [
        0,
        -1,
        1,
        -2,
        2,
        -3,
        3,
        -4,
        4,
    ]


def test_laplace_is_a_difference_of_two_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch one draw used twice, or noise of one sign."""
    answers = iter([np.array([5, 0, 3]), np.array([1, 4, 3])])
    asked: list[Fraction] = []
    monkeypatch.setattr(
        samplers, "geometrics", lambda rate, _count, _r: asked.append(rate) or next(answers)
    )
    assert discrete_laplaces(Fraction(3, 2), 3, SimulationRandomness(5)).tolist() == [4, -4, 0]
    assert asked == [Fraction(2, 3)] * 2


def test_gaussian_beyond_the_table_falls_back() -> None:
    """Would catch a change of law where draws stop being tabled.

    Standard deviations 2,048 and 2,049 look alike.
    """
    tabled = discrete_gaussians(Fraction(2048**2), 3000, SimulationRandomness(6))
    single = discrete_gaussians(Fraction(2049**2), 3000, SimulationRandomness(7))
    for draws in (tabled, single):
        assert abs(draws.std() / 2048 - 1) < 6 / 6000**0.5
        assert abs(draws.mean()) < 6 * 2048 / 3000**0.5
        assert max(Counter(draws.tolist()).values()) < 12


def test_users_decimal_context_changes_nothing() -> None:
    """Would catch bounds computed in the context the user has set, or a table that never gets ready
    there.
    """
    wanted = InversionTable(GeometricLaw(Fraction(2, 7)), 200).bounds
    with localcontext() as context:
        context.prec = 5
        assert (InversionTable(GeometricLaw(Fraction(2, 7)), 200).bounds == wanted).all()


def test_keep_coins_have_the_stated_probability() -> None:
    """Against the formula in floats; catches coins that are turned around."""
    for coarse, fine in ((Fraction(1, 10), Fraction(1, 5)), (Fraction(1), Fraction(3))):
        first, second = exponential(-coarse), exponential(-fine)
        chance = second / first * ((1 - first) / (1 - second)) ** 2
        coins = samplers.keep_coins(coarse, fine, 20_000, SimulationRandomness(3))
        spread = (chance * (1 - chance) / len(coins)) ** 0.5
        assert abs(coins.mean() - chance) < 5 * spread
