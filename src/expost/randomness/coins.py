"""Exact draws, one at a time. No binary floating-point number decides a draw.

Coins, geometric, discrete Laplace and discrete Gaussian draws are made by repeated turns on
rationals (Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
Algorithms 1–3).

Other laws are known through certified brackets: P(0), P(1), … are each enclosed between two decimal
numbers, to any precision. The module ``decimal`` rounds sums, products and quotients in a chosen
direction, and ``exp`` and ``ln`` correctly to the nearest number; one further step outwards after
these makes every bracket certain. Every operation names its context: an operator (even unary minus)
would round to the caller's own, by default 28 digits. A uniform real number and the cumulative
distribution function are refined until their comparison is certain, so the draw is exact.

The caller passes parameters in the stated ranges; they are not checked here. Tests:
``tests/randomness/test_coins.py`` and ``tests/randomness/test_inverse_cdf.py`` enumerate all bit
sequences; ``tests/randomness/test_samplers.py``, ``tests/statistical/test_samplers.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt
from typing import Protocol

from expost.randomness.source import Randomness


def bernoulli(probability: Fraction, randomness: Randomness) -> bool:
    """Return True with a given probability; ``probability``: in [0, 1]."""
    return randomness.below(probability.denominator) < probability.numerator


def bernoulli_exp(x: Fraction, randomness: Randomness) -> bool:
    """Return True with probability e^{−x}; ``x``: at least 0."""
    return _bernoulli_exp_ratio(x.numerator, x.denominator, randomness)


def _bernoulli_exp_ratio(numerator: int, denominator: int, randomness: Randomness) -> bool:
    """True with probability e^{−numerator/denominator}."""
    whole, numerator = divmod(numerator, denominator)
    for _ in range(whole):  # stops after at most 1.6 turns on average, also for large x
        if not _bernoulli_exp_fraction(1, 1, randomness):
            return False
    return numerator == 0 or _bernoulli_exp_fraction(numerator, denominator, randomness)


def _bernoulli_exp_fraction(numerator: int, denominator: int, randomness: Randomness) -> bool:
    """True with probability e^{−numerator/denominator}, for a ratio in [0, 1]."""
    turn = 1
    while randomness.below(denominator * turn) < numerator:
        turn += 1
    return turn % 2 == 1


def geometric(x: Fraction, randomness: Randomness) -> int:
    """Return k ≥ 0 with probability (1−e^{−x})·e^{−xk}, for x > 0.

    Let x = s/t. U + tV, where U ∈ [0, t) has weight e^{−U/t} and V counts successes of probability
    e^{−1}, is geometric with continuation probability e^{−1/t}. Its quotient by s is geometric with
    continuation probability e^{−s/t}. The draw takes a few coins, also for very small x.
    """
    s, t = x.numerator, x.denominator
    while True:
        remainder = randomness.below(t)
        if _bernoulli_exp_fraction(remainder, t, randomness):
            break
    quotient = 0
    while _bernoulli_exp_fraction(1, 1, randomness):
        quotient += 1
    return (remainder + t * quotient) // s


def discrete_laplace(scale: Fraction, randomness: Randomness) -> int:
    """Return an integer y with probability proportional to e^{−|y|/scale}, for scale > 0."""
    return _two_sided(1 / scale, randomness)


def _two_sided(rate: Fraction, randomness: Randomness) -> int:
    """Discrete Laplace noise of scale 1/rate."""
    while True:
        magnitude = geometric(rate, randomness)
        negative = randomness.bits(1)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: Fraction, randomness: Randomness) -> int:
    """Return an integer y with probability proportional to e^{−y²/(2·variance)}."""
    # With variance n/d the centre is n/(d·scale): all by whole numbers, as fractions take longer.
    n, d = variance.numerator, variance.denominator
    scale = isqrt(n // d) + 1
    rate, denominator = Fraction(1, scale), 2 * n * d * scale**2
    while True:
        proposal = _two_sided(rate, randomness)
        distance = (abs(proposal) * d * scale - n) ** 2
        common = gcd(distance, denominator)
        if _bernoulli_exp_ratio(distance // common, denominator // common, randomness):
            return proposal


Bracket = tuple[Decimal, Decimal]
"""A lower and an upper bound of a number."""

ZERO, ONE = Decimal(0), Decimal(1)


class Law(Protocol):
    """A probability distribution on the outcomes 0, 1, 2, …"""

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets, of about so many digits, of P(0), P(1), … up to the last outcome."""
        ...


class BracketArithmetic:
    """Arithmetic on brackets of non-negative numbers with so many digits, rounded outwards."""

    def __init__(self, precision: int) -> None:
        self.down = Context(precision, ROUND_FLOOR, MIN_EMIN, MAX_EMAX, traps=[])
        self.up = Context(precision, ROUND_CEILING, MIN_EMIN, MAX_EMAX, traps=[])

    def rational(self, value: Fraction) -> Bracket:
        """Return a bracket of a rational number."""
        numerator, denominator = Decimal(value.numerator), Decimal(value.denominator)
        return self.down.divide(numerator, denominator), self.up.divide(numerator, denominator)

    def add(self, a: Bracket, b: Bracket) -> Bracket:
        """Return a bracket of a + b."""
        return self.down.add(a[0], b[0]), self.up.add(a[1], b[1])

    def times(self, a: Bracket, b: Bracket) -> Bracket:
        """Return a bracket of a·b."""
        return self.down.multiply(a[0], b[0]), self.up.multiply(a[1], b[1])

    def times_ratio(self, a: Bracket, numerator: int, denominator: int) -> Bracket:
        """Return a bracket of a·numerator/denominator."""
        n, d = Decimal(numerator), Decimal(denominator)
        return self.down.divide(self.down.multiply(a[0], n), d), self.up.divide(
            self.up.multiply(a[1], n), d
        )

    def over(self, a: Bracket, b: Bracket) -> Bracket:
        """Return a bracket of a/b."""
        return self.down.divide(a[0], b[1]), self.up.divide(a[1], b[0])

    def exp_minus(self, x: Bracket) -> Bracket:
        """Return a bracket of e^{−x}, x ≥ 0."""
        low = self.down.next_minus(self.down.exp(x[1].copy_negate()))
        high = self.up.next_plus(self.up.exp(x[0].copy_negate()))
        return max(ZERO, low), min(high, ONE)

    def complement(self, a: Bracket) -> Bracket:
        """Return a bracket of 1 − a, for a ∈ [0, 1]."""
        # ZERO is the first argument: 1 − 1 rounds down to −0, and a quotient by −0 would be −∞
        return max(ZERO, self.down.subtract(ONE, a[1])), self.up.subtract(ONE, a[0])

    def minus_ln(self, a: Bracket) -> Bracket:
        """Return a bracket of −ln a, for a ∈ [0, 1]."""
        low = self.down.next_minus(self.down.ln(a[1]).copy_negate())
        high = self.up.next_plus(self.up.ln(a[0]).copy_negate())
        return max(ZERO, low), high


@lru_cache(maxsize=32)
def arithmetic(precision: int) -> BracketArithmetic:
    """Return the (stateless) arithmetic for a precision."""
    return BracketArithmetic(precision)


@dataclass(frozen=True)
class GeometricLaw:
    """P(k) ∝ e^{−rate·k} on 0, 1, …, or on 0, …, size−1."""

    rate: Fraction
    size: int | None = None

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        keep = a.exp_minus(a.rational(self.rate))
        mass = a.complement(keep)
        if self.size is not None:
            mass = a.over(mass, a.complement(a.exp_minus(a.rational(self.rate * self.size))))
        k = 0
        while self.size is None or k < self.size:
            yield mass
            mass = a.times(mass, keep)
            k += 1


@dataclass(frozen=True)
class KeepLaw:
    """The coin of noise reduction: 0 with probability (p_b/p_a)·((1−p_a)/(1−p_b))², else 1.

    Here p_a = e^{−coarse} and p_b = e^{−fine}, with 0 < coarse < fine.
    """

    coarse: Fraction
    fine: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        closer = a.exp_minus(a.rational(self.fine - self.coarse))
        rest = [a.complement(a.exp_minus(a.rational(rate))) for rate in (self.coarse, self.fine)]
        ratio = a.over(*rest)
        keep = a.times(closer, a.times(ratio, ratio))
        yield keep
        yield a.complement((keep[0], min(keep[1], ONE)))


@dataclass(frozen=True)
class BinomialLaw:
    """Number of successes among ``trials`` coins of probability e^{−x}; ``x``: greater than 0."""

    trials: int
    x: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        success = a.exp_minus(a.rational(self.x))
        failure = a.complement(success)
        trials = Decimal(self.trials)
        mass = a.exp_minus(a.times((trials, trials), a.minus_ln(failure)))
        odds = a.over(success, failure)
        for k in range(self.trials + 1):
            yield mass
            mass = a.times_ratio(a.times(mass, odds), self.trials - k, k + 1)


@dataclass(frozen=True)
class PoissonLaw:
    """Poisson distribution with a rational mean; ``mean``: at least 0."""

    mean: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        mean = a.rational(self.mean)
        mass = a.exp_minus(mean)
        k = 0
        while True:
            yield mass
            k += 1
            mass = a.times_ratio(a.times(mass, mean), 1, k)


@dataclass(frozen=True)
class TruncatedNegativeBinomialLaw:
    """Truncated negative binomial distribution of K ≥ 1, as used by Papernot and Steinke.

    P(K = 1) = (1−γ)·η/(γ^{−η} − 1) and P(K = k+1)/P(K = k) = (1−γ)(k+η)/(k+1), for η > −1 and
    0 < γ < 1; η = 0 is the logarithmic distribution. Outcome 0 stands for K = 1.
    """

    shape: Fraction
    gamma: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        log = a.minus_ln(a.rational(self.gamma))
        power = a.exp_minus(a.times(a.rational(abs(self.shape)), log))  # γ^|η|
        if self.shape == 0:
            normaliser = log
        elif self.shape > 0:  # (γ^{−η} − 1)/η = (1 − γ^η)/(η·γ^η)
            normaliser = a.over(a.complement(power), a.times(a.rational(self.shape), power))
        else:  # (1 − γ^|η|)/|η|
            normaliser = a.over(a.complement(power), a.rational(-self.shape))
        mass = a.over(a.rational(1 - self.gamma), normaliser)
        continuing = a.rational((1 - self.gamma) / self.shape.denominator)
        numerator, denominator = self.shape.numerator, self.shape.denominator
        k = 1
        while True:
            yield mass
            mass = a.times_ratio(a.times(mass, continuing), k * denominator + numerator, k + 1)
            k += 1


@dataclass(frozen=True)
class FoldedGaussianLaw:
    """Discrete Gaussian: P(Y = y) ∝ e^{−y²/(2·variance)}.

    The outcomes 0, 1, 2, 3, 4, … stand for y = 0, −1, 1, −2, 2, …
    """

    variance: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see :meth:`Law.masses`."""
        a = arithmetic(precision)
        total = _gaussian_total(self.variance, precision)
        yield a.over((ONE, ONE), total)
        for weight in _gaussian_weights(self.variance, precision):
            mass = a.over(weight, total)
            yield mass
            yield mass


def _gaussian_weights(variance: Fraction, precision: int) -> Iterator[Bracket]:
    """e^{−y²/(2·variance)} for y = 1, 2, …; each is the last one times e^{−(2y−1)/(2·variance)}."""
    a = arithmetic(precision)
    step = a.exp_minus(a.rational(1 / variance))
    ratio = weight = a.exp_minus(a.rational(1 / (2 * variance)))
    while True:
        yield weight
        ratio = a.times(ratio, step)
        weight = a.times(weight, ratio)


@lru_cache(maxsize=64)
def _gaussian_total(variance: Fraction, precision: int) -> Bracket:
    """The sum of all weights; the tail after y is at most weight(y)·r/(1−r), r the last ratio."""
    a = arithmetic(precision)
    total = (ONE, ONE)
    negligible = Decimal((0, (1,), -precision))
    previous = ONE
    for weight in _gaussian_weights(variance, precision):
        total = a.add(total, a.add(weight, weight))
        if weight[1] < negligible and previous > ZERO:
            ratio = a.up.divide(weight[1], previous)  # bounds all later ratios: they fall with y
            if ratio < Decimal("0.999999"):
                tail = a.up.divide(
                    a.up.multiply(a.up.add(weight[1], weight[1]), ratio),
                    a.down.subtract(ONE, ratio),
                )
                return total[0], a.up.add(total[1], tail)
        previous = weight[0]
    raise AssertionError("unreachable: the sequence of weights is infinite")


_DIGITS = 45
_BLOCK_MEAN = 32


def invert(
    law: Law,
    randomness: Randomness,
    *,
    prefix: int = 0,
    prefix_bits: int = 0,
    chunk: int = 64,
    digits: int = _DIGITS,
) -> int:
    """Return one exact draw of ``law``.

    ``prefix``: the first ``prefix_bits`` bits of the uniform real, where they are known already.
    ``chunk``: bits drawn at a time. ``digits``: the least number of decimal digits.
    """
    known, bits = prefix, prefix_bits
    if bits == 0:
        known, bits = randomness.bits(chunk), chunk
    while True:
        outcome = _locate(law, known, bits, max(digits, bits // 3 + 10))
        if outcome is not None:
            return outcome
        known, bits = (known << chunk) | randomness.bits(chunk), bits + chunk


def _locate(law: Law, known: int, bits: int, digits: int) -> int | None:
    """The outcome that all reals in [known, known+1)/2^bits have, or None.

    None means that their outcomes differ, or that the digits do not suffice to decide.
    """
    a = arithmetic(digits)
    unit = Decimal(2**bits)
    low, high = a.down.divide(Decimal(known), unit), a.up.divide(Decimal(known + 1), unit)
    below = (ZERO, ZERO)
    for outcome, mass in enumerate(law.masses(digits)):
        below = a.add(below, mass)
        if high <= below[0]:
            return outcome
        if low < below[1]:
            return None
    return None  # never reached: the masses of a law sum to 1, which is above ``low``


def binomial_exp(trials: int, x: Fraction, randomness: Randomness) -> int:
    """Return the number of successes among ``trials`` coins of probability e^{−x}, x ≥ 0.

    The time grows with the result, not with ``trials``. The trials are divided into blocks that
    have about 32 expected successes each; the size of a block depends on x alone.
    """
    if x == 0:
        return trials
    a = arithmetic(20)
    wanted = a.up.divide(Decimal(_BLOCK_MEAN), a.exp_minus(a.rational(x))[1])
    block = trials if wanted >= trials else int(wanted)
    total, left = 0, trials
    while left > 0:
        size = min(block, left)
        total += invert(BinomialLaw(size, x), randomness)
        left -= size
    return total


def poisson(mean: Fraction, randomness: Randomness) -> int:
    """Return a Poisson draw, as a sum of draws with mean at most 32; ``mean``: at least 0."""
    total = 0
    while mean > _BLOCK_MEAN:
        total += invert(PoissonLaw(Fraction(_BLOCK_MEAN)), randomness)
        mean -= _BLOCK_MEAN
    return total + (invert(PoissonLaw(mean), randomness) if mean else 0)


def truncated_negative_binomial(shape: Fraction, gamma: Fraction, randomness: Randomness) -> int:
    """Return a draw K ≥ 1 of the truncated negative binomial distribution."""
    return 1 + invert(TruncatedNegativeBinomialLaw(shape, gamma), randomness)


def subset(size: int, count: int, randomness: Randomness) -> list[int]:
    """Return ``count`` distinct whole numbers below ``size``, a uniform subset (Floyd)."""
    chosen: set[int] = set()
    for bound in range(size - count, size):
        pick = randomness.below(bound + 1)
        chosen.add(bound if pick in chosen else pick)
    return sorted(chosen)
