"""The usual baselines: :class:`RepeatAndSelect` and :class:`Doubling`.

Repeat and select makes a random number of runs and releases the best (Liu and Talwar 2019;
Papernot and Steinke 2022). Doubling runs one candidate after another and pays for all (the paper's
baseline). Each class and each law of the number of runs states its guarantee and its tests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.engine import ReleaseRule
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ApproxDP, Guarantee, PureDP, RenyiDP, zero_like
from expost.privacy.profiles import DEFAULT_ORDERS
from expost.randomness.coins import poisson, truncated_negative_binomial
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, exact_normal, exact_positive, pad_up, round_up
from expost.selection.candidate import all_copies, check_goal
from expost.selection.drop_law import ChargeKind
from expost.selection.selector import Candidates, Draws, Selector


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """Papernot and Steinke's truncated negative binomial law on K ≥ 1.

    Parameters
    ----------
    shape : number
        η > −1. η = 1 is the geometric law (Liu and Talwar), η = 0 the logarithmic law.
    gamma : number
        γ in (0, 1); a smaller γ gives more runs.

    Notes
    -----
    Pure DP: the charge is (2 + η)·ε (their Corollary 3). With η = 1 it is the 3ε of Liu and Talwar.
    """

    shape: Number
    gamma: Number

    def __post_init__(self) -> None:
        if exact(self.shape, "shape") <= -1:
            raise InvalidInput("shape", self.shape, "give a number > -1")
        if not 0 < exact(self.gamma, "gamma") < 1:
            raise InvalidInput("gamma", self.gamma, "give a number strictly between 0 and 1")
        exact_normal(self.gamma, "gamma")

    @classmethod
    def with_mean(cls, shape: Number, mean: float) -> TruncatedNegativeBinomial:
        """Return the law of this shape whose mean is about ``mean`` (> 1)."""
        if not 1 < mean < math.inf:
            raise InvalidInput("mean", mean, "give a finite number > 1")
        low, high = -700.0, -1e-12  # log γ; the mean falls as γ grows
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if cls(shape, math.exp(middle)).mean > mean else (low, middle)
            )
        return cls(shape, math.exp(high))

    def draw(self, randomness: Randomness) -> int:
        """Draw K exactly."""
        return truncated_negative_binomial(
            exact(self.shape, "shape"), exact(self.gamma, "gamma"), randomness
        )

    def pure_charge(self, epsilon: Fraction) -> float:
        """Return (2 + η)·ε, exact and rounded up."""
        return round_up((2 + exact(self.shape, "shape")) * epsilon)

    def renyi_charge(self, curve: RenyiDP) -> RenyiDP:
        """Return the curve of Papernot and Steinke's Theorem 2, made monotone in λ, padded up.

        ε(λ) + (1+η)·min over λ̂ of [(1−1/λ̂)ε(λ̂) + ln(1/γ)/λ̂] + ln E[K]/(λ−1).
        """
        orders, losses = np.array(curve.orders), np.array(curve.epsilons)
        inner = (1 - 1 / orders) * losses - self._log_gamma / orders
        constant = float(1 + exact(self.shape, "shape")) * float(np.min(inner))
        total = losses + constant + math.log(self.mean) / (orders - 1)
        return _monotone(curve, total)

    def approx_charge(self, guarantee: ApproxDP) -> ApproxDP:
        """Return (ε + (1+η)·ln(e^ε + δ(1−γ)/γ), E[K]·δ), padded up.

        This is the privacy-profile bound of Koskela, Redberg and Wang (2024) at one point. With
        η = 1 it is Liu and Talwar's random stopping under (ε, δ)-DP. The logarithm is evaluated as
        ε + ln(1 + e^{−ε}·δ(1−γ)/γ), which neither loses a small ε nor overflows at a large one.
        """
        gamma = exact(self.gamma, "gamma")
        added = round_up(exact(guarantee.delta, "delta") * (1 - gamma) / gamma)
        loss = guarantee.epsilon + math.log1p(added * math.exp(-guarantee.epsilon))
        epsilon = pad_up(guarantee.epsilon + float(1 + exact(self.shape, "shape")) * loss)
        delta = 0.0 if guarantee.delta == 0 else pad_up(self.mean * guarantee.delta)
        return ApproxDP(epsilon, delta, guarantee.neighbours)

    @property
    def mean(self) -> float:
        """The expected number of runs, E[K] = η(1−γ)/(γ(1−γ^η)), rounded up.

        With L = ln(1/γ) it is (1−γ)/γ·η/(1−e^{−ηL}), and for η = −a < 0 the same is
        (1−γ)·a·e^{(1−a)L}/(1−e^{−aL}). Near η = −1 the first form divides large numbers, with
        the error of e^{aL}; the second has the exact 1+η in its exponent. A call of exp changes
        by the relative error of its exponent times the exponent; this and a dozen roundings are
        added.
        """
        gamma, eta, length = (
            exact(self.gamma, "gamma"),
            exact(self.shape, "shape"),
            -self._log_gamma,
        )
        second = eta < Fraction(-1, 2)
        power = float(1 + eta) * length if second else 0.0
        x = float(abs(eta) if second else eta) * length
        # x/(1−e^{−x}) = 1 + x/2 + x²/12 − …
        part = 1 + x / 2 if abs(x) < 1e-8 else x / -math.expm1(-x)
        many = round_up(1 - gamma if second else (1 - gamma) / gamma)
        slack = (16 + 4 * (power if second else max(0.0, -x))) * 2.0**-53
        return math.nextafter(many * (part / length) * math.exp(power) * (1 + slack), math.inf)

    @property
    def _log_gamma(self) -> float:
        """ln γ, also for a γ that rounds to 1."""
        gamma = exact(self.gamma, "gamma")
        near_one = gamma > Fraction(1, 2)
        return math.log1p(-float(1 - gamma)) if near_one else math.log(float(gamma))

    @property
    def deviation(self) -> float:
        """The standard deviation of K."""
        eta, gamma = float(self.shape), float(self.gamma)
        # E[K²] = E[K]·(1 + η(1−γ))/γ
        second = self.mean * (float(1 + exact(self.shape, "shape")) - eta * gamma) / gamma
        return math.sqrt(max(0.0, second - self.mean**2))

    def theorem(self, kind: str) -> str:
        """Return the result that the charges rest on, for one kind of charge."""
        if kind == "renyi":
            return "Papernot-Steinke 2022, Theorem 2"
        if kind == "approx":
            return "Koskela-Redberg-Wang 2024, privacy profile at one point"
        if self.shape == 1:
            return "Liu-Talwar 2019, random stopping"
        return "Papernot-Steinke 2022, Corollary 3"

    def as_dict(self) -> dict[str, Any]:
        """Return the law in plain JSON types."""
        return {
            "law": "truncated-negative-binomial",
            "shape": float(self.shape),
            "gamma": float(self.gamma),
        }


@dataclass(frozen=True)
class Poisson:
    """A Poisson number of runs.

    K = 0 is possible; then nothing is released. This outcome is free, except under Rényi DP.

    Parameters
    ----------
    expected : number
        μ > 0, the expected number of runs.

    Notes
    -----
    Pure DP: the charge is ε + μ·tanh(ε/2). Proof: the law of the best of K runs is f(q) for the
    generating function f(q) = e^{μ(q−1)}. So the ratio of outcomes is at most
    e^ε·f′(q)/f′(q′) = e^{ε + μ(q−q′)}, and the probabilities of an event on neighbouring data under
    an ε-DP mechanism differ by at most tanh(ε/2).
    """

    expected: Number

    def __post_init__(self) -> None:
        exact_positive(self.expected, "expected")

    def draw(self, randomness: Randomness) -> int:
        """Draw K exactly."""
        return poisson(exact(self.expected, "expected"), randomness)

    def pure_charge(self, epsilon: Fraction) -> float:
        """Return ε + μ·tanh(ε/2), padded up."""
        value = float(epsilon)
        return pad_up(value + float(self.expected) * math.tanh(value / 2))

    def renyi_charge(self, curve: RenyiDP) -> RenyiDP:
        """Return the curve of Papernot and Steinke's Theorem 6, padded up.

        ε(λ) + μ·δ̂ + ln(μ)/(λ−1), where each run is (ln(1 + 1/(λ−1)), δ̂)-DP by the tight conversion.
        """
        orders, losses = np.array(curve.orders), np.array(curve.epsilons)
        # Rows: the order λ of the result. Columns: the order at which a run's δ̂ is converted.
        wanted = np.log1p(1 / (orders - 1))[:, None]
        log_delta = (
            (orders - 1) * (losses - wanted) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
        )
        delta = np.exp(np.minimum(log_delta.min(axis=1), 0.0))
        total = losses + self.mean * delta + max(0.0, math.log(self.mean)) / (orders - 1)
        return _monotone(curve, total)

    def approx_charge(self, guarantee: ApproxDP) -> ApproxDP:
        """Refuse: no bound is known here for Poisson runs of (ε, δ) guarantees."""
        raise InvalidInput(
            "runs", self, "Poisson runs are priced for pure and Rényi guarantees only"
        )

    @property
    def mean(self) -> float:
        """The expected number of runs, E[K]."""
        return float(self.expected)

    @property
    def deviation(self) -> float:
        """The standard deviation of K."""
        return math.sqrt(self.mean)

    def theorem(self, kind: str) -> str:
        """Return the result that the charges rest on, for one kind of charge."""
        if kind == "renyi":
            return "Papernot-Steinke 2022, Theorem 6"
        return "Papernot-Steinke 2022, Poisson, by its generating function"

    def as_dict(self) -> dict[str, Any]:
        """Return the law in plain JSON types."""
        return {"law": "poisson", "expected": float(self.expected)}


RunCount = TruncatedNegativeBinomial | Poisson
"""The laws of K, the number of runs."""


def _monotone(curve: RenyiDP, losses: Floats) -> RenyiDP:
    """Return a curve from bounds at each order; a bound at an order holds at smaller ones, too."""
    # Divergence grows with the order, so a larger order's bound may replace a smaller one's.
    best = np.minimum.accumulate(losses[::-1])[::-1]
    padded = tuple(pad_up(float(loss)) for loss in best)
    return replace(curve, epsilons=padded, profile=None)  # of the selection, not of one run


@dataclass(frozen=True)
class RepeatAndSelect(Selector):
    """Draw a number of runs K, pick a candidate uniformly for each run, release the best.

    A candidate with several copies is picked more often in proportion.

    Parameters
    ----------
    runs : TruncatedNegativeBinomial or Poisson
        The law of K.
    delta : number, optional
        For Rényi guarantees: δ of an (ε, δ) claim.
    order : number or tuple of numbers, optional
        For Rényi guarantees: orders of the charges. Pass ``delta`` or ``order``, not both; without
        them Rényi guarantees are charged with the whole curve.

    Notes
    -----
    The base mechanism is "pick a candidate and run it". It keeps the worst guarantee of the list,
    so every outcome costs the same.

    - Pure DP: (2 + η)·ε, or ε + μ·tanh(ε/2) for Poisson runs.
    - Rényi guarantees: Papernot and Steinke's curve.
    - (ε, δ) guarantees: see ``TruncatedNegativeBinomial.approx_charge``.

    It is assumed that candidates keep their guarantees and that scores depend on outputs alone.
    Charges are rounded up. Tests: ``tests/theorems/test_pure.py``,
    ``tests/selection/test_baselines.py``.

    References
    ----------
    Liu and Talwar 2019; Papernot and Steinke 2022; Koskela, Redberg and Wang 2024.
    """

    runs: RunCount
    delta: Number | None = None
    order: Number | tuple[Number, ...] | None = None
    name: ClassVar[str] = "repeat-and-select"
    rule: ClassVar[ReleaseRule] = ReleaseRule.BEST

    def __post_init__(self) -> None:
        if not isinstance(self.runs, RunCount):
            raise InvalidInput(
                "runs",
                self.runs,
                "give TruncatedNegativeBinomial(shape, gamma) or Poisson(expected)",
            )
        ChargeKind.check(self.delta, self.order, "sharp")

    def _price(self, candidates: Candidates) -> Charges:
        """Charge every candidate the same: the charge of the worst guarantee."""
        charge = self._charge(worst_guarantee(candidates))
        return Charges((charge,), (0,) * len(candidates), _of_nothing(charge))

    def _charge(self, guarantee: Guarantee) -> Guarantee:
        """Return the charge of every outcome if each run keeps ``guarantee``."""
        claim = ChargeKind.check(self.delta, self.order, "sharp")
        pair = None if guarantee.shared_delta is None else guarantee.as_approx()
        if pair is not None:
            if claim is not None:
                raise InvalidCandidate(
                    "guarantee",
                    guarantee,
                    "an (ε, δ) guarantee is charged as (ε, δ); leave delta and order out",
                )
            return self.runs.approx_charge(pair)
        if guarantee.as_pure() is not None and claim is None:
            return PureDP(self.runs.pure_charge(guarantee.size), guarantee.neighbours)
        curve = self.runs.renyi_charge(guarantee.as_renyi() or guarantee.to_renyi(DEFAULT_ORDERS))
        if claim is None:
            return curve
        return curve.on(claim.orders) if claim.delta is None else curve.to_approx(claim.delta)

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result for the law of K and the kind of charge."""
        guarantee = worst_guarantee(candidates)
        if guarantee.shared_delta is not None:
            return self.runs.theorem("approx")
        pure = guarantee.as_pure() is not None and self.delta is None and self.order is None
        return self.runs.theorem("pure" if pure else "renyi")

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw K and a candidate for each run."""
        ends = list(accumulate(candidate.repeats for candidate in candidates))
        # K is drawn before the picks, and sorting hides their order; both use no data.
        copies = [randomness.below(ends[-1]) for _ in range(self.runs.draw(randomness))]
        return {"kept": sorted(bisect_right(ends, copy) for copy in copies)}


def worst_guarantee(candidates: Candidates) -> Guarantee:
    """Return the smallest guarantee that every candidate keeps."""
    distinct = {id(candidate.guarantee): candidate.guarantee for candidate in candidates}.values()
    return reduce(lambda a, b: a.at_worst(b), distinct)


def _of_nothing(charge: Guarantee) -> Guarantee:
    """Return the charge of the outcome "nothing".

    "No run" has the same probability on all data, so it adds no ε. A δ belongs to all outcomes
    together, and so does a Rényi charge, which bounds the sum of their moments
    (``tests/selection/test_baselines.py`` shows that a free "nothing" would be wrong).
    """
    if charge.as_renyi() is not None:
        return charge
    nothing, delta = zero_like(charge), charge.shared_delta
    return nothing if delta is None else nothing.to_approx(delta)


@dataclass(frozen=True)
class Doubling(Selector):
    """Run the candidates in order until one reaches ``at_least``, release it, and pay for all.

    Parameters
    ----------
    at_least : float
        The score that a run must reach to be released.

    Notes
    -----
    The guarantee is sequential composition with a stopping rule. Outcome i costs the sum of the
    guarantees up to candidate i (all its copies), "nothing" the sum of all. For (ε, δ) guarantees
    every outcome carries the δ of the whole list, because the ex-post definition has one δ. The
    method is called doubling because each candidate usually has twice the ε of the one before.

    It is assumed that candidates keep their guarantees and that scores depend on outputs alone.
    Charges are rounded up. Tests: ``tests/theorems/test_pure.py``.

    References
    ----------
    Whitehouse et al. 2019.
    """

    at_least: float
    name: ClassVar[str] = "doubling"
    rule: ClassVar[ReleaseRule] = ReleaseRule.FIRST_PASS_OR_NOTHING

    def __post_init__(self) -> None:
        if self.at_least is None:
            raise InvalidInput("at_least", None, "give the number that a score must reach")
        check_goal(self.at_least)

    def _price(self, candidates: Candidates) -> Charges:
        """Charge the sum of the guarantees up to each candidate."""
        all_copies(candidates)
        charges = list(
            accumulate(candidate.guarantee * candidate.repeats for candidate in candidates)
        )
        total = charges[-1]
        if total.shared_delta is not None:
            charges = [charge.to_approx(total.shared_delta) for charge in charges]
        return Charges.from_list(charges, total)

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result."""
        return "sequential composition, stopped at the first pass"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw nothing: every copy is run until one passes."""
        return {}
