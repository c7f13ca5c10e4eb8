"""Intervals of means: one look covers as stated, and so does an answer that its noise chose."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy import stats

from expost import SimulationRandomness
from expost.analytics.means import (
    MeanRefinement,
    _laplace_tail,
    _unit_quantiles,
    mean_rule,
    quantiles,
    worst_mean_miss,
)
from expost.analytics.refinement import Job, make_job
from expost.analytics.refinement_goals import Wanted
from expost.analytics.refinement_noise import GaussianLevels, LaplaceLevels

FALSE_ALARM = 1e-8


def mean_job(groups: int, law: str, *, most: int, low: int = 0, spread: int = 100) -> Job:
    rule = partial(
        mean_rule, confidence=0.9, low=low, high=low + spread, within=0.1, plus_minus=None
    )
    total = Fraction(3) if law == "laplace" else Fraction(1)
    return make_job(
        groups,
        Wanted(),
        rule_of=rule,
        law=law,
        total=total,
        sensitivity=spread,
        most_groups=most,
        spaced=True,
    )


def missed(job: Job, first: np.ndarray, second: np.ndarray, seed: int, low: int = 0) -> int:
    """How many intervals of a run miss their group's mean, for bounds low … low + 100."""
    names = list(range(len(first)))
    randomness = SimulationRandomness(seed)
    run = MeanRefinement(job, names, first, second, randomness, low=low, high=low + 100)
    answers = [*run, *run.unanswered]
    assert len(answers) == len(first)
    means = low + 100 * first / (first + second)
    return sum(not a.low - 1e-9 <= means[a.group] <= a.high + 1e-9 for a in answers)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize(("low", "size", "share"), [(0, 40, 0.5), (0, 150, 0.1), (-50, 600, 0.8)])
def test_single_looks_cover_as_stated(law, low, size, share):
    """2,000 groups, m = 1: all but one have the interval of a single look.

    Misses are at most 10 % and not far below. Catches a union over the two sums (0.7 %), and a
    quantile of one of them.
    """
    groups = 2000
    first = np.full(groups, int(size * 100 * share))
    found = missed(mean_job(groups, law, most=1, low=low), first, size * 100 - first, 8, low)
    assert found <= stats.binom.isf(FALSE_ALARM, groups, 0.1)
    assert found >= stats.binom.isf(1 - FALSE_ALARM, groups, 0.085)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_answers_whose_noise_decided_cover(law):
    """2,000 groups that are all charged, of sizes between two thresholds: answered by their noise.

    At most 10 % are missed, and about 6 %, not 0.1 %. Catches half-widths of a single look (11 %).
    """
    groups = 2000
    sizes = np.geomspace(300, 900, groups).astype(np.int64)
    first = sizes * 30
    job = mean_job(1, law, most=1)
    job = Job(job.levels, job.rule, Fraction(10**9), job.order, groups, len(job.levels.costs) - 1)
    found = missed(job, first, sizes * 100 - first, 3)
    assert found <= stats.binom.isf(FALSE_ALARM, groups, 0.1)
    assert found >= stats.binom.isf(1 - FALSE_ALARM, groups, 0.045)


@pytest.mark.parametrize("theta", [0.0, 0.02, 0.3, 0.5])
def test_quantiles_of_both_noises_together(theta):
    """Against 10⁶ draws, and the exact law of a sum of discrete Laplace noise at θ = ½."""
    generator = np.random.default_rng(2)
    noise = (1 - theta) * generator.laplace(size=10**6) - theta * generator.laplace(size=10**6)
    for miss in (0.1, 0.02):
        unit = float(_unit_quantiles("laplace", miss)[int(theta * 512)])
        share = float((np.abs(noise) > unit).mean())
        assert stats.binomtest(int(share * 10**6), 10**6, miss).pvalue > 1e-6 or share < miss
        assert share > miss * 0.97
        assert float(_laplace_tail(np.array(unit), 1 - theta, theta)) <= miss * (1 + 1e-9)


@pytest.mark.parametrize("kind", [LaplaceLevels, GaussianLevels])
def test_discrete_noise_is_covered_exactly(kind):
    """P(|(1 − θ)Z₁ − θZ₂| > q) by enumeration, for noise so small that the lattice matters."""
    from tests.analytics import laws

    values = np.arange(-60, 61)
    for cost in (0.3, 2.0):
        levels = kind((cost,), 2)
        scale = float(levels.scales[0])
        masses = (
            laws.laplace(1 / scale, values)
            if levels.law == "laplace"
            else laws.gaussian(scale**2, values)
        )
        joint = masses[:, None] * masses[None, :]
        for miss in (0.3, 0.1, 0.01):
            unit = _unit_quantiles(levels.law, miss)
            for cell in (0, 13, 128, 256):
                theta = cell / 512
                noise = np.abs((1 - theta) * values[:, None] - theta * values[None, :])
                width = scale * float(unit[cell]) + 1
                assert joint[noise > width].sum() <= miss


def test_the_bound_is_at_most_what_is_allowed():
    """And would not be for the miss probability of a single look."""
    for law in ("laplace", "gaussian"):
        job = mean_job(1, law, most=1)
        assert worst_mean_miss(job.levels, job.rule.miss, (10.0, 0.0), 100) <= 0.1
        assert 0.05 < job.rule.miss < 0.09
        assert worst_mean_miss(job.levels, 0.1, (10.0, 0.0), 100) > 0.1
        assert (np.diff(quantiles(job.levels, 0.1)) < 0).all()
