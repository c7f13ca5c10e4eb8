"""The privacy loss of one step of DP-SGD on a lattice, rounded up, and a rough picture of it.

The argument is in :mod:`expost.privacy.loss_distribution`: discretisation, rounding, truncation.
Tests: ``tests/privacy/test_loss_distribution.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from expost.arrays import Floats, Integers

UNIT = 2.0**-53
PAD = 2.0**-40
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_ELLIPSES = np.array([4.0, 8.0, 16.0, 32.0])[:, None]
_REACH = 16.0  # beyond so many standard deviations the tail of a step is below 1e-56
_LOWEST = 12.0  # and what lies below so many below 1e-32
_MOST_LOSS = 650.0  # larger losses count as infinite; e^ε stays finite
_MOST_CELLS = 3000


class Step(NamedTuple):
    """The law of the loss of one step on the lattice h·k, rounded up.

    Attributes
    ----------
    places : ndarray
        The whole numbers k, distinct.
    masses : ndarray
        Upper bounds of the probabilities.
    beyond : float
        Upper bound of the probability of a loss above all of them.
    shift : float
        By how much the true loss may exceed what the places say (τ).
    """

    places: Integers
    masses: Floats
    beyond: float
    shift: float


def _tail(z: float) -> float:
    """Φ(z) to a few units in the last place."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _places(lowest: int, highest: int, centre: int, growth: float, widest: int) -> Integers:
    """Points of the lattice: all near ``centre``, fewer with the distance from it."""
    near = math.ceil(2 / growth)
    sides = []
    for limit in (highest - centre, centre - lowest):
        offsets, k = list(range(min(near, limit) + 1)), min(near, limit)
        while k < limit:
            k = min(limit, k + min(int(growth * k), widest))
            offsets.append(k)
        sides.append(np.array(offsets, dtype=np.int64))
    return np.concatenate([centre - sides[1][:0:-1], centre + sides[0]])


def step_law(
    rate: float, noise: float, spacing: float, centre: float, growth: float, widest: float
) -> tuple[Step, Step]:
    """Return the laws of the loss of one step when a row is removed, and when it is added.

    Parameters
    ----------
    rate : float
        Sampling rate q, 0 < q < 1.
    noise : float
        Noise multiplier σ.
    spacing : float
        Distance h of the lattice, a power of two, so that every multiple is exact.
    centre, growth, widest : float
        Around which loss the cells are narrow, how their widths grow with the distance, and how
        wide they are at most.

    Returns
    -------
    tuple of Step
        The laws, rounded up.
    """
    mu = 1 / noise
    lowest = math.floor(math.log1p(-rate) / spacing * (1 + 4 * UNIT))
    highest = max(lowest + 3, math.ceil(highest_loss(rate, mu) / spacing))
    middle = min(max(lowest + 1, round(centre / spacing)), highest - 1)
    widest = max(widest / spacing, (highest - lowest) / _MOST_CELLS)
    places = _places(lowest, highest, middle, growth, max(1, int(widest)))
    inner = places[1:] * spacing  # places[0] lies below every loss
    # Edges of the cells in units of the noise; what lies far below is one cell.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log1p(np.expm1(inner) / rate)  # l = ln((e^ε − 1 + q)/q)
        edges = log_ratio / mu + mu / 2
        kept = edges > -_LOWEST
    kept[-2:] = True
    inner, edges = inner[kept], edges[kept]
    points = np.concatenate([[places[0] * spacing], inner])
    places = np.concatenate([places[:1], places[1:][kept]])
    log_ratio = mu * edges - mu**2 / 2  # of the edge as it is
    width = np.diff(points)
    # How far an edge may lie off its point, in the loss.
    posterior = np.exp(math.log(rate) + log_ratio - inner)
    off = 32 * UNIT * (np.abs(inner) + posterior * (np.abs(log_ratio) + mu * np.abs(edges) + mu**2))
    rising, falling = _cells(rate, mu, edges, log_ratio)
    first, bottom = _tail(edges[0]), _tail(edges[0] - mu)
    gap = max(0.0, -math.expm1(points[0]) - rate) + 8 * UNIT * (rate - math.expm1(points[0]))
    rising = np.concatenate([[gap * first + rate * bottom], rising])
    crossing = rate * math.exp(log_ratio[0]) * first
    bottom = max(0.0, crossing - rate * bottom) + 2.0**-44 * (1 + abs(log_ratio[0])) * crossing
    falling = np.concatenate([[bottom], falling])
    # Split of each cell between its ends, for both directions.
    with np.errstate(over="ignore"):
        narrow, wide = -np.expm1(-width), np.expm1(width)
        doubt = 2 * np.concatenate([[off[0]], np.maximum(off[:-1], off[1:])]) / narrow
        up, down = rising / narrow, falling / wide
        add_up = falling * np.exp(-points[1:]) / narrow
        add_down = rising * np.exp(-points[:-1]) / wide
    removal, addition = np.zeros(len(points)), np.zeros(len(points))
    both = up + down
    removal[1:] += up * (1 + PAD) + both * doubt
    removal[:-1] += down * (1 + PAD) + both * doubt
    both = add_up + add_down
    addition[:-1] += add_up * (1 + PAD) + both * doubt
    addition[1:] += add_down * (1 + PAD) + both * doubt
    top = float(edges[-1])
    addition[-1] += _tail(-top) * (1 + PAD)
    beyond = (_tail(-top) + rate * _tail(mu - top)) * (1 + PAD)
    shift = float(off.max())
    return Step(places, removal, beyond, shift), Step(-places, addition, 0.0, shift)


def _cells(rate: float, mu: float, edges: Floats, log_ratio: Floats) -> tuple[Floats, Floats]:
    """The integrals of q·φ·(e^l − e^{l_i}) and of q·φ·(e^{l_{i+1}} − e^l) over each cell.

    φ is the standard normal density and l = μt − μ²/2. Quadrature, plus its remainder.
    """
    half = np.diff(edges) / 2
    middle = (edges[:-1] + edges[1:]) / 2
    t = middle[:, None] + half[:, None] * _NODES
    left, right = edges[:-1, None], edges[1:, None]
    with np.errstate(over="ignore", under="ignore"):
        base = np.exp(log_ratio[:, None][:-1] - t**2 / 2) * np.expm1(mu * np.maximum(t - left, 0))
        other = np.exp(log_ratio[:, None][1:] - t**2 / 2) * -np.expm1(
            -mu * np.maximum(right - t, 0)
        )
        # |e^{−z²/2}| on the ellipse with the foci of the cell, about N(0, 1) and about N(μ, 1)
        real, imaginary = (_ELLIPSES + 1 / _ELLIPSES) / 2, (_ELLIPSES - 1 / _ELLIPSES) / 2
        bounds = []
        for log_factor, mean in ((log_ratio[1:], 0.0), (np.zeros(1), mu)):
            nearest = np.maximum(np.abs(middle - mean) - half * real, 0)
            bounds.append(np.exp(log_factor - nearest**2 / 2 + (half * imaginary) ** 2 / 2))
        remainder = (
            (64 / 15)
            * (bounds[0] + bounds[1])
            / (_ELLIPSES ** (2 * len(_NODES)) * (1 - _ELLIPSES**-2))
        )
        remainder = remainder.min(axis=0) * half * (1 + PAD)
    scale = rate / math.sqrt(2 * math.pi)
    return (
        scale * (half * (base @ _WEIGHTS) + remainder),
        scale * (half * (other @ _WEIGHTS) + remainder),
    )


def _loss(t: Floats, rate: float, mu: float) -> Floats:
    """The loss ln(1 − q + q·e^{μt − μ²/2})."""
    exponent = mu * t - mu**2 / 2
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def highest_loss(rate: float, mu: float) -> float:
    """The largest loss that does not count as infinite."""
    return min(_MOST_LOSS, float(_loss(np.array([mu + _REACH]), rate, mu)[0]))


class Outline:
    """A rough picture of the loss of one step, by which tilt, lattice and window are chosen.

    Losses of a total probability of at most ``negligible`` are cut off at the top.
    """

    def __init__(self, rate: float, noise: float, negligible: float, *, removal: bool) -> None:
        mu = 1 / noise
        t, distance = np.linspace(
            -_LOWEST, mu + _REACH, min(4000, math.ceil(20 * (mu + 25))), retstep=True
        )
        log_mass = -(t**2) / 2 + math.log(distance / math.sqrt(2 * math.pi))
        loss = _loss(t, rate, mu)
        if removal:
            log_mass += loss
        else:
            loss, log_mass = -loss[::-1], log_mass[::-1]
        above = np.exp(log_mass[::-1]).cumsum()[::-1]
        kept = max(2, int(np.searchsorted(-above, -negligible)))
        self.loss, self.log_mass = loss[:kept], log_mass[:kept]
        self.highest = float(loss[kept - 1])

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """ln M(λ), mean and variance of the tilted loss."""
        exponent = self.log_mass + tilt * self.loss
        peak = exponent.max()
        share = np.exp(exponent - peak)
        total = share.sum()
        mean = float(share @ self.loss / total)
        variance = float(share @ (self.loss - mean) ** 2 / total)
        return float(peak + math.log(total)), mean, max(variance, 1e-200)

    def tilt(self, steps: int, log_delta: float) -> float:
        """λ for which Chernoff's bound at the mean of the tilted sum is δ, or a smaller one."""

        def chernoff(tilt: float) -> float:
            log_moment, mean, _ = self.moments(tilt)
            return steps * (log_moment - tilt * mean)

        # A normal law would need √(−2 ln δ) standard deviations, a bounded one more.
        low, high = 0.0, 2 * math.sqrt(-2 * log_delta / (steps * self.moments(0.0)[2]))
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if chernoff(middle) > log_delta else (low, middle)
        return low
