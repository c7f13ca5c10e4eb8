"""Exact output laws of Algorithms 2 and 3 over finite mechanisms with exact Rényi curves.

A candidate's outputs are the scores 0, …, m−1; arrays are (candidate, output). Drop levels are
summed one by one up to the level where a copy is kept with probability below 1e-6, and the rest is
bracketed (to about 1e-10). The upper end of one law is always compared with the lower end of the
other. Written a second time on purpose: nothing here comes from the Rényi pricing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, repeat

import numpy as np

from expost import Candidate, RenyiDP
from expost.selection.drop_law import DropLaw

Array = np.ndarray

ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 100.0)
SLACK = 1e-7  # on log moments: what the brackets and α·(rounding) can amount to
_ENOUGH = 14.0  # e^{−14} < 1e-6


def log_moment(p: Array, q: Array, order: float) -> Array:
    """ln Σ p^α q^{1−α} along the last axis; outputs that p never has count nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, order * np.log(p) + (1 - order) * np.log(q), -np.inf)
    return np.logaddexp.reduce(terms, axis=-1)


def exact_curves(here: Array, there: Array, orders: Sequence[float] = ORDERS) -> Array:
    """Rényi divergences (candidate, order), the larger direction, with room for rounding."""
    both = [
        [log_moment(p, q, a) / (a - 1) for a in orders] for p, q in ((here, there), (there, here))
    ]
    return np.maximum(np.max(both, axis=0).T, 0.0) * (1 + 1e-12) + 1e-14


@dataclass(frozen=True)
class Instance:
    """Candidates on a pair of neighbouring datasets.

    With their repeats and (for some) drop rates, and a goal for Algorithm 2.
    """

    here: Array
    there: Array
    repeats: Sequence[int]
    drop_rates: Sequence[float | None]
    bar: int = 1
    orders: Sequence[float] = ORDERS
    curves: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "curves", exact_curves(self.here, self.there, self.orders))

    @cached_property
    def _candidates(self) -> list[Candidate]:
        return [
            Candidate(
                _unused,
                repeats=repeats,
                guarantee=RenyiDP(tuple(self.orders), tuple(curve.tolist())),
                drop_rate=drop_rate,
            )
            for curve, repeats, drop_rate in zip(
                self.curves, self.repeats, self.drop_rates, strict=True
            )
        ]

    def candidates(self) -> list[Candidate]:
        return self._candidates

    def swapped(self) -> Instance:
        return replace(self, here=self.there, there=self.here)


def _unused(data: object, randomness: object) -> object:
    raise AssertionError("pricing never runs a candidate")


@dataclass(frozen=True)
class Law:
    """Brackets of the chance of each outcome (candidate, output) and of nothing."""

    low: Array
    high: Array
    nothing_low: float
    nothing_high: float

    def given_something(self) -> Law:
        """Conditioned on something being kept, an event whose chance is the same on all data."""
        return Law(self.low / (1 - self.nothing_low), self.high / (1 - self.nothing_high), 0.0, 0.0)


class Levels:
    """The library's own drop law, level by level."""

    def __init__(self, law: DropLaw, count: int) -> None:
        rates, self.overhead = np.zeros(count), float(law.overhead)
        for group, rate in zip(law.groups, law.rates, strict=True):
            rates[list(group.members)] = float(rate)
        self.rates, self.least = rates, law.minimum
        k = np.arange(int(_ENOUGH / rates.min()) + 2)
        self.chance = -np.expm1(-self.overhead) * np.exp(-self.overhead * k)
        self.keep = np.exp(-rates[:, None] * (self.least + k))  # candidate, level

    def law(self, terms: Array, limits: Array, nothing: Array, hits: Array) -> Law:
        """Σ_k P(k)·term(k), terms (candidate, output, level).

        The last level stands for all above it. There term/keep grows with k, to at most
        ``limits``/keep. "Nothing" is Π(1 − keep·h) over copies, between 1 − S and 1 − S + S²/2 with
        S = Σ keep·h; ``hits`` is Σ h over the copies of a candidate.
        """
        body, empty = terms[..., :-1] @ self.chance[:-1], float(nothing[:-1] @ self.chance[:-1])
        tail = self.chance[-1] / -np.expm1(-(self.overhead + self.rates))
        last = hits * self.keep[:, -1]
        above, lost = self.chance[-1] / -np.expm1(-self.overhead), tail @ last
        return Law(
            body + tail[:, None] * terms[..., -1],
            body + tail[:, None] * limits,
            empty + above - lost,
            empty + above - lost * (1 - last.sum() / 2),
        )


def _log_survival(keep: Array, beats: Array) -> Array:
    """ln(1 − keep·beats), −∞ where a copy is kept and beats for sure."""
    with np.errstate(divide="ignore"):
        return np.log1p(-np.minimum(keep * beats, 1.0))


def _beats(q: Array) -> Array:
    """P(output ≥ o) for o = 0, …, m: (candidate, output + 1)."""
    return np.minimum(
        np.concatenate([np.cumsum(q[:, ::-1], axis=1)[:, ::-1], np.zeros((len(q), 1))], axis=1), 1.0
    )


def random_dropping(q: Array, repeats: Sequence[int], levels: Levels) -> Law:
    """Algorithm 3: the best kept output, ties to the lower index."""
    copies, keep, beats = (
        np.array(repeats, dtype=float)[:, None, None],
        levels.keep[:, None, :],
        _beats(q)[..., None],
    )
    one = _log_survival(keep, beats)  # a copy is dropped, or its output is below o
    chance = np.exp(copies * one)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(keep * q[..., None] / np.exp(one[:, 1:]), 1.0)
        own = chance[:, 1:] * -np.expm1(
            copies * np.log1p(-share)
        )  # the best copy is at o, without cancellation
    terms = np.empty((*q.shape, len(levels.chance)))
    for i in range(len(q)):
        earlier, later = (
            chance[:i, :-1],
            chance[i + 1 :, 1:],
        )  # an earlier candidate must stay strictly below
        terms[i] = own[i] * np.prod(earlier, axis=0) * np.prod(later, axis=0)
    limits = copies[:, 0] * levels.keep[:, -1:] * q
    return levels.law(terms, limits, np.prod(chance[:, 0], axis=0), copies[:, 0, 0])


def above_threshold(q: Array, repeats: Sequence[int], levels: Levels, bar: int) -> Law:
    """Algorithm 2: the first kept output that reaches the goal."""
    copies = np.array(repeats, dtype=float)[:, None]
    passes = q[:, bar:].sum(axis=1)[:, None]
    none = np.exp(copies * _log_survival(levels.keep, passes))
    before = np.concatenate([np.ones((1, none.shape[1])), np.cumprod(none, axis=0)])
    good = np.where(np.arange(q.shape[1]) >= bar, q, 0.0)
    terms = (before[:-1] * (1 - none) / passes)[:, None, :] * good[..., None]
    return levels.law(
        terms, copies * levels.keep[:, -1:] * good, before[-1], copies[:, 0] * passes[:, 0]
    )


def hockey_stick(law: Law, other: Law, losses: Array, nothing: float) -> float:
    """Σ (A − e^ε̃·A′)₊ over all outcomes, with ε̃ per candidate."""
    outcomes = np.maximum(law.high - np.exp(losses)[:, None] * other.low, 0.0).sum()
    return float(outcomes + max(0.0, law.nothing_high - np.exp(nothing) * other.nothing_low))


def log_moments(law: Law, other: Law, order: float) -> tuple[Array, float]:
    """ln Σ_o A^α A′^{1−α} of each candidate, and of nothing."""
    nothing = log_moment(np.array([law.nothing_high]), np.array([other.nothing_low]), order)
    return log_moment(law.high, other.low, order), float(nothing)


# Random mechanisms.


def random_pair(rng: np.random.Generator, outputs: int) -> tuple[Array, Array]:
    """A law and a neighbour: a tilt, a randomised response, or a rare output that grows.

    Divergences from 0.01 to about 5.
    """
    kind, size = rng.integers(0, 4), np.exp(rng.uniform(np.log(0.1), np.log(3)))
    base = rng.dirichlet(np.full(outputs, 0.7)) + 1e-4
    if kind == 0:
        other = base * np.exp(rng.normal(0, size, outputs))
    elif kind == 1:  # everything up, or everything down
        other = base * np.exp(size * np.sign(np.arange(outputs) - rng.integers(0, outputs) - 0.5))
    elif kind == 2:
        rare, base = rng.integers(0, outputs), base.copy()
        base[rare] = 10 ** rng.uniform(-6, -2)
        other = base.copy()
        other[rare] *= np.exp(2 * size)
    else:
        other = base * np.exp(rng.uniform(-size, size, outputs))
    pair = base / base.sum(), other / other.sum()
    return pair if rng.random() < 0.5 else pair[::-1]


def leaky_pair(rng: np.random.Generator, outputs: int, delta: float) -> tuple[Array, Array]:
    """An output of probability about δ that a neighbour hardly ever gives, for (ε, δ) claims."""
    base = rng.dirichlet(np.full(outputs, 0.7)) + 1e-3
    other = base * np.exp(rng.normal(0, 0.1, outputs))
    leak = rng.integers(0, outputs)
    base[leak], other[leak] = delta * rng.uniform(0.5, 4), delta * 10 ** rng.uniform(-5, -1)
    pair = base / base.sum(), other / other.sum()
    return pair if rng.random() < 0.5 else pair[::-1]


def random_instance(rng: np.random.Generator, delta: float | None = None) -> Instance:
    """One to four candidates with a few copies; with a δ, leaky pairs.

    Half the instances choose their own drop rates.
    """
    count, outputs = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    drawn = (
        random_pair(rng, outputs) if delta is None else leaky_pair(rng, outputs, delta)
        for _ in repeat(0)
    )
    pairs = list(islice((pair for pair in drawn if _noticeable(*pair)), count))
    here, there = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    repeats = rng.choice([1, 1, 1, 2, 3, 7], count).tolist()
    custom = rng.random() < 0.5
    drop_rates = [float(np.exp(rng.uniform(-0.8, 0.8))) if custom else None for _ in range(count)]
    return Instance(here, there, repeats, drop_rates, bar=int(rng.integers(1, outputs)))


def _noticeable(here: Array, there: Array) -> bool:
    """Not so small that millions of levels matter: the lattice step follows the divergence."""
    return bool(exact_curves(here[None], there[None], [64.0])[0, 0] > 0.9)


def random_order(rng: np.random.Generator, instance: Instance) -> float:
    """An order at which every candidate's divergence is noticeable."""
    return float(
        rng.choice(
            [a for a, curve in zip(ORDERS, instance.curves.T, strict=True) if curve.min() > 0.8]
        )
    )
