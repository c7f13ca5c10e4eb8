"""Intervals keep their coverage although the estimate decides when to stop.

What is promised for a group of any size: P(answered, and the interval misses) ≤ 1 − confidence; and
for groups that are not answered: P(the interval misses at any level) ≤ 1 − confidence. Discrete
Laplace noise: by exact enumeration, and by simulation with the library's own noise. Gaussian noise:
by simulation. Simulations have fixed seeds and reject at 1e-6 a check; there are some 1,300, so a
correct library fails here at most once in 750 changes of all seeds. On the machine where this was
written the least coverage at a nominal 0.9 was 0.919 (Laplace, ratio √2), 0.958 (Laplace, 1.1),
0.950 (Gaussian, √2) and 0.972 (Gaussian, 1.1).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from scipy import stats

from expost import SimulationRandomness
from expost.analytics import refinement_noise
from expost.analytics.pricing import FINER
from expost.analytics.refinement import Job, Refinement, ladder, make_job
from expost.analytics.refinement_goals import GIVEN, Wanted
from expost.analytics.refinement_noise import (
    GaussianLevels,
    LaplaceLevels,
    NoiseLevels,
    StoppingRule,
    geometric_grid,
    half_width,
    lattice,
    lower,
    make_rule,
    normal_above,
    normal_below,
    upper,
    worst_miss,
)
from expost.errors import InvalidInput
from tests.analytics import laws

FALSE_ALARM = 1e-6
PATHS = 20_000
LEVELS = {"laplace": LaplaceLevels, "gaussian": GaussianLevels}
RATIOS = (2**0.5, 1.1)
CASES = list(product(LEVELS, RATIOS, (0.9, 0.5), ("confidence", "paper")))
COUNTS = np.array([*range(0, 40, 2), *np.unique(np.geomspace(40, 3000, 60).astype(int))])


@lru_cache
def levels_of(law: str, ratio: float) -> NoiseLevels:
    """Scales from 20 down to 0.2: at the fine end the noise is visibly discrete."""
    return LEVELS[law](geometric_grid(0.05, 5, ratio))


@lru_cache
def noise_of(law: str, ratio: float) -> np.ndarray:
    return levels_of(law, ratio).estimates(np.zeros(PATHS, dtype=np.int64), SimulationRandomness(5))


@lru_cache
def rule_of(law: str, ratio: float, confidence: float, name: str) -> StoppingRule:
    return make_rule(levels_of(law, ratio), 0.1, confidence, name)


def misses(
    noise: np.ndarray, counts: np.ndarray, least: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Paths on which a group of each size is answered with an interval that misses.

    A path answers at a level the sizes from ``needed`` to what all levels before needed.
    """
    needed = least[:, None] - noise
    before = np.full_like(needed, np.inf)
    np.minimum.accumulate(needed[:-1], axis=0, out=before[1:])
    missed = (np.abs(noise) > widths[:, None] + 1e-9) & (needed < before)
    starts, ends = np.sort(needed[missed]), np.sort(before[missed])
    return np.searchsorted(starts, counts, "right") - np.searchsorted(ends, counts, "right")


@pytest.mark.parametrize(("law", "ratio", "confidence", "name"), CASES)
def test_published_intervals_cover(law, ratio, confidence, name):
    """Catches a factor that is too small at any size of group, and one that ignores that noise is
    made of whole numbers.
    """
    rule, noise = rule_of(law, ratio, confidence, name), noise_of(law, ratio)
    most = stats.binom.isf(FALSE_ALARM, PATHS, 1 - confidence)
    assert misses(noise, COUNTS, rule.least, rule.half_widths).max() <= most


def test_naive_laplace_intervals_undercover():
    """The test of the test: without the factor, stopping at lucky estimates shows."""
    levels, noise = levels_of("laplace", 2**0.5), noise_of("laplace", 2**0.5)
    naive = half_width(levels, 0.9)
    most = stats.binom.isf(FALSE_ALARM, PATHS, 0.1)
    assert misses(noise, COUNTS, naive / 0.1, naive).max() > most


def test_naive_gaussian_intervals_undercover():
    """The same for normal quantiles, on a coarser grid, where the effect is larger."""
    levels = GaussianLevels(geometric_grid(0.0005, 0.5, 2**0.5))
    noise = levels.estimates(np.zeros(PATHS, dtype=np.int64), SimulationRandomness(7))
    naive = levels.scales * stats.norm.ppf(0.95)
    most = stats.binom.isf(FALSE_ALARM, PATHS, 0.1)
    assert misses(noise, COUNTS, naive / 0.1, naive).max() > most


@pytest.mark.parametrize(("law", "ratio"), list(product(LEVELS, RATIOS)))
@pytest.mark.parametrize("confidence", [0.9, 0.5])
def test_unanswered_intervals_hold_at_all_levels_at_once(law, ratio, confidence):
    """Which level is the last may depend on everything; catches intervals made for one level."""
    rule, noise = rule_of(law, ratio, confidence, "confidence"), noise_of(law, ratio)
    missed = (np.abs(noise) > rule.open_half_widths[:, None] + 1e-9).any(axis=0).sum()
    assert missed <= stats.binom.isf(FALSE_ALARM, PATHS, 1 - confidence)
    single = half_width(levels_of(law, ratio), confidence)
    assert (np.abs(noise) > single[:, None]).any(
        axis=0
    ).mean() > 1 - confidence  # the test of the test


@lru_cache(maxsize=16)
def kernel(coarse: float, fine: float, reach: int) -> np.ndarray:
    """The same for every size of group."""
    return laws.kernel(coarse, fine, np.arange(-reach, reach + 1))


def exact_miss(levels: NoiseLevels, rule: StoppingRule, count: int, reach: int) -> float:
    """P(answered, and missed) under Laplace noise reduction.

    ``going[z]`` is the chance of not having stopped before, given z.
    """
    values = np.arange(-reach, reach + 1)
    going, stops, total = np.ones(len(values)), np.zeros(len(values), dtype=bool), 0.0
    for level, cost in enumerate(levels.costs):
        if level:
            going = kernel(levels.costs[level - 1], cost, reach) @ np.where(stops, 0.0, going)
        stops = count + values >= rule.least[level]
        total += float(
            (laws.laplace(cost, values) * going)[
                stops & (np.abs(values) > rule.half_widths[level])
            ].sum()
        )
    return total


@pytest.mark.parametrize("confidence", [0.9, 0.5])
@pytest.mark.parametrize("name", ["confidence", "paper"])
@pytest.mark.parametrize("within", [0.1, 0.5])
@pytest.mark.parametrize("ratio", [2**0.5, 2.0, 4.0])
def test_laplace_coverage_by_enumeration(confidence, name, within, ratio):
    """Exact, for every size of group up to 100 (the window cuts off e^{−60}).

    No seed can hide an undercoverage here.
    """
    levels = LaplaceLevels(geometric_grid(0.3, 4, ratio))
    rule = make_rule(levels, within, confidence, name)
    worst = max(exact_miss(levels, rule, count, 200) for count in range(0, 101, 3))
    assert worst <= 1 - confidence
    assert worst > 0.1 * (1 - confidence)  # else the enumeration would show nothing


@pytest.mark.parametrize("scale", np.arange(0.2, 4, 0.0713))
@pytest.mark.parametrize("law", LEVELS)
def test_one_level_covers_exactly(scale, law):
    """A single look, by enumeration.

    Catches half-widths of the normal law: at σ = 1.2 they hold 79 times in 100, not 90.
    """
    levels = LEVELS[law]((1 / scale if law == "laplace" else 0.5 / scale**2,))
    values = np.arange(-200, 201)
    chances = (
        laws.laplace(1 / scale, values) if law == "laplace" else laws.gaussian(scale**2, values)
    )
    for confidence in (0.5, 0.8, 0.9, 0.99):
        width = make_rule(levels, 0.1, confidence).half_widths[0]
        assert chances[np.abs(values) > width].sum() <= 1 - confidence


def average(costs: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The exact law of the average of two or three discrete Gaussian releases.

    Values and chances.
    """
    values, chances, before = np.zeros(1), np.ones(1), 0.0
    for cost in costs:
        increment = cost - before
        reach = np.arange(-int(9 / (2 * increment) ** 0.5) - 2, int(9 / (2 * increment) ** 0.5) + 3)
        values = (values[:, None] * before / cost + reach[None] * increment / cost).ravel()
        chances = (chances[:, None] * laws.gaussian(1 / (2 * increment), reach)[None]).ravel()
        before = cost
    return values, chances


def excess(costs: tuple[float, ...], shift: float, factor: float) -> float:
    """The largest ratio of the exact tail to the bound factor·P(N ≥ x − shift), where the tail is
    above 10⁻⁹.
    """
    values, chances = average(costs)
    order = np.argsort(-values)
    tail = np.cumsum(chances[order])
    bound = factor * stats.norm.sf((values[order] - shift) * (2 * costs[-1]) ** 0.5)
    shown = (tail > 1e-9) & (values[order] > 0)
    return float((tail[shown] / bound[shown]).max())


AVERAGES = [
    (0.5,),
    (2.0,),
    (0.1, 0.2),
    (0.5, 1.0),
    (0.5, 0.7071),
    (0.2, 0.5, 1.1),
    (0.4, 0.44, 0.484),
    (0.05, 4.0),
    (3.0, 6.0),
]


@pytest.mark.parametrize("costs", AVERAGES)
def test_gaussian_tails_are_bounded(costs):
    """The exact tail of an average against (shift, factor).

    Catches either being too small; a normal tail alone is.
    """
    assert excess(costs, *lattice(costs)[-1]) <= 1 + 1e-7
    if len(costs) == 1:
        assert excess(costs, 0.0, 1.0) > 1.05  # the test of the test


def test_the_correction_for_whole_numbers_fades():
    """Catches a bound that is safe but dear: a shift that does not fall as releases are added."""
    shift, factor = lattice(geometric_grid(0.0005, 0.05, 2**0.5))[-1]
    assert shift <= 0.01
    assert factor < 1 + 1e-9


@pytest.mark.parametrize("name", ["confidence", "paper"])
@pytest.mark.parametrize("law", LEVELS)
def test_the_search_never_gives_up(law, name):
    """At odd confidences the factor is large.

    Catches a search that ends at its upper limit without looking.
    """
    levels = levels_of(law, 2**0.5)
    rule = make_rule(levels, 0.5, 0.02, name)
    assert worst_miss(levels, rule.half_widths, rule.least) <= 0.98


@pytest.mark.parametrize("within", [0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("signed", [False, True])
def test_looks_near_critical_values_find_what_looks_at_all_find(monkeypatch, within, signed):
    """Catches neighbourhoods that are too small: the factors would be others."""
    epsilon = 3 / (1000 * within)
    levels = LaplaceLevels(ladder(epsilon / 1000, epsilon, epsilon), FINER)
    rule = make_rule(levels, within, 0.9, signed=signed)
    refinement_noise._make_rule.cache_clear()
    monkeypatch.setattr(refinement_noise, "_FEW", 0)
    everywhere = make_rule(levels, within, 0.9, signed=signed)
    refinement_noise._make_rule.cache_clear()  # not for other tests
    np.testing.assert_array_equal(rule.least, everywhere.least)
    assert worst_miss(levels, rule.half_widths, rule.least, signed=signed) <= 0.1


@pytest.mark.parametrize("within", [0.05, 0.2])
def test_a_search_that_looked_at_too_few_values_goes_on(monkeypatch, within):
    """Factors must pass at all true values. Catches a search that ends with those it looked at."""
    epsilon = 3 / (1000 * within)
    levels = LaplaceLevels(ladder(epsilon / 1000, epsilon, epsilon), FINER)
    refinement_noise._make_rule.cache_clear()
    monkeypatch.setattr(refinement_noise, "_FEW", 10**6)
    monkeypatch.setattr(refinement_noise, "_CRITICAL", 1.0)
    monkeypatch.setattr(refinement_noise, "_NEIGHBOURS", 0)
    rule = make_rule(levels, within, 0.9)
    refinement_noise._make_rule.cache_clear()  # not for other tests
    assert worst_miss(levels, rule.half_widths, rule.least) <= 0.1


@pytest.mark.parametrize("law", LEVELS)
def test_true_values_are_looked_at_one_by_one(law):
    """Each bound belongs to its own true value. Catches a table that is filled in another order."""
    levels, chosen = levels_of(law, 2**0.5), np.array([0, 7, 400, 401, 900])
    widths = 1.1 * half_width(levels, 0.9)
    least = widths / 0.1
    values = refinement_noise.true_values(float(least.min()), float(least.max()))
    parts, total = refinement_noise.misses(levels, widths, least, signed=True)
    ends = values[chosen], values[chosen + 1]
    tail = refinement_noise._least_tail(len(widths), 1e-5)
    some, together = refinement_noise._misses(levels, widths, least, ends, tail, signed=True)
    np.testing.assert_array_equal(some, parts[:, chosen])
    np.testing.assert_array_equal(together, total[chosen])


@pytest.mark.parametrize(("law", "ratio", "confidence", "name"), CASES)
def test_a_draft_stops_no_later(law, ratio, confidence, name):
    """What a draft cannot answer, the rule cannot. Catches a draft with larger factors."""
    rule = rule_of(law, ratio, confidence, name)
    draft = make_rule(levels_of(law, ratio), 0.1, confidence, name, draft=True)
    assert (draft.least <= rule.least).all()
    assert (draft.least < rule.least).any() or name == "paper"


@pytest.mark.parametrize(("law", "ratio", "confidence", "name"), CASES)
def test_finer_levels_ask_for_less(law, ratio, confidence, name):
    """The race sorts by these; catches thresholds that rise again."""
    rule = rule_of(law, ratio, confidence, name)
    assert (np.diff(rule.least) <= 0).all()
    assert (rule.half_widths >= half_width(levels_of(law, ratio), confidence) * (1 - 1e-12)).all()
    if name == "confidence":
        np.testing.assert_allclose(rule.half_widths, rule.within * rule.least)


@pytest.mark.parametrize("law", LEVELS)
def test_the_job_publishes_these_intervals(law):
    """Through the job.

    Of 2,000 groups of each size, the intervals of answered and unanswered groups miss as rarely as
    promised.
    """
    levels, rule = levels_of(law, 2**0.5), rule_of(law, 2**0.5, 0.9, "confidence")
    sizes = np.repeat([0, 7, 25, 60, 150], 2000)
    names = [f"{place}" for place in range(len(sizes))]
    job = Job(levels, rule, Fraction(10**6), GIVEN, len(sizes), 0)
    counting = Refinement(job, names, sizes, SimulationRandomness(6))
    answers = list(counting)
    assert 2000 < len(answers) < len(sizes)
    outside = np.zeros(len(sizes), dtype=bool)
    for answer in (*answers, *counting.unanswered):
        outside[int(answer.group)] = (
            not answer.low - 1e-9 <= sizes[int(answer.group)] <= answer.high + 1e-9
        )
    most = stats.binom.isf(
        FALSE_ALARM, 2000, 0.2
    )  # a group is answered and missed, or not answered and missed: 0.1 each
    assert all(outside[sizes == size].sum() <= most for size in np.unique(sizes))
    assert outside.any()


def stopped_misses(noise: np.ndarray, count: int, rule: StoppingRule) -> int:
    """Paths on which a value of either sign is answered with an interval that misses."""
    good = np.abs(count + noise) >= rule.least[:, None]
    stop = good.argmax(axis=0)
    missed = np.abs(noise[stop, np.arange(noise.shape[1])]) > rule.half_widths[stop] + 1e-9
    return int((good.any(axis=0) & missed).sum())


@pytest.mark.parametrize("law", LEVELS)
@pytest.mark.parametrize("within", [0.1, 0.5])
def test_values_of_either_sign_cover(law, within):
    """Sums: an estimate that is large and negative stops too. False alarm 1e-6 per check."""
    levels, noise = levels_of(law, 2**0.5), noise_of(law, 2**0.5)
    rule = make_rule(levels, within, 0.9, signed=True)
    most = stats.binom.isf(FALSE_ALARM, PATHS, 0.1)
    assert max(stopped_misses(noise, count, rule) for count in COUNTS) <= most


@lru_cache
def many_paths(levels: NoiseLevels) -> np.ndarray:
    """Gaussian levels do not depend on the wanted error, and wide ones take long to draw."""
    return levels.estimates(np.zeros(10_000, dtype=np.int64), SimulationRandomness(11))


@pytest.mark.parametrize("law", LEVELS)
@pytest.mark.parametrize(("within", "confidence"), [(0.1, 0.9), (0.2, 0.9), (0.5, 0.95)])
def test_the_default_ladder_covers(law, within, confidence):
    """The levels that ``count`` uses, with the sensitivity of its finer parts; many sizes."""
    total = Fraction(2) if law == "laplace" else Fraction(1, 12)
    wanted = Wanted(within, None, confidence)
    job = make_job(300, wanted, law=law, total=total, sensitivity=FINER, most_groups=10)
    noise = many_paths(job.levels)
    sizes = np.unique(np.geomspace(FINER * 20, FINER * 20_000, 50).astype(int))
    worst = misses(noise, sizes, job.rule.least, job.rule.half_widths).max()
    assert worst <= stats.binom.isf(FALSE_ALARM, 10_000, 1 - confidence)
    assert worst > 0.2 * 10_000 * (1 - confidence)  # else the intervals would be far too wide


@pytest.mark.parametrize("law", LEVELS)
@pytest.mark.parametrize(("within", "ratio"), [(0.01, None), (0.03, 1.5), (0.1, 2.0), (0.1, 8.0)])
def test_coarse_ladders_cover(law, within, ratio):
    """Levels so far apart that a value surely stops at one and surely not at the one before.

    Catches a bound that looks only at values near the threshold of a level: at ratio 2 it let 12 %
    of the intervals miss.
    """
    total = Fraction(2) if law == "laplace" else Fraction(1, 12)
    job = make_job(300, Wanted(within), law=law, total=total, most_groups=10, ratio=ratio)
    noise = job.levels.estimates(np.zeros(10_000, dtype=np.int64), SimulationRandomness(12))
    sizes = np.unique(np.geomspace(job.rule.least[-1] / 2, job.rule.least[0], 100).astype(int))
    worst = misses(noise, sizes, job.rule.least, job.rule.half_widths).max()
    assert worst <= stats.binom.isf(FALSE_ALARM, 10_000, 0.1)


def test_the_shared_level_pays_little_for_stopping():
    """Within 10 % at 90 % the level that all groups can afford is widened by less than 3 %."""
    total, most = Fraction(2), 10
    job = make_job(300, Wanted(), law="laplace", total=total, sensitivity=FINER, most_groups=most)
    assert job.rule.factor < 1.03


@pytest.mark.parametrize("law", LEVELS)
def test_tail_bounds_hold_on_both_sides(law):
    """upper and lower around the exact tail of one level. Catches a bound on the wrong side."""
    for scale in (0.7, 1.3, 4.0, 9.5):
        levels = LEVELS[law]((1 / scale if law == "laplace" else 0.5 / scale**2,))
        values = np.arange(-400, 401)
        chances = (
            laws.laplace(1 / scale, values) if law == "laplace" else laws.gaussian(scale**2, values)
        )
        for x in np.linspace(0, 6 * scale, 50):
            at_least, above = chances[values >= x].sum(), chances[values > x].sum()
            assert upper(levels, 0, np.array([x]))[0] >= at_least * (1 - 1e-9)
            assert lower(levels, 0, np.array([x]))[0] <= above * (1 + 1e-9)


def test_the_normal_tail_is_bracketed():
    """Against scipy from −7 to 36 deviations."""
    points = np.linspace(-7, 36, 2000)
    exact = stats.norm.sf(points)
    assert (normal_above(points) >= exact).all()
    assert (normal_below(points) <= exact).all()
    np.testing.assert_allclose(normal_above(points), exact, rtol=1e-6)


@pytest.mark.parametrize("within", [0, 1, -0.1, 1.5, float("nan")])
def test_relative_errors_are_between_0_and_1(within):
    with pytest.raises(InvalidInput, match="within"):
        make_rule(levels_of("laplace", 2**0.5), within, 0.9)


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 1.5, float("nan")])
def test_confidences_are_between_0_and_1(confidence):
    with pytest.raises(InvalidInput, match="confidence"):
        make_rule(levels_of("laplace", 2**0.5), 0.1, confidence)


def test_unknown_rules_are_refused():
    with pytest.raises(InvalidInput, match="rule"):
        make_rule(levels_of("laplace", 2**0.5), 0.1, 0.9, "σ")
