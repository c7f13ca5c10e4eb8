"""Exact Gaussian noise, rounded to a lattice: round((s + σz) / u)·u with exactly normal z.

Rounding is post-processing of the Gaussian mechanism on real numbers, so whatever holds for that
mechanism holds for the released numbers, and nothing depends on how floating point rounded the
noise. The construction by Box–Muller from two infinite strings of bits, and the proof of the error
bounds below, are stated in :mod:`expost.training.exact_noise`. With NumPy,
:func:`add_gaussian` draws many at once; every operation in it is +, −, ×, ÷ or √ in IEEE double
precision, as that proof needs.

Tests: ``tests/randomness/test_exact_gaussian.py``, ``tests/training/test_exact_noise.py``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.randomness.source import Randomness

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
