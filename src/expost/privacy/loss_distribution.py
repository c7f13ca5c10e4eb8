"""The privacy loss distribution of DP-SGD: certified bounds of δ, sharper than Rényi curves.

One step of Poisson-sampled DP-SGD is dominated by a pair of normal laws, in units of the noise:
A = (1−q)·N(0, 1) + q·N(μ, 1) and B = N(0, 1) with μ = 1/σ; (A, B) serves the removal of a row and
(B, A) its addition, and steps compose by products (Zhu, Dong and Wang 2022, Theorems 10 and 11).
For a pair (P, Q) with the loss L = ln(P/Q) and T independent steps

    δ(ε) = E_P (1 − e^{ε − L₁ − … − L_T})₊.

Everything here bounds this from above; cells, tilt and window affect tightness only. The argument
is in docs/theory.md, "Privacy profiles of DP-SGD": losses between two points of a lattice are
replaced by a coin that keeps the mean of e^{−L} (Doroshenko et al. 2022); probabilities of a cell
are rounded up by the remainder of their quadrature (Trefethen 2019, Theorem 19.3) and 2^{−40}; what
lies above the last cell or the window is added to δ; the T-fold convolution is tilted, so that the
error of the Fourier transform (Higham 2002, Theorem 24.2) is small where δ is small, and this error
is added to *every* probability of the window.

Tests: ``tests/privacy/test_loss_distribution.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
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


class StepLoss(NamedTuple):
    """The law of the loss of one step on the lattice h·k, rounded up: multiples k and masses.

    ``beyond``: bound of the probability of a loss above all of them. ``shift``: by how much the
    true loss may exceed what the multiples say (τ).
    """

    multiples: Integers
    masses: Floats
    beyond: float
    shift: float


def _tail(z: float) -> float:
    """Φ(z) to a few units in the last place."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _multiples(lowest: int, highest: int, centre: int, growth: float, widest: int) -> Integers:
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
) -> tuple[StepLoss, StepLoss]:
    """Return the laws of the loss of one step when a row is removed, and when it is added.

    ``spacing``: distance h of the lattice, a power of two, so that every multiple is exact. Cells
    are narrow around ``centre``; their widths grow by ``growth`` with the distance, up to
    ``widest``.
    """
    mu = 1 / noise
    lowest = math.floor(math.log1p(-rate) / spacing * (1 + 4 * UNIT))
    highest = max(lowest + 3, math.ceil(highest_loss(rate, mu) / spacing))
    middle = min(max(lowest + 1, round(centre / spacing)), highest - 1)
    widest = max(widest / spacing, (highest - lowest) / _MOST_CELLS)
    multiples = _multiples(lowest, highest, middle, growth, max(1, int(widest)))
    inner = multiples[1:] * spacing  # multiples[0] lies below every loss
    # Edges of the cells in units of the noise; what lies far below is one cell.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log1p(np.expm1(inner) / rate)  # l = ln((e^ε − 1 + q)/q)
        edges = log_ratio / mu + mu / 2
        kept = edges > -_LOWEST
    kept[-2:] = True
    inner, edges = inner[kept], edges[kept]
    points = np.concatenate([[multiples[0] * spacing], inner])
    multiples = np.concatenate([multiples[:1], multiples[1:][kept]])
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
    return StepLoss(multiples, removal, beyond, shift), StepLoss(-multiples, addition, 0.0, shift)


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


FINE, COARSE = 1 / 48, 1 / 6
"""Width of a cell, in standard deviations of the (tilted) loss of one step."""

_MOST_POINTS = 1 << 18
_LEAST_NOISE, _MOST_NOISE = 0.01, 1e6
_SIDE = 6.5  # half of the window, in standard deviations of the tilted sum


@dataclass(frozen=True, eq=False)
class TiltedSum:
    """The sum of the losses of T steps near one ε: an upper bound of δ at every ε.

    ``first`` and ``second`` are the sums of p·e^{−λs} and of p·e^{−(λ+1)s} over all points of the
    window from one point on, with s counted from ``reference``.
    """

    start: int
    spacing: float
    total_shift: float
    tilt: float
    reference: float
    log_scale: float
    allowance: float
    first: Floats
    second: Floats

    def delta(self, epsilons: Floats) -> Floats:
        """Return an upper bound of δ at each ε; it does not rise, and is 1 below the window."""
        lowered = np.asarray(epsilons - self.total_shift * (1 + PAD))
        low, last = self.start * self.spacing, len(self.first) - 1
        inner = np.minimum(lowered, low + last * self.spacing)  # δ(ε) does not rise above it
        at = np.clip(np.floor((inner - low) / self.spacing) + 1, 0, last).astype(np.int64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            away = inner - self.reference
            first, second = self.first[at], self.second[at] * np.exp(np.minimum(away, 700.0))
            inside = np.maximum(first - second, 0) + 2.0**-46 * (1 + np.abs(away)) * first
            chernoff = np.exp(np.minimum(-self.tilt * (lowered - self.reference), 700.0))
            bound = np.minimum(inside, chernoff) * math.exp(min(700.0, self.log_scale))
            bound = bound * (1 + PAD) + self.allowance
        return np.where((lowered >= low) & (bound < 1), bound, 1.0)


def tilted_sum(
    step: StepLoss, spacing: float, steps: int, tilt: float, low: float, high: float
) -> TiltedSum:
    """Return the sum of the losses of ``steps`` steps, with the window [low, high] at least."""
    start = math.floor(low / spacing)
    needed = max(64, math.ceil(high / spacing) - start)
    eighth = 1 << (needed.bit_length() - 3)
    length = eighth * next(part for part in (4, 5, 6, 8, 9) if part * eighth >= needed)
    losses = step.multiples * spacing
    with np.errstate(divide="ignore"):
        log_mass = np.log(step.masses)
    exponent = log_mass + tilt * losses
    peak = exponent.max()
    tilted = np.exp(exponent - peak)
    total = tilted.sum()
    tilted /= total
    log_moment = float(peak + math.log(total))
    # Any normaliser is valid as long as it is undone; this covers the rounding of the exponents.
    doubt = 8 * UNIT * (4 + float(np.abs(exponent).max()) + abs(log_moment))
    law, power_error = _power(step.multiples, tilted, steps, length, start)
    points = np.arange(length) * spacing
    reference = (start + length // 2) * spacing
    away = points + (start * spacing - reference)
    with np.errstate(over="ignore", under="ignore"):
        weight = np.exp(-tilt * away) * (law + power_error)
        first = weight[::-1].cumsum()[::-1] * (1 + 4 * length * UNIT)
        second = (weight * np.exp(-away))[::-1].cumsum()[::-1] * (1 - 4 * length * UNIT)
    log_scale = steps * (log_moment + doubt) - tilt * reference
    log_scale += 8 * UNIT * (steps * abs(log_moment) + abs(tilt * reference))
    top = (start + length) * spacing
    width = max(high - low, spacing)
    wrapped = min(
        steps * (_log_moment(exponent + extra * losses) + doubt) - (tilt + extra) * top
        for extra in np.geomspace(0.25, 32, 8) / width * _SIDE * 2
    )
    beyond = steps * step.beyond * (1 + PAD)
    allowance = math.exp(min(0.0, wrapped + 1e-9)) + beyond
    return TiltedSum(
        start, spacing, steps * step.shift, tilt, reference, log_scale, allowance, first, second
    )


def _log_moment(exponent: Floats) -> float:
    """ln Σ e^x."""
    peak = exponent.max()
    return float(peak + math.log(np.exp(exponent - peak).sum()))


def _power(
    multiples: Integers, masses: Floats, steps: int, length: int, start: int
) -> tuple[Floats, float]:
    """The T-fold cyclic convolution on the window from ``start``, and a bound of its error."""
    vector = np.bincount(multiples % length, weights=masses, minlength=length)
    level = 16 * UNIT * math.log2(length)
    norm = float(np.sqrt(vector @ vector)) * (1 + PAD)
    error = level * math.sqrt(length) * norm + 8 * UNIT
    spectrum = np.fft.rfft(vector)
    size = np.abs(spectrum) + error
    kept = size > math.exp(-80 / steps)  # the others are below e^{−80} after the power
    parts = spectrum[kept]
    frequency = np.nonzero(kept)[0]
    # The window starts at ``start``: a rotation by whole steps, exact in integers.
    turn = (frequency * (start % length)) % length * (2 * math.pi / length)
    with np.errstate(divide="ignore"):
        rate, angle = np.log(np.abs(parts)), np.angle(parts)
    powered = np.zeros(len(spectrum), dtype=complex)
    powered[kept] = np.exp(steps * rate + 1j * (steps * angle + turn))
    slack = np.exp((steps - 1) * np.log(size[kept])) * steps * (error + 32 * UNIT)
    lost = 2 * (float(slack.sum()) + len(spectrum) * math.exp(-80)) / length
    law = np.fft.irfft(powered, length)
    lost += level * float(np.sqrt(law @ law)) * (1 + PAD) + math.exp(-80)
    return np.maximum(law, 0.0), lost * (1 + PAD)


def sum_near(
    rate: float, noise: float, steps: int, delta: float, growth: float = FINE, *, removal: bool
) -> TiltedSum | None:
    """Return the sum of the losses of a training in one direction, sharp near one δ.

    It bounds δ at every ε, sharply within some ten orders of magnitude of ``delta``; None where
    losses are so large that nothing is left to protect. ``growth``: width of a cell, in standard
    deviations. ``removal``: whether a row is removed (else added).
    """
    outline = Outline(rate, noise, 1e-9 * delta / steps, removal=removal)
    tilt = outline.tilt(steps, math.log(delta))
    _, mean, variance = outline.moments(tilt)
    side = _SIDE * math.sqrt(steps * variance)
    # Near the largest useful tilt rare jumps widen the law; its bulk is seen at half of it.
    width = growth * (variance * min(variance, outline.moments(tilt / 2)[2])) ** 0.25
    span = max(highest_loss(rate, 1 / noise), -math.log1p(-rate))
    spacing = 2.0 ** math.floor(math.log2(max(width, 2 * side / _MOST_POINTS, span * 2.0**-40)))
    if spacing > 1:
        return None
    laws = step_law(
        rate, noise, spacing, mean if removal else -mean, growth, 2 * growth / (tilt + 1)
    )
    # The lowest cell may be up to two points wide where its other end carries much.
    step = _cut(laws[0 if removal else 1], outline.highest / spacing + 2)
    centre = steps * mean
    side = max(side, 32 * spacing)
    low = max(min(centre - side, 0.0), centre - 3 * side)  # down to ε = 0 if that is not far
    return tilted_sum(step, spacing, steps, tilt, low, centre + side)


def _cut(step: StepLoss, highest: float) -> StepLoss:
    """Count losses above a place as infinite."""
    kept = step.multiples <= highest
    beyond = step.beyond + float(step.masses[~kept].sum()) * (1 + PAD)
    return StepLoss(step.multiples[kept], step.masses[kept], beyond, step.shift)


_ANCHORS = ((1e-4, math.inf), (1e-11, 1e-10), (1e-24, 1e-19))  # (δ, from which δ on it is used)


class TrainingLoss:
    """The privacy loss distribution of a whole training, in both directions."""

    def __init__(self, rate: float, noise: float, steps: int, growth: float = FINE) -> None:
        self._settings = (rate, noise, steps)
        self._growth = growth
        self._sums: dict[tuple[float, bool], TiltedSum | None] = {}

    def delta(self, epsilons: Floats, *, removal: bool) -> Floats:
        """Return an upper bound of δ at each ε, in one direction; it does not rise with ε."""
        bound = np.ones(len(epsilons))
        for anchor, most in _ANCHORS:
            small = bound < most
            if small.any():
                if (anchor, removal) not in self._sums:
                    # Adding a row costs less than removing it; a coarser lattice is enough.
                    growth = self._growth * (1 if removal else 3)
                    self._sums[anchor, removal] = sum_near(
                        *self._settings, anchor, growth, removal=removal
                    )
                law = self._sums[anchor, removal]
                if law is not None:
                    bound[small] = np.minimum(bound[small], law.delta(epsilons[small]))
        return bound


def covers(rate: float, noise: float, steps: int) -> bool:
    """Return whether a training is in the range for which distributions are computed."""
    return 1e-9 <= rate <= 1 and _LEAST_NOISE <= noise <= _MOST_NOISE and 1 <= steps <= 10**9


@lru_cache(maxsize=32)
def training_loss(rate: float, noise: float, steps: int) -> TrainingLoss:
    """Return the privacy loss distribution of a training; recent ones are kept."""
    return TrainingLoss(rate, noise, steps)


@lru_cache(maxsize=4096)
def least_noise(rate: float, steps: int, epsilon: float, delta: float, enough: float) -> float:
    """Return the least noise multiplier, to some 1e-4, for which a training is (ε, δ)-DP.

    ln δ is almost linear in ln σ. Secant steps on a coarse lattice lead to the neighbourhood, the
    last ones are made with the distribution that :func:`training_loss` returns. ``enough`` suffices
    by another accountant.
    """
    target, at = math.log(delta), np.array([epsilon])

    def excess(log_noise: float, growth: float) -> float:
        loss = TrainingLoss(rate, math.exp(log_noise), steps, growth)
        bound = float(loss.delta(at, removal=True)[0])
        if growth == FINE and bound <= delta:
            bound = max(bound, float(loss.delta(at, removal=False)[0]))
        return math.log(bound) - target

    low, high = math.log(_LEAST_NOISE), math.log(enough)
    slope, guess = 2 * target, high - 0.06
    certified = high
    for growth, tolerance in ((COARSE, 0.1), (FINE, 1e-3)):
        short, ample = low, high  # too little noise, and enough
        last: tuple[float, float] | None = None
        for _ in range(40):
            above = excess(guess, growth)
            if above > 0:
                short = max(short, guess)
            else:
                ample = min(ample, guess)
                certified = min(certified, guess) if growth == FINE else certified
            if last is not None and guess != last[0]:
                new = (above - last[1]) / (guess - last[0])
                slope = new if new < 0 else slope
            last = (guess, above)
            guess -= (above + tolerance / 2) / slope
            if -tolerance <= above <= (0 if growth == FINE else tolerance):
                break
            if not short < guess < ample:
                guess = (short + ample) / 2
            if ample - short < 1e-6:
                break
    return math.exp(certified)
