"""Exact output laws of every selector over finite mechanisms, in batches.

Outputs are scores 0, …, m−1. A mechanism on a pair of neighbouring datasets is a pair (Q, Q′) of
probability vectors. Arrays are (batch, candidate, output). Where a law is a sum over the drop level
k, the tail is bounded on both sides and the bracket is kept: :func:`excess` compares the upper end
of one law with the lower end of the other. Ties go to the lower index. Nothing here is imported
from ``expost``: the formulas are written a second time on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

Array = np.ndarray
SLACK = 1e-9  # relative; rounding in these sums is below 1e-12


@dataclass(frozen=True)
class Law:
    """Bounds on the probabilities of outcomes (batch, candidate, output), "nothing" (batch,)."""

    low: Array
    high: Array
    nothing_low: Array
    nothing_high: Array

    @classmethod
    def exactly(cls, chances: Array, nothing: Array) -> Law:
        return cls(chances, chances, nothing, nothing)

    def given_something(self) -> Law:
        """The law conditioned on the outcome not being "nothing"."""
        zero = np.zeros_like(self.nothing_low)
        least, most = (
            chances.sum((1, 2))[:, None, None] for chances in (self.low, self.high)
        )  # not 1 − nothing: it may vanish
        return Law(self.low / most, self.high / least, zero, zero)

    def total(self) -> tuple[Array, Array]:
        """A bracket of the sum of all chances."""
        return self.low.sum((1, 2)) + self.nothing_low, self.high.sum((1, 2)) + self.nothing_high


def excess(law: Law, other: Law, charge: Array, nothing_charge: Array) -> float:
    """By how much the worst log ratio, in either direction, exceeds its charge (< 0: it holds)."""
    worst = -np.inf
    for a, b in ((law, other), (other, law)):
        worst = max(worst, np.max(_log_ratio(a.high, b.low) - charge[..., None]))
        worst = max(worst, np.max(_log_ratio(a.nothing_high, b.nothing_low) - nothing_charge))
    return float(worst)


def _log_ratio(above: Array, below: Array) -> Array:
    """log(above/below), −∞ where an outcome never happens."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above > 0, np.log(above) - np.log(below), -np.inf)


# Pairs of laws that keep ε-DP in both directions.


def random_pairs(rng: np.random.Generator, epsilon: Array, outputs: int) -> tuple[Array, Array]:
    """Pairs (Q, Q′) with |log Q/Q′| ≤ ε.

    Half of them are vertices that reach e^ε; some have an impossible output.
    """
    impossible = outputs > 2 and rng.random() < 0.25
    size = outputs - impossible
    safe = epsilon * (1 - 1e-12)
    kinds = rng.integers(0, 4, epsilon.shape)[..., None]
    pair = np.where(
        kinds < 2, _tilted(rng, safe, size), np.where(kinds == 2, *_vertices(rng, safe, size))
    )
    swap = rng.random(epsilon.shape)[..., None] < 0.5
    first, second = np.where(swap, pair[1], pair[0]), np.where(swap, pair[0], pair[1])
    if impossible:
        place = int(rng.integers(0, outputs))
        first, second = (np.insert(q, place, 0.0, axis=-1) for q in (first, second))
    assert np.all(first <= np.exp(epsilon)[..., None] * second)
    assert np.all(second <= np.exp(epsilon)[..., None] * first)
    return first, second


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.gamma(0.5, size=shape) + 1e-9


def _tilted(rng: np.random.Generator, epsilon: Array, size: int) -> Array:
    """A random law and an exponential tilt of it, by at most ε/2 before normalising."""
    law = _weights(rng, (*epsilon.shape, size))
    tilt = law * np.exp(rng.uniform(-0.5, 0.5, law.shape) * epsilon[..., None])
    return np.stack([law / law.sum(-1, keepdims=True), tilt / tilt.sum(-1, keepdims=True)])


def _vertices(rng: np.random.Generator, epsilon: Array, size: int) -> tuple[Array, Array]:
    """Two families that reach e^ε: (diluted) randomised response, and a rare output.

    Outputs are labelled +, −, 0. With a ≤ 1/(1+e^ε): Q(+) = a·e^ε, Q′(+) = a, and either Q(−) = a,
    Q′(−) = a·e^ε with the rest unchanged, or everything outside + shrinks together.
    """
    labels = rng.integers(-1, 2, (*epsilon.shape, size))
    labels[..., 0], labels[..., 1] = 1, -1
    labels = rng.permuted(labels, axis=-1)
    growth = np.exp(epsilon)[..., None]
    dilution = np.where(
        (labels == 0).any(-1, keepdims=True), rng.random((*epsilon.shape, 1)) ** 3, 1.0
    )
    part = dilution / (1 + growth)
    weights = _weights(rng, labels.shape)
    share = sum(
        np.where(labels == each, weights / _masked_sum(weights, labels == each), 0.0)
        for each in (-1, 0, 1)
    )
    rest = share * (1 - part * (1 + growth))
    response = np.stack(
        [
            np.select([labels == 1, labels == -1], [share * part * growth, share * part], rest),
            np.select([labels == 1, labels == -1], [share * part, share * part * growth], rest),
        ]
    )
    outside = weights / _masked_sum(weights, labels != 1)
    rare = part * rng.random(part.shape)
    against = np.stack(
        [
            np.where(labels == 1, share * rare * growth, outside * (1 - rare * growth)),
            np.where(labels == 1, share * rare, outside * (1 - rare)),
        ]
    )
    return response, against


def _masked_sum(weights: Array, mask: Array) -> Array:
    total = np.where(mask, weights, 0.0).sum(-1, keepdims=True)
    return np.where(total > 0, total, 1.0)


# Algorithms 2 and 3: sums over the drop level.


@dataclass(frozen=True)
class Dropping:
    """The public settings of a batch.

    Overhead (batch,), rates and copies (batch, candidate), and the least level.
    """

    overhead: Array
    rates: Array
    copies: Array
    least: int = 0
    levels: int = 320

    def keep(self) -> Array:
        """The chance to keep a copy: (batch, level, candidate, 1)."""
        k = self.least + np.arange(self.levels)
        return np.exp(-self.rates[:, None, :] * k[None, :, None])[..., None]

    def sum(self, terms: Array, nothing: Array, last_limit: Array) -> Law:
        """Σ_k P(k)·term(k), the last level standing for all above it.

        There, term(k)/keep(k) grows with k, so term(last)·e^{−γ(k−last)} is below it;
        ``last_limit`` is what term(last) would be if every competing factor were 1, hence above it.
        The probability of nothing lies between nothing(last) and 1.
        """
        return level_sum(self.overhead, self.rates, terms, nothing, last_limit)


def level_sum(
    overhead: Array, rates: Array, terms: Array, nothing: Array, last_limit: Array
) -> Law:
    """See :meth:`Dropping.sum`.

    ``terms`` is (batch, level, candidate, output), ``nothing`` is (batch, level).
    """
    k = np.arange(terms.shape[1])
    chance = -np.expm1(-overhead)[:, None] * np.exp(-overhead[:, None] * k)
    body = np.einsum("bk,bkio->bio", chance[:, :-1], terms[:, :-1])
    tail = (chance[:, -1:] / -np.expm1(-(overhead[:, None] + rates)))[..., None]
    beyond = np.exp(-overhead * k[-1])
    empty = np.einsum("bk,bk->b", chance[:, :-1], nothing[:, :-1])
    return Law(
        body + tail * terms[:, -1],
        body + tail * last_limit,
        empty + beyond * nothing[:, -1],
        empty + beyond,
    )


def tails(q: Array) -> tuple[Array, Array]:
    """P(score > o) and P(score ≤ o) for o = −1, 0, …, m−1.

    Each is summed from its own end so that small values stay exact.
    """
    zero = np.zeros_like(q[..., :1])
    beats = np.concatenate([np.cumsum(q[..., ::-1], axis=-1)[..., ::-1], zero], axis=-1)
    return np.minimum(beats, 1.0), np.concatenate([zero, np.cumsum(q, axis=-1)], axis=-1)


def log_miss(keep: Array, hit: Array, miss: Array) -> Array:
    """log(1 − keep·hit), the log probability that one copy is dropped or misses.

    hit + miss = 1, and small values of either stay exact.
    """
    with np.errstate(divide="ignore"):
        return np.where(keep * hit < 0.5, np.log1p(-keep * hit), np.log((1 - keep) + keep * miss))


def _gain(log_left: Array, step: Array, copies: Array) -> Array:
    """left^T − (left − step)^T without cancellation."""
    left = np.exp(log_left)
    share = np.minimum(np.divide(step, left, out=np.zeros_like(step + left), where=left > 0), 1.0)
    with np.errstate(divide="ignore"):
        return np.exp(copies * log_left) * -np.expm1(copies * np.log1p(-share))


def random_dropping(q: Array, settings: Dropping) -> Law:
    """Algorithm 3: the best kept output.

    The factor of a competitor: no kept copy of it ranks above the winner.
    """
    keep, copies = settings.keep(), settings.copies[:, None, :, None]
    lower = log_miss(keep, *(each[:, None] for each in tails(q)))  # over o = −1, …, m−1
    best_at_most = np.exp(copies * lower)
    own = _gain(lower[..., 1:], keep * q[:, None], copies)
    terms = np.stack([own[:, :, i] * _beats(best_at_most, i) for i in range(q.shape[1])], axis=2)
    last_limit = copies[:, 0] * keep[:, -1] * q
    return settings.sum(terms, np.prod(best_at_most[..., 0], axis=2), last_limit)


def _beats(best_at_most: Array, i: int) -> Array:
    earlier = np.prod(best_at_most[:, :, :i, :-1], axis=2)
    return earlier * np.prod(best_at_most[:, :, i + 1 :, 1:], axis=2)


def first_pass(q: Array, settings: Dropping, bar: int, order: Sequence[int]) -> tuple[Array, Array]:
    """Terms of "the first kept copy, in this order, whose score reaches the goal" and of "none"."""
    keep, copies = settings.keep()[..., 0], settings.copies[:, None]
    passes, fails = pass_chances(q, bar)
    log_none = copies * log_miss(keep, passes, fails)
    none = np.exp(log_none)
    found = np.divide(-np.expm1(log_none), passes, out=np.zeros_like(none), where=passes > 0)
    before = np.stack(
        [np.prod(none[:, :, list(_earlier(order, i))], axis=2) for i in range(q.shape[1])], axis=2
    )
    good = np.where(np.arange(q.shape[2]) >= bar, q, 0.0)
    return (before * found)[..., None] * good[:, None], np.prod(none, axis=2)


def pass_chances(q: Array, bar: int) -> tuple[Array, Array]:
    """The chances that one output reaches the goal, and that it does not: (batch, 1, candidate)."""
    passes, fails = q[..., bar:].sum(-1)[:, None], q[..., :bar].sum(-1)[:, None]
    return np.minimum(passes, 1.0), np.minimum(fails, 1.0)


def _earlier(order: Sequence[int], i: int) -> Sequence[int]:
    return order[: list(order).index(i)]


def above_threshold(q: Array, settings: Dropping, bar: int) -> Law:
    """Algorithm 2: the first kept output that reaches the goal, else nothing."""
    terms, nothing = first_pass(q, settings, bar, range(q.shape[1]))
    good = np.where(np.arange(q.shape[2]) >= bar, q, 0.0)
    return settings.sum(terms, nothing, settings.copies[..., None] * settings.keep()[:, -1] * good)


def random_dropping_target(q: Array, settings: Dropping, bar: int, order: Sequence[int]) -> Law:
    """Algorithm 3 with the score (passed?, priority).

    The first pass by priority, else the first kept by priority.
    """
    terms, _ = first_pass(q, settings, bar, order)
    keep, copies = settings.keep()[..., 0], settings.copies[:, None]
    passes, fails = pass_chances(q, bar)
    log_none = log_miss(keep, passes, fails)
    none, dropped = np.exp(copies * log_none), (1 - keep) ** copies
    own = _gain(log_none, keep * fails, copies)  # something of it was kept, and all of that failed
    share = np.divide(own, fails, out=np.zeros_like(own), where=fails > 0)
    for i in range(q.shape[1]):
        earlier = list(_earlier(order, i))
        later = [j for j in range(q.shape[1]) if j != i and j not in earlier]
        around = np.prod(dropped[:, :, earlier], axis=2) * np.prod(none[:, :, later], axis=2)
        terms[:, :, i, :bar] = (share[:, :, i] * around)[..., None] * q[:, None, i, :bar]
    return settings.sum(
        terms, np.prod(dropped, axis=2), copies[:, 0, :, None] * keep[:, -1, :, None] * q
    )


def by_subsets(
    q: Array, settings: Dropping, runs_of: Callable[[tuple[int, ...]], Sequence[int] | None]
) -> Law:
    """The best of ``runs_of(kept)``, by listing every set of kept candidates (one copy each).

    None means that the set is drawn again.

    Slow and plain: it checks :func:`random_dropping`, and gives the laws of mutants.
    """
    count, keep = q.shape[1], settings.keep()[..., 0]
    chance = -np.expm1(-settings.overhead)[:, None] * np.exp(
        -settings.overhead[:, None] * np.arange(settings.levels)
    )
    chances, nothing, drawn = np.zeros_like(q), np.zeros(len(q)), np.zeros(len(q))
    for kept in chain.from_iterable(combinations(range(count), size) for size in range(count + 1)):
        inside = np.isin(np.arange(count), kept)
        weight = np.einsum("bk,bk->b", chance, np.prod(np.where(inside, keep, 1 - keep), axis=2))
        runs = runs_of(kept)
        if runs is None:
            continue
        drawn += weight
        nothing += weight if not runs else 0.0
        chances += weight[:, None, None] * best_of(q, runs)
    return Law.exactly(chances / drawn[:, None, None], nothing / drawn)


def best_of(q: Array, runs: Sequence[int]) -> Array:
    """The law of the best output when exactly these candidates run."""
    _, at_most = tails(q)
    chances = np.zeros_like(q)
    for i in runs:
        earlier = np.prod([at_most[:, j, :-1] for j in runs if j < i], axis=0)
        chances[:, i] = (
            q[:, i] * earlier * np.prod([at_most[:, j, 1:] for j in runs if j > i], axis=0)
        )
    return chances


def above_threshold_queries(
    answers: Array,
    epsilon: Array,
    overhead: Array,
    bar: int = 0,
    outputs: int = 12,
    levels: int = 320,
) -> Law:
    """Algorithm 1 over integer queries: outcome (o, i) is the number bar + o released for query i.

    From the largest answer on, both laws fall by e^{−ε_i} per step of o, so a few ``outputs`` show
    every ratio.
    """
    k, o = np.arange(levels)[None, :, None, None], np.arange(outputs)
    room = bar + k - answers[:, None, :, None]
    below = np.where(room > 0, -np.expm1(-epsilon[:, None, :, None] * np.maximum(room, 0)), 0.0)
    exactly = _geometric(room + o, epsilon[:, None, :, None])
    before = np.concatenate([np.ones_like(below[:, :, :1]), np.cumprod(below, axis=2)], axis=2)
    return level_sum(
        overhead, epsilon, exactly * before[:, :, :-1], before[:, :, -1, 0], exactly[:, -1]
    )


def _geometric(value: Array, rate: Array) -> Array:
    return np.where(value >= 0, -np.expm1(-rate) * np.exp(-rate * np.maximum(value, 0)), 0.0)


# Doubling, repeat and select: closed forms.


def doubling(q: Array, copies: Array, bar: int) -> Law:
    """Every copy in order until one reaches the goal."""
    always = Dropping(np.ones(len(q)), np.zeros(q.shape[:2]), copies, levels=1)
    terms, nothing = first_pass(q, always, bar, range(q.shape[1]))
    return Law.exactly(terms[:, 0], nothing[:, 0])


Generating = Callable[[Array, Array], Array]
"""f(mass up to an outcome) − f(mass below it), where f generates the run count.

Arguments: 1 − mass below, mass of the outcome.
"""


def truncated_negative_binomial(shape: float, gamma: Array) -> Generating:
    """f(q) = ((1−(1−γ)q)^{−η} − 1)/(γ^{−η} − 1), and log(1−(1−γ)q)/log γ for η = 0."""
    g = gamma[:, None]

    def difference(from_here: Array, mass: Array) -> Array:
        start = g + (1 - g) * from_here  # 1 − (1−γ)·(mass below)
        fall = np.log1p(-(1 - g) * mass / start)
        if shape == 0:
            return fall / np.log(g)
        return start**-shape * np.expm1(-shape * fall) / np.expm1(-shape * np.log(g))

    return difference


def poisson(mean: Array) -> Generating:
    """f(q) = e^{μ(q−1)}."""
    return lambda from_here, mass: (
        np.exp(-mean[:, None] * from_here) * np.expm1(mean[:, None] * mass)
    )


def repeat_and_select(
    q: Array, copies: Array, runs: Generating, nothing: Array | None = None
) -> Law:
    """The best of a random number of runs of "pick a copy, run it".

    ``nothing`` is the probability of no run.
    """
    base = q * (copies / copies.sum(1, keepdims=True))[..., None]
    ascending = (
        base[:, ::-1].transpose(0, 2, 1).reshape(len(q), -1)
    )  # worst first: score, then the higher index
    from_here = np.minimum(np.cumsum(ascending[:, ::-1], axis=1)[:, ::-1], 1.0)
    chances = runs(from_here, ascending).reshape(len(q), q.shape[2], -1).transpose(0, 2, 1)[:, ::-1]
    return Law.exactly(chances, np.zeros(len(q)) if nothing is None else nothing)


# Noise reduction.


@dataclass(frozen=True)
class NoisePath:
    """Discrete Laplace levels of rates r_1 < … < r_n (coarse to fine), coupled or independent.

    Independent levels are the mutant.
    """

    rates: Sequence[float]
    coupled: bool = True
    reach: int = 150

    @property
    def values(self) -> Array:
        return np.arange(-self.reach, self.reach + 1)

    def noise(self, level: int, shift: int | Array = 0) -> Array:
        """The law of the noise at a level, at the window's values minus ``shift``."""
        p = np.exp(-self.rates[level])
        return (1 - p) / (1 + p) * p ** np.abs(self.values - shift)

    def outside(self, level: int, shift: int | Array = 0) -> Array:
        """The chance that the noise at a level, plus ``shift``, leaves the window."""
        p = np.exp(-self.rates[level])
        return (p ** (self.reach + 1 - shift) + p ** (self.reach + 1 + shift)) / (1 + p)

    def keep(self, level: int) -> float:
        """The chance that the next coarser level has the same noise as this one."""
        fine, coarse = np.exp(-self.rates[level]), np.exp(-self.rates[level - 1])
        return float(fine / coarse * ((1 - coarse) / (1 - fine)) ** 2)

    def to_coarser(self, level: int) -> Array:
        """P(value at level−1 = column | value at this level = row), inside the window."""
        keep, fresh = self.keep(level), self.noise(level - 1, self.values[:, None])
        return keep * np.eye(len(self.values)) + (1 - keep) * fresh


def noise_reduction(path: NoisePath, answer: int, passes: Array, beyond: Array) -> Law:
    """The first level whose noisy value passes: outcomes (rule, level, value).

    Values are −w, …, w as in ``passes`` (rule, level, value), which says which values pass;
    ``beyond`` (rule, level) says what values outside −w, …, w do.
    """
    rules, levels, width = passes.shape
    inner = np.abs(path.values) <= width // 2
    accepts = np.repeat(beyond[..., None], len(path.values), axis=2)
    accepts[..., inner] = passes
    chances: list[list[Array]] = [[], []]
    low = high = np.ones(
        (rules, len(path.values))
    )  # chance that all coarser levels failed, given the value here
    for level in range(levels):
        if level:
            low, high = _failed_before(
                path, level, answer, low, high, ~accepts[:, level - 1], ~beyond[:, level - 1]
            )
        here = path.noise(level, answer)
        for side, before in zip(chances, (low, high), strict=True):
            side.append(np.where(passes[:, level], (here * before)[:, inner], 0.0))
    nothing = [(here * before * ~accepts[:, -1]).sum(1) for before in (low, high)]
    lost = path.outside(levels - 1, answer) * ~beyond[:, -1]
    return Law(np.stack(chances[0], 1), np.stack(chances[1], 1), nothing[0], nothing[1] + lost)


def _failed_before(
    path: NoisePath,
    level: int,
    answer: int,
    low: Array,
    high: Array,
    failing: Array,
    failing_outside: Array,
) -> tuple[Array, Array]:
    if not path.coupled:
        chance, lost = (
            path.noise(level - 1, answer),
            failing_outside[:, None] * path.outside(level - 1, answer),
        )
        spread = np.ones((1, len(path.values)))
        return tuple(
            (chance * x * failing).sum(1, keepdims=True) * spread + y
            for x, y in ((low, 0.0), (high, lost))
        )
    step = path.to_coarser(level)
    lost = (1 - path.keep(level)) * path.outside(level - 1, path.values)
    return (low * failing) @ step.T, (high * failing) @ step.T + failing_outside[:, None] * lost
