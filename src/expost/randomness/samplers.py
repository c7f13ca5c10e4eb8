"""Many exact draws at once: one 64-bit word per draw is looked up in a table of ⌊2^64·F(k)⌋.

A word is the beginning of a uniform real number. If it differs from every table entry, the draw is
the same for *all* continuations. If it equals an entry (probability 2^-64 per entry), or lies
beyond the table, :func:`~expost.randomness.coins.invert` continues with more bits. The
distribution is therefore exact, although nearly every draw costs one look-up.

:func:`weighted_choice` draws once from the exponential mechanism with a base measure, in the same
way: floating point narrows the cumulative weights down to intervals, and :func:`invert` continues
with the same word where the errors (:data:`_ERROR` per outcome) leave a doubt.

Exact Gaussian noise is rounded to a lattice: round((s + σz) / u)·u with exactly normal z. Rounding
is post-processing of the Gaussian mechanism on real numbers, so whatever holds for that mechanism
holds for the released numbers, and nothing depends on how floating point rounded the noise. The
construction by Box–Muller from two infinite strings of bits, and the proof of the error bounds, are
stated in :mod:`expost.training.exact_noise`. With NumPy, :func:`add_gaussian` draws many at once;
every operation in it is +, −, ×, ÷ or √ in IEEE double precision, as that proof needs.

Tests: ``tests/randomness/test_samplers.py``, ``tests/randomness/test_weighted_choice.py``,
``tests/statistical/test_samplers.py``, ``tests/randomness/test_exact_gaussian.py``,
``tests/training/test_exact_noise.py``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats, Integers
from expost.errors import InvalidInput
from expost.randomness import coins
from expost.randomness.coins import (
    ZERO,
    Bracket,
    FoldedGaussianLaw,
    GeometricLaw,
    KeepLaw,
    Law,
    arithmetic,
    invert,
)
from expost.randomness.source import Randomness

_DIGIT, _SMALL_DIGIT = 4096, 64  # base of the digits of large geometric draws: of many, of few
_MANY = 4096  # as many draws earn a long table
_LARGEST_TABLE = 4  # times the base
_TAIL = 45  # e^{−45} < 2^{−64}
LARGEST_SCALE = 2**50
"""The largest scale of discrete Laplace noise; it keeps every sum inside 64 bits."""
_LARGEST_TABLED_DEVIATION = 2048
_WORD = 2.0**64
_GUARD = 120  # bits: roundings of 2^15 weights and ratios leave a floor unsure once in 2^60
_ERROR = 2.0**-49  # per outcome, of the cumulative weights; exp, product and sum err by 2^-51
_ALWAYS = 4096  # outcomes' worth of error for the exponents: a rounded one errs by ≤ 1075·2^-53


class InversionTable:
    """A table of the first ``size`` outcomes of a law, for look-up by words of ``width`` bits."""

    def __init__(self, law: Law, size: int, *, complete: bool = False, width: int = 64) -> None:
        self.law = law
        self.width = width
        self.bounds = _bounds(law, size - 1 if complete else size, width)
        self.complete = complete and len(self.bounds) == size - 1

    def draw(self, count: int, randomness: Randomness) -> Integers:
        """Return independent exact draws."""
        words = randomness.words(count)
        if self.width < 64:
            words = words >> np.uint64(64 - self.width)
        outcomes = np.searchsorted(self.bounds, words, side="right").astype(np.int64)
        # A word equal to a bound, or beyond the table, only begins a number that is not decided.
        unsure = np.zeros(count, dtype=np.bool_)
        if len(self.bounds):
            unsure |= words == self.bounds[np.maximum(outcomes - 1, 0)]
        if not self.complete:
            unsure |= outcomes == len(self.bounds)
        for index in np.flatnonzero(unsure):
            outcomes[index] = invert(
                self.law, randomness, prefix=int(words[index]), prefix_bits=self.width
            )
        return outcomes


def _bounds(law: Law, size: int, width: int) -> npt.NDArray[np.uint64]:
    """⌊2^width·F(k)⌋ for k < size, each certain; fewer if the digits cannot tell F(k) from 1."""
    quick = None
    if isinstance(law, GeometricLaw):
        quick = _geometric_bounds(law, size, width)
    elif isinstance(law, FoldedGaussianLaw):
        quick = _gaussian_bounds(law, size, width)
    if quick is not None:
        return np.array(quick, dtype=np.uint64)
    unit = Decimal(2**width)
    digits = 45
    while True:
        a = arithmetic(digits)
        below = (ZERO, ZERO)
        bounds: list[int] = []
        for _, mass in zip(range(size), law.masses(digits), strict=False):
            below = a.add(below, mass)
            low, high = int(a.down.multiply(below[0], unit)), int(a.up.multiply(below[1], unit))
            if low != high:
                break
            bounds.append(low)
        else:
            return np.array(bounds, dtype=np.uint64)
        if low == 2**width - 1:
            return np.array(bounds, dtype=np.uint64)
        digits *= 2


def _geometric_bounds(law: GeometricLaw, size: int, width: int) -> list[int] | None:
    """⌊2^width·F(k)⌋ for k < size by integers, some ten times faster; None if one is not certain.

    F(k) = (1 − e^{−rate·(k+1)})/(1 − e^{−rate·law.size}). All brackets are multiples of 2^−bits,
    and every product is rounded outwards.
    """
    bits = width + 80  # thousands of roundings leave a floor unsure once in 2^60
    one, spare, a = 1 << bits, bits - width, arithmetic(60)
    keep = a.exp_minus(a.rational(law.rate))
    whole = (Decimal(1), Decimal(1))
    if law.size is not None:
        whole = a.over(whole, a.complement(a.exp_minus(a.rational(law.rate * law.size))))
    (keep_low, keep_high), (whole_low, whole_high) = (
        (int(a.down.multiply(low, Decimal(one))), int(a.up.multiply(high, Decimal(one))) + 1)
        for low, high in (keep, whole)
    )
    tail_low = tail_high = one
    bounds = []
    for _ in range(size):
        tail_low, tail_high = tail_low * keep_low >> bits, (tail_high * keep_high >> bits) + 1
        low = (one - tail_high) * whole_low >> bits + spare
        high = ((one - tail_low) * whole_high >> bits) + 1 >> spare
        if low != high:
            return None
        bounds.append(low)
    return bounds


def _gaussian_bounds(law: FoldedGaussianLaw, size: int, width: int) -> list[int] | None:
    """⌊2^width·F(k)⌋ for k < size by integers, as :func:`_geometric_bounds`.

    Weights and ratios are those of :class:`FoldedGaussianLaw`. After the last outcome y the others
    of its sign weigh at most weight(y)·r/(1−r), r the next ratio, because ratios fall with y.
    """
    bits, a = width + _GUARD, arithmetic(80)
    one, negligible = 1 << bits, 1 << 24

    def fixed(value: Fraction) -> tuple[int, int]:
        low, high = a.exp_minus(a.rational(value))
        return int(a.down.multiply(low, Decimal(one))), int(a.up.multiply(high, Decimal(one))) + 1

    step_low, step_high = fixed(1 / law.variance)
    ratio_low, ratio_high = low, high = fixed(1 / (2 * law.variance))
    below = [(one, one)]
    while high > negligible or len(below) < size:
        for _ in range(2):  # y and −y
            below.append((below[-1][0] + low, below[-1][1] + high))
        ratio_low, ratio_high = ratio_low * step_low >> bits, (ratio_high * step_high >> bits) + 1
        low, high = low * ratio_low >> bits, (high * ratio_high >> bits) + 1
    # The weight of the next outcome is ``high``; that of all from there on at most high/(1−r).
    total_low, total_high = below[-1]
    total_high += 2 * (high * one // (one - ratio_high) + 1)
    bounds = []
    for least, most in below[:size]:
        bound = (least << width) // total_high
        if bound != (most << width) // total_low:
            return None
        bounds.append(bound)
    return bounds


@lru_cache(maxsize=256)
def _geometric_tables(
    rate: Fraction, base: int
) -> tuple[tuple[InversionTable, ...], InversionTable]:
    """Tables of the (independent) digits of a geometric draw, and of the rest."""
    digits: list[InversionTable] = []
    top = rate
    while _TAIL / top > _LARGEST_TABLE * base:
        digits.append(InversionTable(GeometricLaw(top, base), base, complete=True))
        top *= base
    return tuple(digits), InversionTable(GeometricLaw(top), ceil(_TAIL / top) + 1)


def geometrics(rate: Fraction, count: int, randomness: Randomness) -> Integers:
    """Return independent draws of k ≥ 0 with probability (1−e^{−rate})·e^{−rate·k}."""
    if rate * LARGEST_SCALE < 1:
        raise InvalidInput(
            "scale", 1 / rate, f"give a scale ≤ 2^50 = {LARGEST_SCALE} for vectorised draws"
        )
    base = _DIGIT if count >= _MANY else _SMALL_DIGIT
    digits, top = _geometric_tables(rate, base)
    total = top.draw(count, randomness)
    for digit in reversed(digits):
        total = total * base + digit.draw(count, randomness)
    return total


def discrete_laplaces(scale: Fraction, count: int, randomness: Randomness) -> Integers:
    """Return draws of y with probability ∝ e^{−|y|/scale}: differences of two geometric ones."""
    rate = 1 / scale
    return geometrics(rate, count, randomness) - geometrics(rate, count, randomness)


@lru_cache(maxsize=1024)
def _keep_table(coarse: Fraction, fine: Fraction) -> InversionTable:
    """The table of the coin of noise reduction."""
    return InversionTable(KeepLaw(coarse, fine), 2, complete=True)


def keep_coins(
    coarse: Fraction, fine: Fraction, count: int, randomness: Randomness
) -> npt.NDArray[np.bool_]:
    """Return independent coins of noise reduction (:class:`KeepLaw`), for 0 < coarse < fine."""
    return np.asarray(_keep_table(coarse, fine).draw(count, randomness) == 0)


@lru_cache(maxsize=64)
def _gaussian_table(variance: Fraction) -> InversionTable:
    """The table of the discrete Gaussian up to ten standard deviations."""
    deviations = 10  # e^{−50} < 2^{−64}
    return InversionTable(
        FoldedGaussianLaw(variance), 2 * ceil(deviations * float(variance) ** 0.5) + 3
    )


def discrete_gaussians(variance: Fraction, count: int, randomness: Randomness) -> Integers:
    """Return independent draws of y with probability proportional to e^{−y²/(2·variance)}.

    Above a standard deviation of 2,048 the draws are made one at a time.
    """
    if variance > _LARGEST_TABLED_DEVIATION**2:
        return np.array(
            [coins.discrete_gaussian(variance, randomness) for _ in range(count)], dtype=np.int64
        )
    folded = _gaussian_table(variance).draw(count, randomness)
    return np.where(folded % 2 == 1, -((folded + 1) // 2), folded // 2)


def laplace_paths(scales: Sequence[Fraction], count: int, randomness: Randomness) -> Integers:
    """Return many independent paths of noise at decreasing scales (levels × count), exact.

    The finest noise is drawn first; a coarser level keeps it or adds fresh noise, as
    :func:`expost.mechanisms.laplace_path` does for one path.
    """
    path = np.empty((len(scales), count), dtype=np.int64)
    path[-1] = discrete_laplaces(scales[-1], count, randomness)
    for level in range(len(scales) - 2, -1, -1):
        keep = keep_coins(1 / scales[level], 1 / scales[level + 1], count, randomness)
        fresh = discrete_laplaces(scales[level], count, randomness)
        path[level] = path[level + 1] + np.where(keep, 0, fresh)
    return path


@dataclass(frozen=True)
class ExponentialLaw:
    """P(k) ∝ masses[k]·e^{−rate·distances[k]}; distances are ≥ 0, and one mass is positive."""

    masses_: Sequence[int]
    distances: Sequence[int]
    rate: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see ``Law.masses``."""
        a = arithmetic(precision)
        nearest = min(self.distances)
        weights = [
            a.times_ratio(a.exp_minus(a.rational(self.rate * (distance - nearest))), mass, 1)
            for mass, distance in zip(self.masses_, self.distances, strict=True)
        ]
        total: Bracket = (ZERO, ZERO)
        for weight in weights:
            total = a.add(total, weight)
        for weight in weights:
            yield a.over(weight, total)


def weighted_choice(
    masses: Integers, distances: Integers, rate: Fraction, randomness: Randomness
) -> int:
    """Return k with probability proportional to masses[k]·e^{−rate·distances[k]}.

    ``masses``: ≥ 0, at most 2^53, one of them positive. ``distances``: ≥ 0. ``rate``: ≥ 0. Where
    the nearest outcome has mass 0, the masses of the others still decide.
    """
    nearest = int(distances[masses > 0].min())
    apart = np.maximum(distances - nearest, 0)
    upto: Floats = np.cumsum(masses * np.exp(-float(rate) * apart))

    def law() -> ExponentialLaw:
        return ExponentialLaw(masses.tolist(), distances.tolist(), rate)

    return _choice(upto, _ERROR * (len(upto) + _ALWAYS), law, randomness)


def choice_of_logs(logs: Floats, law: Callable[[], Law], randomness: Randomness) -> int:
    """Return k with probability proportional to e^{logs[k]}, each known to 1e-10; ``law`` is exact.

    The exact law is asked only where the floating-point sums do not decide.
    """
    upto = np.cumsum(np.exp(logs - logs.max()))
    return _choice(upto, 1e-9 + _ERROR * (len(upto) + _ALWAYS), law, randomness)


def _choice(upto: Floats, error: float, law: Callable[[], Law], randomness: Randomness) -> int:
    """Draw from cumulative sums with this relative error, else from the law with the same bits."""
    word, total = int(randomness.words(1)[0]), float(upto[-1])
    low = total * (word / _WORD - error)
    high = total * ((word + 1) / _WORD + error)
    first, last = np.searchsorted(upto, (low, high), side="right")
    if first == last and first < len(upto):
        return int(first)
    return invert(law(), randomness, prefix=word, prefix_bits=64)


LATTICE_BITS = 16  # u is the largest power of two that is not above 2^{−16}σ
EPS = 2.0**-53
RADIUS_ERROR = 11.0 * EPS  # the constants of E
LENGTH_ERROR = 2.1 * EPS
UNREAD = 2.1 * 2.0**-63
LAST = 2.0**-63
CONSTANT_ERROR = 4.0 * EPS
MORE_BITS = 256  # further digits of U and V that one block of the keystream holds
# the series of logarithm, sine and cosine, highest power first
HALF_ROOT = int.from_bytes(struct.pack("<d", math.sqrt(0.5)), "little")  # its bits
LN2_HIGH = round(math.log(2) * 2**25) / 2**25  # its product with an exponent is exact
LN2_LOW = float(Decimal(2).ln() - Decimal(LN2_HIGH))
ARTANH = tuple(
    2.0 / n for n in range(21, 1, -2)
)  # 2·artanh s = 2s + s·(z·2/3 + z²·2/5 + …), z = s²
SINE = tuple((-1) ** (n // 2) / math.factorial(n) for n in range(17, 1, -2))
COSINE = tuple((-1) ** (n // 2) / math.factorial(n) for n in range(16, 2, -2))
QUARTER = 0.5 * math.pi * 2.0**-62


class NoiseLattice(NamedTuple):
    """Noise on a lattice: standard deviation, step, 1/step, and both errors' scale A = σ/u."""

    noise: float
    step: float
    scale: float
    deviation: float


def lattice_for(deviation: float) -> NoiseLattice:
    """Return the lattice of Gaussian noise with this standard deviation, which must be positive."""
    exponent = math.frexp(deviation)[1] - 1 - LATTICE_BITS
    step, scale = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent)
    return NoiseLattice(deviation, step, scale, math.ldexp(deviation, -exponent))


def add_gaussian(total: Floats, lattice: NoiseLattice, randomness: Randomness) -> Floats:
    """Return round((total + σz) / u)·u for each number, with independent exact Gaussians z.

    ``total``: one number per coordinate. NaN counts as 0, and numbers beyond ±2^{51} steps of the
    lattice as those bounds, so that the call never fails. Both change no distance for the worse.
    ``lattice``: the noise and the step. Returns: multiples of the step, exactly distributed.
    """
    most = lattice.step * 2.0**51
    clipped = np.clip(np.where(np.isnan(total), 0.0, total), -most, most)
    pairs = (len(clipped) + 1) // 2
    radii, angles = randomness.words(pairs), randomness.words(pairs)
    first, second, errors = _scaled_pairs(radii, angles, lattice.deviation)
    noise = np.concatenate([first, second])[: len(clipped)]
    bound = np.concatenate([errors, errors])[: len(clipped)]
    scaled = clipped * lattice.scale
    whole = np.floor(scaled + 0.5)
    t = (scaled - whole) + noise
    near = np.floor(t + 0.5)
    out = np.asarray((whole + near) * lattice.step)
    # Within the error of a half step the rounding is not certain: decide it exactly, below.
    undecided = ~(0.5 - np.abs(t - near) > bound)
    further: dict[int, list[tuple[int, int]]] = {}  # of U and V, which both Gaussians of a pair use
    for index in np.flatnonzero(undecided).tolist():
        pair = index % pairs
        digits = further.setdefault(pair, [])

        def more(part: int, digits: list[tuple[int, int]] = digits) -> tuple[int, int]:
            while len(digits) <= part:
                digits.append((randomness.bits(MORE_BITS), randomness.bits(MORE_BITS)))
            return digits[part]

        words = int(radii[pair]), int(angles[pair])
        out[index] = decided_release(float(clipped[index]), lattice, words, index >= pairs, more)
    return out


def _scaled_pairs(
    radii: npt.NDArray[np.uint64], angles: npt.NDArray[np.uint64], deviation: float
) -> tuple[Floats, Floats, Floats]:
    """Return both Gaussians of each pair, times ``deviation``, and the bound on their error."""
    # 62 digits and a last 1: the middle of all reals that begin with them.
    u = ((radii >> np.uint64(1)) | np.uint64(1)).astype(np.int64).astype(np.float64) * LAST
    r = np.sqrt(-2.0 * _logarithm(u))
    length, (x, y) = deviation * r, _turn(angles)
    rest = u - LAST  # 0 where all leading digits are 0: then the error is infinite
    with np.errstate(divide="ignore", invalid="ignore"):
        unread = (LENGTH_ERROR * rest + UNREAD) / (rest * r)
    errors = deviation * (RADIUS_ERROR * r + unread) + CONSTANT_ERROR
    return length * x, length * y, errors


def _series(coefficients: tuple[float, ...], z: Floats) -> Floats:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    total = np.zeros_like(z)
    for coefficient in coefficients:
        total = total * z + coefficient
    return total


def _logarithm(u: Floats) -> Floats:
    """Return ln u of positive normal doubles; relative error below 4·2^{−53}."""
    bits = u.view(np.int64)
    exponent = (bits - HALF_ROOT) >> np.int64(52)
    f = (bits - (exponent << np.int64(52))).view(np.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    tail = z * _series(ARTANH, z)
    half, e = 0.5 * f * f, exponent.astype(np.float64)
    return np.asarray(e * LN2_HIGH - ((half - (s * (half + tail) + e * LN2_LOW)) - f))


def _turn(words: npt.NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Return cosine and sine of word / 2^{64} of a full turn; absolute error below 3.2·2^{−53}."""
    angle = words.view(np.int64)  # angles above half a turn become negative ones
    # The sum may wrap around at half a turn; the quarter is then right modulo four.
    quarter = (angle + np.int64(1 << 61)) >> np.int64(62)
    x = (angle - (quarter << np.int64(62))).astype(np.float64) * QUARTER
    z = x * x
    sine, cosine = x + x * z * _series(SINE, z), 1.0 - (0.5 * z - z * z * _series(COSINE, z))
    odd = (quarter & 1) != 0
    first, second = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    return (
        np.where(((quarter + 1) & 2) != 0, -first, first),
        np.where((quarter & 2) != 0, -second, second),
    )


def decided_release(
    total: float,
    lattice: NoiseLattice,
    words: tuple[int, int],
    sine: bool,
    more: Callable[[int], tuple[int, int]],
) -> float:
    """Return round((total + σz) / u)·u, decided in decimal arithmetic.

    ``words`` are the first 64 digits of U and V, ``more(k)`` their k-th 256 further digits.
    """
    radius, angle = words
    bits, part = 64, 0
    while True:
        extra = more(part)
        radius, angle = (radius << MORE_BITS) | extra[0], (angle << MORE_BITS) | extra[1]
        bits, part = bits + MORE_BITS, part + 1
        multiple = _decided(total, lattice, radius, angle, bits, sine)
        if multiple is not None:
            return multiple


def _decided(
    total: float, lattice: NoiseLattice, radius: int, angle: int, bits: int, sine: bool
) -> float | None:
    """Return the release if these digits decide it."""
    low, high = gaussian_bracket(radius, angle, bits, sine)
    if low is None or high is None:
        return None
    ends = []
    for end in (low, high):
        position = (Fraction(total) + Fraction(lattice.noise) * Fraction(end)) / Fraction(
            lattice.step
        )
        ends.append(math.floor(position + Fraction(1, 2)))
    if ends[0] != ends[1]:
        return None
    return float(Fraction(ends[0]) * Fraction(lattice.step))


def gaussian_bracket(
    radius: int, angle: int, bits: int, sine: bool
) -> tuple[Decimal, Decimal] | tuple[None, None]:
    """Return an interval that contains the Gaussian, from the first ``bits`` digits of U and V.

    (None, None) if all digits of U are equal, so that it is not bounded away from 0 or 1.
    """
    if radius == 0 or radius == 2**bits - 1:
        return None, None
    digits = math.ceil(bits * math.log10(2)) + 30
    with localcontext(Context(prec=digits)):
        scale = Decimal(2) ** bits
        slack = Decimal(10) ** (12 - digits)  # far more than the rounding of what follows
        square = [-2 * (Decimal(radius + k) / scale).ln() for k in (1, 0)]
        shortest = (square[0] * (1 - slack)).sqrt() * (1 - slack)
        longest = (square[1] * (1 + slack)).sqrt() * (1 + slack)
        direction = _cosine(angle - (2**bits // 4 if sine else 0), bits, digits)
        spread = 7 / scale + slack
        ends = [
            length * (direction + sign * spread)
            for length in (shortest, longest)
            for sign in (-1, 1)
        ]
        low, high = min(ends), max(ends)
        margin = slack * (1 + longest)
        return low - margin, high + margin


def _cosine(turns: int, bits: int, digits: int) -> Decimal:
    """Return cos(2π·turns / 2^bits) up to 10^{5−digits}, by its Taylor series."""
    turns %= 2**bits
    quarter, rest = divmod(turns + 2 ** (bits - 3), 2 ** (bits - 2))
    rest -= 2 ** (bits - 3)  # at most an eighth of a turn away from the quarter
    x = 2 * _pi(digits + 10) * Decimal(rest) / Decimal(2) ** bits
    odd = quarter % 2 == 1
    term = x if odd else Decimal(1)
    total, n = term, 1 if odd else 0
    least = Decimal(10) ** (-digits - 5)
    while abs(term) > least:
        term = -term * x * x / ((n + 1) * (n + 2))
        total, n = total + term, n + 2
    return -total if quarter % 4 in (1, 2) else total


@lru_cache(maxsize=8)
def _pi(digits: int) -> Decimal:
    """Return π by Machin's formula in whole numbers."""
    unit = 10 ** (digits + 10)

    def arctan_of_inverse(n: int) -> int:
        power, total, k = unit // n, 0, 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power, k = power // (n * n), k + 2
        return total

    value = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    with localcontext(Context(prec=digits + 5, rounding=ROUND_FLOOR)):
        return Decimal(value) / Decimal(unit)
