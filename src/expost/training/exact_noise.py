"""The exact rounded Gaussian of DP-SGD: its lattice, its error bounds, and its exact fallback.

A step releases round((s + σz) / u)·u, where s is the clipped sum, σ = noise_multiplier · clip, u
the step of a public lattice and z a Gaussian with *exactly* the normal law. Rounding is
post-processing of the Gaussian mechanism on real numbers, so the curves of
:mod:`expost.privacy.dpsgd` hold as they are, and nothing of the released number depends on how
floating point rounded the noise. Steps of a lattice are powers of two: u is the largest one that is
not above 2^{−16}σ. It adds less than 2^{−35} to the variance of the noise.

**Two infinite strings of bits.** The keystream defines two uniform numbers U and V in (0, 1) for
each pair of coordinates, by all their binary digits. Box–Muller makes two independent Gaussians of
them: √(−2 ln U)·cos 2πV and √(−2 ln U)·sin 2πV. The first 64 digits of U and V are two words of the
keystream. They decide nearly always. Where they do not, further digits (256 at a time, from a part
of the keystream that is used for nothing else) decide in decimal arithmetic
(:func:`expost.randomness.samplers.decided_release`). So the release is a function of the
keystream and the sum alone: every engine finds the same one.

**The bracket.** ε = 2^{−53}; every operation of the fast path is +, −, ×, ÷ or √ in IEEE double
precision, relative error ≤ ε each, fused or not. Bounds to first order; the constants below are
larger than needed by a few per cent, which covers products of errors.

=======================================  ===========================================================
Û, the double nearest to the first       U = Û(1 + δ) with |δ| ≤ ε + 2^{−63} / (Û − 2^{−63})
63 digits of U (the last one set)
ln Û (``logarithm``), Û = m·2^e with     f = m − 1 is exact; s = f / (2 + f): 2ε; the tail of the
√½ ≤ m < √2                              series: 10ε of itself and 2^{−60} for its end. In f −
                                         (f²/2 − s(f²/2 + tail)) the terms are at most 0.21|f| and
                                         0.045|f|, so the sum has the error 0.85ε|f| + ε|ln m|.
                                         With e ≠ 0: e·LN2_HIGH is exact, and |ln Û| ≥ 0.34. In
                                         both cases the relative error is ≤ 4ε
r = √(−2 ln Û)                           2ε + ε = 3ε relative; the unread digits of U add
                                         2|δ| / r at most
x = 2π·(V − nearest quarter)             conversion ε, constant 0.4ε, product ε: 2.4ε|x|, |x| ≤ π/4;
                                         the unread digits of V: 2π·2^{−64} < 0.01ε
cos x, sin x (``turn``)                  x: 1.4ε; Taylor polynomials of degree 16 and 17: 2^{−63};
                                         their evaluation: 1.7ε. Together ≤ 3.2ε absolute
A·r·cos, A = σ/u (exact)                 (3 + 3.2 + 1 + 1)ε·A·r ≤ 8.3ε·A·r
t = (s/u − nearest whole number) + that  ε(A·r + 1)
=======================================  ===========================================================

So t is right up to E = A·(11ε·r + 2.1·(ε + 2^{−63} / (Û − 2^{−63})) / r) + 4ε. If t is farther than
E from the next k + ½, then round(t) is the released number. Otherwise (probability about
A·15·2ε ≈ 2^{−32} per coordinate; always if Û has no leading digits at all, where E is infinite) the
coordinate is left open and ``decided_release`` decides.

**Sums.** Contributions of rows are rounded to a grid of step g (a power of two) and summed as whole
numbers, which is exact in every order. Rounding to nearest may lengthen a contribution by √d·g/2,
and its norm and clip factor are computed in floating point. So rows are clipped at
:func:`clip_bound`, which is lower than ``clip`` by more than both together: no row moves the sum by
more than ``clip``, in real numbers. :func:`rounding_slack` is what the CUDA engines need, which sum
by matrix products.

Tests: ``tests/training/test_exact_noise.py`` (brackets and fallback against decimal arithmetic, the
law), ``tests/training/test_noise_attack.py`` (the attack on 53-bit Box–Muller),
``tests/training/test_sensitivity.py`` (one row and the sum).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from expost.errors import InvalidInput
from expost.randomness.samplers import EPS, NoiseLattice, lattice_for

_GRID_BITS = 50
MOST_ROWS = 4096  # that a CUDA engine sums in one matrix product


def lattice_of(clip: float, noise_multiplier: float) -> NoiseLattice:
    """Return the lattice of a training; all zero if there is no noise.

    The standard deviation is rounded up, so it is never below ``clip · noise_multiplier``.
    """
    if noise_multiplier <= 0:
        return NoiseLattice(0.0, 0.0, 0.0, 0.0)
    return lattice_for(math.nextafter(clip * noise_multiplier, math.inf))


class Bound(NamedTuple):
    """How a row is clipped and rounded: clip factor's norm, grid step, and 1.5·2^{52} steps.

    Adding ``anchor`` to a number rounds it to the grid.
    """

    clip: float
    grid: float
    anchor: float


def grid_bits(rows: int) -> int:
    """Return how many bits a contribution may have: all ``rows`` together fit a double."""
    return min(_GRID_BITS, 53 - (rows - 1).bit_length())


def contribution_step(clip: float, rows: int) -> float:
    """Return the step of the grid to which contributions of at most ``clip`` are rounded."""
    return math.ldexp(1.0, math.frexp(clip)[1] - grid_bits(rows))


def clip_bound(clip: float, width: int, rows: int, together: int = 1) -> Bound:
    """Return the norm at which rows are clipped so that none moves the sum by more than ``clip``.

    Nor do ``together`` rows of one person, each with a share: their shares add up to 1.

    The grid is fine enough for contributions (50 bits) and coarse enough for the sum of all
    ``rows`` to be a double. The norm, the factor and the products have a relative error of at most
    (width + 20)·2^{−52}; rounding to the grid adds √width/2 steps.
    """
    grid = contribution_step(clip, rows)
    lower = clip * (1.0 - (width + 64) * 2.0**-51) - together * math.sqrt(width) * grid
    if lower < clip / 2:
        raise InvalidInput(
            "X",
            f"{rows} rows for a model of {width} parameters",
            "pass fewer rows: their sum cannot be made exactly in float64",
        )
    return Bound(lower, grid, 1.5 * 2.0**52 * grid)


def rounding_slack(rows: int) -> float:
    """Return how much one row may move a sum on CUDA beyond the clipping norm, relative to it.

    Sums are matrix products in float64 there, of at most 4,096 rows each, whose results are added.
    In any order, the error of a coordinate is at most (terms + additions)·ε·Σ|term|, on each of two
    neighbouring data sets. The terms of a row sum up to ``clip`` in absolute value, but for a layer
    whose norm is computed from Gram matrices: there to 2^{12}·``clip`` / positions at most, because
    that norm contains the error of float32 (:mod:`expost.training._torch.layer_chain`), with one
    term per position.
    """
    chunks = -(-rows // MOST_ROWS)
    return 2.0 * (min(rows, MOST_ROWS) + chunks + 8) * EPS * rows * 2.0**12
