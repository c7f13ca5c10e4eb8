"""Repeat-and-select, doubling and Brownian noise reduction beyond pure DP.

They are checked against dp_accounting and by exact enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from expost import (
    ZCDP,
    AboveThreshold,
    ApproxDP,
    Candidate,
    DiscreteGaussian,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RenyiDP,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import Guarantee
from expost.privacy.profiles import DEFAULT_ORDERS, GaussianProfile
from expost.rationals import exact
from expost.selection.baselines import RunCount
from tests.theorems import finite
from tests.theorems.finite_renyi import ORDERS, Array, exact_curves, log_moment, random_pair

WHOLE_ORDERS = (1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)


def unused(data: object, randomness: object) -> object:
    raise AssertionError("pricing never runs a candidate")


def candidate(guarantee: Guarantee, repeats: int = 1) -> Candidate:
    return Candidate(unused, guarantee=guarantee, repeats=repeats)


# Rényi curves of repeat-and-select: dp_accounting's.


def gaussian_curve(noise: float) -> RenyiDP:
    return RenyiDP(WHOLE_ORDERS, tuple(order / (2 * noise**2) for order in WHOLE_ORDERS))


def accountant_curve(noise: float, mean: float, shape: float) -> Array:
    accounting = pytest.importorskip("dp_accounting")
    accountant = accounting.rdp.RdpAccountant(orders=list(WHOLE_ORDERS))
    accountant.compose(
        accounting.dp_event.RepeatAndSelectDpEvent(accounting.GaussianDpEvent(noise), mean, shape)
    )
    return np.asarray(accountant._rdp)


@pytest.mark.parametrize("shape", [0, 0.3, 1, 2.5])
@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
@pytest.mark.parametrize("noise", [0.8, 4.0])
def test_truncated_negative_binomial_curves_are_dp_accountings(
    noise: float, mean: float, shape: float
) -> None:
    """dp_accounting takes the mean and looks for γ; so do we."""
    runs = TruncatedNegativeBinomial.with_mean(shape, mean)
    curve = RepeatAndSelect(runs).charges([candidate(gaussian_curve(noise), repeats=4)])[0]
    assert curve.orders == WHOLE_ORDERS
    assert curve.epsilons == pytest.approx(accountant_curve(noise, mean, shape), rel=1e-6)


@pytest.mark.parametrize("mean", [1.0, 5.0, 80.0])
@pytest.mark.parametrize("noise", [0.8, 2.0, 6.0])
def test_poisson_curves_are_dp_accountings(noise: float, mean: float) -> None:
    """Made monotone, which dp_accounting leaves out here."""
    curve = RepeatAndSelect(Poisson(mean)).charges([candidate(gaussian_curve(noise))])[0]
    theirs = np.minimum.accumulate(accountant_curve(noise, mean, math.inf)[::-1])[::-1]
    assert np.all(np.array(curve.epsilons) >= theirs * (1 - 1e-9))
    assert curve.epsilons == pytest.approx(theirs, rel=1e-6)


def test_named_laws_have_the_mean_they_promise() -> None:
    assert TruncatedNegativeBinomial(1, 1 / 7).mean == pytest.approx(7, rel=1e-12)
    assert TruncatedNegativeBinomial.with_mean(0, 7.0).mean == pytest.approx(7, rel=1e-9)
    for shape in (-0.9, -0.5, 0.5, 3):
        assert TruncatedNegativeBinomial.with_mean(shape, 20.0).mean == pytest.approx(20, rel=1e-9)


def test_negative_shapes_are_priced() -> None:
    """dp_accounting refuses these shapes; the theorem does not.

    A shape nearer −1 has a heavier tail and a smaller charge.
    """
    losses = []
    for shape in (-0.9, -0.5, 0, 1):
        runs = TruncatedNegativeBinomial.with_mean(shape, 10.0)
        losses.append(RepeatAndSelect(runs, delta=1e-6).charges([candidate(ZCDP(0.01))])[0].epsilon)
    assert all(0 < loss < math.inf for loss in losses)
    assert losses == sorted(losses)
    assert losses[0] < 0.85 * losses[-1]


def test_claims_are_conversions_of_one_curve() -> None:
    runs, candidates = TruncatedNegativeBinomial(1, 1 / 10), [candidate(gaussian_curve(4.0))]
    whole = RepeatAndSelect(runs).charges(candidates)[0]
    assert RepeatAndSelect(runs, delta=1e-5).charges(candidates)[0] == whole.to_approx(1e-5)
    assert RepeatAndSelect(runs, order=(3, 12)).charges(candidates)[0] == whole.on((3, 12))
    worst = RepeatAndSelect(runs).charges(
        [candidate(gaussian_curve(4.0)), candidate(gaussian_curve(9.0), 50)]
    )
    assert worst[0] == worst[1] == whole  # the base mechanism may pick the worst candidate


def test_promises_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput):
        RepeatAndSelect(Poisson(3)).charges([candidate(ApproxDP(1, 1e-6))])
    with pytest.raises(InvalidCandidate):
        RepeatAndSelect(TruncatedNegativeBinomial(1, 1 / 3), delta=1e-6).charges(
            [candidate(ApproxDP(1, 1e-6))]
        )
    with pytest.raises(InvalidInput):
        RepeatAndSelect(TruncatedNegativeBinomial(1, 1 / 3), order=1000).charges(
            [candidate(gaussian_curve(1.0))]
        )


# The law of the best of K runs, exactly.


class Selections:
    """Hundreds of random base mechanisms on neighbouring data, under repeat-and-select."""

    def __init__(self, seed: int, instances: int, candidates: int = 2, outputs: int = 4) -> None:
        rng = np.random.default_rng(seed)
        drawn = [[random_pair(rng, outputs) for _ in range(candidates)] for _ in range(instances)]
        self.here, self.there = np.moveaxis(np.array(drawn), 2, 0)
        self.copies = rng.integers(1, 4, (instances, candidates))
        self.both = ((self.here, self.there), (self.there, self.here))

    def laws(self, runs: RunCount) -> tuple[Array, Array, float]:
        """Chances (instance, outcome) on either dataset, and the chance of nothing."""
        ones = np.ones(len(self.here))
        if isinstance(runs, Poisson):
            law, nothing = finite.poisson(runs.mean * ones), math.exp(-runs.mean)
        else:
            law, nothing = (
                finite.truncated_negative_binomial(float(runs.shape), float(runs.gamma) * ones),
                0.0,
            )
        chances = [
            finite.repeat_and_select(q, self.copies, law).low.reshape(len(ones), -1)
            for q in (self.here, self.there)
        ]
        return chances[0], chances[1], nothing

    def base(self) -> tuple[Array, Array]:
        """The base mechanism, "pick a copy and run it"."""
        share = (self.copies / self.copies.sum(1, keepdims=True))[..., None]
        return (self.here * share).reshape(len(share), -1), (self.there * share).reshape(
            len(share), -1
        )


def hockey_stick(p: Array, q: Array, epsilon: float | Array) -> Array:
    return np.maximum(p - np.exp(np.broadcast_to(epsilon, (len(p),)))[:, None] * q, 0.0).sum(1)


RUNS: list[TruncatedNegativeBinomial] = [
    TruncatedNegativeBinomial(shape, gamma)
    for shape in (-0.5, 0, 1, 2.5)
    for gamma in (0.02, 0.3, 0.9)
]


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7, 2.0])
def test_approximate_charges_hold_by_enumeration(epsilon: float) -> None:
    """Each instance promises (ε, its own exact δ at ε); the selection must be (ε_out, δ_out)-DP."""
    selections, closest = Selections(11, 300), 0.0
    deltas = np.max([hockey_stick(p, q, epsilon) for p, q in _both(*selections.base())], axis=0)
    for runs in RUNS:
        promises = [ApproxDP(epsilon, float(delta)) for delta in deltas]
        fits = np.array([runs.mean * promise.delta < 1 for promise in promises])
        bounds = [
            runs.approx_charge(promise) for promise, fit in zip(promises, fits, strict=True) if fit
        ]
        law, other, _ = selections.laws(runs)
        for p, q in _both(law[fits], other[fits]):
            realised = hockey_stick(p, q, np.array([bound.epsilon for bound in bounds]))
            allowed = np.array([bound.delta for bound in bounds])
            assert np.all(realised <= allowed * (1 + 1e-9))
            closest = max(closest, float(np.max(realised[allowed > 0] / allowed[allowed > 0])))
    assert closest > 0.02


def test_approximate_charges_are_nearly_met() -> None:
    """A top output of probability δ on D and 0 on D′.

    Some of K runs find it with probability about E[K]·δ.
    """
    delta, runs = 1e-6, TruncatedNegativeBinomial(1, 1 / 10)
    here, there = np.array([[[1 - delta, delta]]]), np.array([[[1.0, 0.0]]])
    law, other = (
        finite.repeat_and_select(
            q, np.ones((1, 1)), finite.truncated_negative_binomial(1, np.array([0.1]))
        ).low.reshape(1, -1)
        for q in (here, there)
    )
    bound = runs.approx_charge(ApproxDP(0.5, delta))
    realised = float(hockey_stick(law, other, bound.epsilon)[0])
    assert 0.999 * bound.delta <= realised <= bound.delta
    assert realised > 9 * delta  # so the δ of a single run would not do


def _both(p: Array, q: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (p, q), (q, p)


@pytest.mark.parametrize("mean", [0.2, 1.0, 15.0])
def test_poisson_pure_charges_hold_by_enumeration(mean: float) -> None:
    """ε + μ·tanh(ε/2), which is below 2ε for small μ: the log ratio of every outcome."""
    selections, runs = Selections(12, 400), Poisson(mean)
    base, base_there = (np.log(q) for q in selections.base())
    epsilons = np.abs(base - base_there).max(1)
    law, other, _ = selections.laws(runs)
    realised = np.abs(np.log(law) - np.log(other)).max(1)
    charges = np.array(
        [RepeatAndSelect(runs).charges([candidate(PureDP(each))])[0].epsilon for each in epsilons]
    )
    assert np.all(realised <= charges + 1e-9)
    assert np.max(realised / charges) > 0.6


@pytest.mark.parametrize("runs", [*RUNS, Poisson(0.3), Poisson(1), Poisson(20)], ids=str)
def test_renyi_charges_hold_by_enumeration(runs: RunCount) -> None:
    """The moment over all outcomes, "nothing" among them, at every order and both ways round."""
    selections = Selections(13, 150)
    base = selections.base()
    curves = exact_curves(*base)
    law, other, nothing = selections.laws(runs)
    charges = [
        RepeatAndSelect(runs).charges([candidate(RenyiDP(ORDERS, tuple(curve.tolist())))])
        for curve in curves
    ]
    for place, order in enumerate(ORDERS):
        losses = np.array([table[0].epsilons[place] for table in charges])
        free = np.array([table.nothing.epsilons[place] for table in charges])
        for p, q in _both(law, other):
            total = np.exp(log_moment(p, q, order) - (order - 1) * losses) + nothing * np.exp(
                -(order - 1) * free
            )
            assert np.all(total <= 1 + 1e-9)


def test_nothing_is_not_free_under_renyi_dp() -> None:
    """A Poisson selection whose moment is in one rare output.

    With a free "nothing" the sum of ex-post RDP is 1.2.
    """
    order, orders = 120.0, (2, 8, 32, 64, 80, 100, 110, 120, 130, 200)
    rare, grown = math.exp(-230), math.exp(-228)
    here, there = np.array([[1 - grown, grown]]), np.array([[1 - rare, rare]])
    curve = RenyiDP(orders, tuple(exact_curves(here, there, orders)[0].tolist()))
    table = RepeatAndSelect(Poisson(1), order=order).charges([candidate(curve)])
    law, other = (
        np.array([[math.exp(-1) * math.expm1(1 - q[0, 1]), -math.expm1(-q[0, 1])]])
        for q in (here, there)
    )
    released = math.exp(log_moment(law, other, order)[0] - (order - 1) * table[0].epsilons[0])
    assert released + math.exp(-1) > 1.2
    assert released + math.exp(-1) * math.exp(-(order - 1) * table.nothing.epsilons[0]) <= 1


def test_nothing_carries_the_delta_of_the_claim() -> None:
    """δ is one number for all outcomes.

    A filter that got δ = 0 back for every "nothing" could be asked again without end.
    """
    table = RepeatAndSelect(Poisson(0.01), delta=1e-6).charges([candidate(ZCDP(0.01))])
    assert table.nothing == ApproxDP(0, 1e-6)
    assert RepeatAndSelect(Poisson(2)).charges([candidate(PureDP(1))]).nothing == PureDP(0)


# Doubling: sums, whatever the kind of promise.


def cumulative(values: Sequence[float], repeats: Sequence[int]) -> list[Fraction]:
    total, sums = Fraction(0), []
    for value, count in zip(values, repeats, strict=True):
        total += Fraction(value) * count
        sums.append(total)
    return sums


REPEATS = (1, 3, 2)


def test_doubling_adds_zcdp_promises() -> None:
    rhos = (0.1, 0.2, 0.4)
    table = Doubling(1.0).charges(
        [candidate(ZCDP(rho), count) for rho, count in zip(rhos, REPEATS, strict=True)]
    )
    for place, total in enumerate(cumulative(rhos, REPEATS)):
        assert total <= Fraction(table[place].rho) <= total * (1 + Fraction(1, 2**50))
    assert table.nothing == table[2]


def test_doubling_adds_curves_order_by_order() -> None:
    orders, curves = (2, 8, 32), [(0.1, 0.3, 0.9), (0.2, 0.3, 0.7), (0.4, 0.5, 0.6)]
    table = Doubling(1.0).charges(
        [candidate(RenyiDP(orders, curve), n) for curve, n in zip(curves, REPEATS, strict=True)]
    )
    for order, losses in enumerate(zip(*curves, strict=True)):
        for place, total in enumerate(cumulative(losses, REPEATS)):
            assert (
                total <= Fraction(table[place].epsilons[order]) <= total * (1 + Fraction(1, 2**50))
            )
    assert table.nothing == table[2]


def test_doubling_adds_epsilons_and_charges_the_whole_delta() -> None:
    """An early stop saves ε, never δ: the ex-post definition has one δ for all outcomes."""
    epsilons, deltas = (0.1, 0.2, 0.4), (1e-7, 2e-7, 3e-7)
    promises = [ApproxDP(epsilon, delta) for epsilon, delta in zip(epsilons, deltas, strict=True)]
    table = Doubling(1.0).charges(
        [candidate(promise, count) for promise, count in zip(promises, REPEATS, strict=True)]
    )
    for place, total in enumerate(cumulative(epsilons, REPEATS)):
        assert total <= Fraction(table[place].epsilon) <= total * (1 + Fraction(1, 2**50))
        assert table[place].delta == table.nothing.delta >= 1e-7 + 3 * 2e-7 + 2 * 3e-7 - 1e-20
    assert table.nothing == table[2]


# Brownian noise reduction.


def test_brownian_noise_reduction_charges_the_level() -> None:
    """ρ of the level released, not the sum; "nothing" has looked at all of them."""
    query, rhos = Query(len), (Fraction(1, 1000), Fraction(1, 100), Fraction(1, 10))
    table = NoiseReduction(at_least=0).charges(
        [Candidate(DiscreteGaussian(query, rho)) for rho in rhos]
    )
    assert [table[place] for place in range(3)] == [ZCDP(rho) for rho in rhos]
    assert table.nothing == table.worst_case == ZCDP(rhos[-1])
    with pytest.raises(InvalidCandidate):
        NoiseReduction(at_least=0).charges(
            [Candidate(DiscreteGaussian(query, rho)) for rho in rhos[::-1]]
        )


# Stable forms.


@pytest.mark.parametrize("shape", [-0.9, -1e-9, -1e-320, 0, 1e-320, 1e-300, 1e-9, 0.5, 1, 7])
@pytest.mark.parametrize(
    "gamma", [1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 2.0**-53, Fraction(10**20 - 1, 10**20)]
)
def test_the_mean_number_of_runs_is_stable(shape: float, gamma: float) -> None:
    """Catches underflow at tiny shapes (a claim of δ = 5e-324) and a γ that rounds to 1."""
    mean = TruncatedNegativeBinomial(shape, gamma).mean
    with mpmath.workdps(400):
        eta, g = mpmath.mpf(shape), mpmath.mpf(Fraction(gamma).numerator)
        g /= Fraction(gamma).denominator
        exactly = (
            (1 - g) / g / -mpmath.log(g)
            if eta == 0
            else eta * (1 - g) / (g * (1 - mpmath.power(g, eta)))
        )
        assert abs(mean / exactly - 1) < 1e-13


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-20, 1e-9, 1.0, 700.0, 709.9, 800.0, 1e6])
@pytest.mark.parametrize("delta", [0.0, 5e-324, 1e-300, 1e-9, 1e-3])
@pytest.mark.parametrize("shape", [-0.5, 1e-320, 0, 1])
def test_the_charge_of_approximate_promises_is_stable(
    epsilon: float, delta: float, shape: float
) -> None:
    """Catches log(exp(ε)): it loses a small ε and overflows at 710."""
    charge = TruncatedNegativeBinomial(shape, 0.1).approx_charge(ApproxDP(epsilon, delta))
    with mpmath.workdps(400):
        eps, extra = mpmath.mpf(epsilon), mpmath.mpf(delta) * (1 - mpmath.mpf(0.1)) / 0.1
        exactly = eps + (1 + mpmath.mpf(shape)) * mpmath.log(mpmath.exp(eps) + extra)
        assert exactly <= charge.epsilon <= exactly * (1 + mpmath.mpf(10) ** -12) + 1e-323
    assert (charge.delta == 0) == (delta == 0)
    assert charge.delta >= delta


def test_certificates_name_the_theorem_that_was_used() -> None:
    """Catches a certificate that cites a result for pure DP for another kind of charge."""
    rows = {
        (1, "pure"): "Liu-Talwar 2019",
        (0, "pure"): "Corollary 3",
        (1, "renyi"): "Papernot-Steinke 2022, Theorem 2",
        (1, "delta"): "Papernot-Steinke 2022, Theorem 2",
        (1, "approx"): "Koskela",
        ("poisson", "pure"): "generating function",
        ("poisson", "renyi"): "Theorem 6",
    }
    promises: dict[str, Guarantee] = {
        "pure": PureDP(0.1),
        "renyi": ZCDP(0.1),
        "delta": PureDP(0.1),
        "approx": ApproxDP(0.1, 1e-9),
    }
    for (law, kind), name in rows.items():
        runs = Poisson(3) if law == "poisson" else TruncatedNegativeBinomial(law, 0.2)
        selector = RepeatAndSelect(runs, delta=1e-6 if kind == "delta" else None)
        assert name in selector._theorem([candidate(promises[kind])]), (law, kind)


@pytest.mark.parametrize("law", [Poisson(20), TruncatedNegativeBinomial(1, 0.05)])
def test_the_profile_of_a_run_is_not_that_of_the_selection(law: RunCount) -> None:
    """A profile kept by accident would charge a selection of twenty runs like one run."""
    plain = gaussian_for(0.5, 1e-6).to_renyi(DEFAULT_ORDERS)
    sharp = replace(plain, profile=GaussianProfile(math.sqrt(2 * 1e-3)))
    selector = RepeatAndSelect(law, delta=1e-6)
    charges = [selector.charges([candidate(each)])[0].size for each in (plain, sharp)]
    assert charges[0] == charges[1] > sharp.to_approx(1e-6).size
    assert law.renyi_charge(sharp).profile is None


def test_the_theorem_names_the_bounds_that_a_charge_may_rest_on() -> None:
    """At fixed orders composition or a larger order; with a δ composition or profiles."""
    for make in (RandomDropping, AboveThreshold):
        bar = {} if make is RandomDropping else {"at_least": 1.0}
        at_order = make(0.1, order=8.0, **bar)._theorem([candidate(ZCDP(0.1))])
        assert "plain composition" in at_order
        alone = make(0.1, delta=1e-6, **bar)._theorem([candidate(ZCDP(0.1))])
        assert "(T3), or plain composition" in alone
        paper = make(0.1, order=8.0, method="paper", **bar)._theorem([candidate(ZCDP(0.1))])
        assert "plain composition" not in paper


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RandomDropping(5e-324), "overhead"),
        (lambda: RandomDropping(Fraction(1, 10**400), delta=1e-6), "overhead"),
        (lambda: AboveThreshold(1e-310, at_least=1), "overhead"),
        (lambda: RandomDropping(0.1, delta=Fraction(1, 10**400)), "smallest float"),
        (lambda: RepeatAndSelect(Poisson(2), delta=Fraction(1, 10**400)), "smallest float"),
        (lambda: ZCDP(0.1).to_approx(Fraction(1, 10**400)), "smallest float"),
        (lambda: RenyiDP((2.0,), (0.1,)).to_approx(Fraction(1, 10**400)), "smallest float"),
        (lambda: TruncatedNegativeBinomial(1, 1e-320), "gamma"),
        (lambda: Candidate(unused, guarantee=PureDP(0), drop_rate=5e-324), "drop_rate"),
    ],
)
def test_numbers_that_no_formula_can_use_are_refused(
    make: Callable[[], object], match: str
) -> None:
    """Catches a ValueError or ZeroDivisionError from inside, or a δ that is larger than asked."""
    with pytest.raises(InvalidInput, match=match):
        make()


def test_a_delta_is_never_rounded_up() -> None:
    """Catches a claim with a larger δ than the caller asked for."""
    asked = Fraction(1, 10**6)
    charges = RandomDropping(0.1, delta=asked).charges([candidate(ZCDP(0.1))])
    assert Fraction(charges[0].shared_delta or 1) <= asked


# Algorithm 1 compares integers as integers.


@pytest.mark.parametrize("size", [2**53, 2**60, 10**400], ids=["small", "near", "huge"])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_algorithm_1_compares_integers_exactly(size: int, step: int) -> None:
    """Catches a comparison in floating point: a count just below the target would pass."""
    comparison = AboveThreshold(1.0, at_least=2.0**60)
    asked = [Candidate(Query(lambda data: data), guarantee=PureDP(1))]
    true, seeds = size + step, range(40)
    for seed in seeds:
        release = comparison.select(
            asked, true, randomness=SimulationRandomness(seed), simulation=True
        )
        if release.passed:
            assert isinstance(release.value, int)
            assert release.value >= 2**60
            assert release.score == (math.inf if size > 2**60 else float(release.value))
    if size == 10**400:
        assert release.passed
    if size == 2**53:
        assert not release.passed


@pytest.mark.parametrize(("number", "passes"), [(2**60, True), (2**60 - 1, False)])
def test_whole_scores_are_compared_exactly(number: int, passes: bool) -> None:
    """float(2**60 − 1) is 2**60: as floats both would pass."""
    for score in (None, lambda value: np.int64(value)):
        release = RandomDropping(1.0, at_least=2**60).select(
            [Candidate(lambda data, randomness: number, guarantee=PureDP(0))], None, score=score
        )
        assert release.passed is passes


def test_whole_scores_are_ranked_exactly() -> None:
    given = [
        Candidate(lambda data, randomness, n=n: n, guarantee=PureDP(0)) for n in (2**60, 2**60 + 1)
    ]
    assert RandomDropping(1.0).select(given, None).value == 2**60 + 1


@given(
    st.one_of(
        st.floats(-15, -0.1).map(lambda power: 10**power - 1),  # close to -1
        st.floats(-0.999, 50),
        st.sampled_from([-0.999999, -1e-300, 0.0, 1e-300, 1e-9, 1e9]),
    ),
    st.one_of(
        st.floats(-290, -1e-3).map(lambda power: 10**power),
        st.floats(-15, -0.4).map(lambda power: 1 - 10**power),
    ),
)
@example(-0.999999, 5.349601434572105e-239)
@example(-0.5, 4.007379771263506e-284)
def test_the_mean_number_of_runs_is_rounded_up(shape: float, gamma: float) -> None:
    """The public call: δ is charged E[K] times, for every shape > -1 and every γ."""
    runs = TruncatedNegativeBinomial(shape, gamma)
    delta = 0.1 / runs.mean
    charge = RepeatAndSelect(runs).charges([candidate(ApproxDP(0.5, delta))])[0]
    with mpmath.workdps(700):
        eta, g = (mpmath.mpf(each.numerator) / each.denominator for each in _exact(shape, gamma))
        few = (1 - g) / g
        mean = few / mpmath.log(1 / g) if eta == 0 else eta * few / (1 - g**eta)
        exponent = max(0, min(-shape, 1 + shape)) * -math.log(gamma)  # of the better of two forms
        assert mean <= runs.mean <= mean * (1 + mpmath.mpf(5e-15 + 1e-15 * exponent))
        assert mean * mpmath.mpf(delta) <= charge.delta


def _exact(*numbers: float) -> list[Fraction]:
    """Numbers as expost reads them."""
    return [exact(number, "number") for number in numbers]
