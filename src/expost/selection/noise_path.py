"""Noise paths: a query, or any statistic of known sensitivity, looked at from coarse to fine.

:class:`NoiseReduction` looks at one query with discrete noise at several levels.

A :class:`NoisePath` is a vector statistic, its sensitivity, and a function that turns a noisy value
of it into an output. :meth:`NoisePath.levels` makes one candidate per privacy level, and
:class:`PathSearch` looks at the levels from coarse to fine until an output reaches a goal. Only the
last level that was looked at is paid; a miss is a stop at the last one. Proofs: docs/theory.md,
"Vector statistics with exact rounded Gaussians", "One δ for all looks", "Stopping under zCDP".

**Gaussian paths** (Whitehouse et al. 2022). Look j releases y_j = round(s + σ_j·z_j), a rounding of
exactly normal noise, with (Δ/σ_j)² ≤ μ_j² − μ_{j−1}², so all looks up to level i are together
μ_i-Gaussian DP. The output of level i is made of the inverse-variance average of y_1, …, y_i.
Nothing of a finer level exists before it is looked at. Under (ε, δ) level i is charged ε_i, with
one δ for all levels (:func:`expost.privacy.profiles.stopped_delta`); under zCDP ρ_i.

**Laplace paths** (:func:`expost.randomness.samplers.laplace_paths`), pure DP: level i is charged
ε_i. The statistic is rounded to a lattice of step u, the largest power of two that is at most
2^{−10}·Δ/d in d dimensions, and noise is scaled to the ℓ1 sensitivity Δ + d·u of the rounded one.

Tests: ``tests/selection/test_noise_path.py`` (the law of what leaves, by enumeration).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np

from expost.arrays import Floats, Integers
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.calls import call_or_failure, settle_failure
from expost.execution.engine import Outcome, ReleaseRule, Run
from expost.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    DiscreteNoise,
    gaussian_path,
    laplace_path,
)
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP
from expost.privacy.profiles import gaussian_mu, share_of_delta, stopped_delta
from expost.randomness.samplers import LARGEST_SCALE, add_gaussian, laplace_paths, lattice_for
from expost.randomness.source import SEED_BYTES, Randomness, RunKey, require_protection
from expost.rationals import Number, count_of, exact_positive, root_up, round_down, round_up
from expost.selection.candidate import Candidate, check_goal, check_noise_levels
from expost.selection.held_out import GaussianCounts, HeldOut
from expost.selection.release import Release
from expost.selection.selector import Candidates, Draws, Selector

_LAPLACE_BITS = 10


class Walk(Protocol):
    """The looks at one path, from coarse to fine, with one secret seed."""

    def output(self, index: int, data: Any) -> Any:
        """Return the output of a level."""


class Path(Protocol):
    """Anything whose level i releases, together with all levels before it, μ_i-Gaussian DP."""

    @property
    def neighbours(self) -> str:
        """The neighbouring relation."""

    def walk(self, levels: Sequence[PathLevel], seed: bytes, simulated: bool) -> Walk:
        """Return the looks; they keep to the levels' guarantees."""

    def theorem(self, law: str) -> str:
        """Return the name of the result that the levels rest on."""


@dataclass(frozen=True)
class NoisePath:
    """A statistic of known sensitivity and what is made of a noisy value of it.

    Parameters
    ----------
    statistic : callable
        Takes the data and returns ``dimension`` numbers. It must not fail on any rows.
    sensitivity : number
        The most that one person can change in the computed values: in ℓ2 for Gaussian noise, in ℓ1
        for Laplace noise.
    finish : callable
        ``finish(values, scale)`` returns the output for noisy values: an array of shape
        (``dimension``,), and the standard deviation (Gaussian) or scale (Laplace) of their noise.
        It must not use the data.
    dimension : int
        How many numbers the statistic returns.
    neighbours : str, default "add-remove"
        The neighbouring relation that ``sensitivity`` refers to.
    """

    statistic: Callable[[Any], Any]
    sensitivity: Number
    finish: Callable[[Floats, float], Any]
    dimension: int = 1
    neighbours: str = ADD_REMOVE
    _sensitivity: Fraction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("statistic", "finish"):
            if not callable(getattr(self, name)):
                raise InvalidInput(name, type(getattr(self, name)).__name__, "give a function")
        count_of(self.dimension, "dimension", at_least=1)
        object.__setattr__(self, "_sensitivity", exact_positive(self.sensitivity, "sensitivity"))

    @property
    def bound(self) -> Fraction:
        """The sensitivity as an exact number."""
        return self._sensitivity

    def values(self, data: Any) -> Floats:
        """Return the statistic as an array of floats."""
        statistic = np.asarray(self.statistic(data), dtype=np.float64).ravel()
        if statistic.shape != (self.dimension,):
            raise InvalidInput(
                "statistic",
                f"{statistic.size} values",
                f"return {self.dimension} as stated by `dimension`",
            )
        return statistic

    def walk(self, levels: Sequence[PathLevel], seed: bytes, simulated: bool) -> Walk:
        """Return the looks at the noisy statistic; the noise comes from a secret seed."""
        return _Walk(levels, seed, simulated)

    def theorem(self, law: str) -> str:
        """Return the name of the result for Laplace or Gaussian noise."""
        if law == "laplace":
            return (
                "Laplace noise reduction (Koufogiannis et al. 2016; Whitehouse et al. 2019), "
                "discrete"
            )
        return (
            "Brownian noise reduction (Whitehouse et al. 2022), exact rounded Gaussians, one δ "
            "for all levels"
        )

    def levels(
        self,
        epsilons: Sequence[Number] | None = None,
        *,
        delta: Number | None = None,
        rhos: Sequence[Number] | None = None,
    ) -> list[Candidate]:
        """Return one candidate per level, from coarse to fine.

        Parameters
        ----------
        epsilons : sequence of number, optional
            Increasing ε. With ``delta``: Gaussian noise. Without: Laplace noise and pure DP.
        delta : number, optional
            The δ of the whole search; the levels share it equally.
        rhos : sequence of number, optional
            In place of ``epsilons``: increasing ρ of Gaussian noise under zCDP.
        """
        return levels_of_path(self, epsilons, delta=delta, rhos=rhos)


def levels_of_path(
    path: Path,
    epsilons: Sequence[Number] | None = None,
    *,
    delta: Number | None = None,
    rhos: Sequence[Number] | None = None,
) -> list[Candidate]:
    """Return one candidate per level of a path; see :meth:`NoisePath.levels`."""
    if (epsilons is None) == (rhos is None) or (rhos is not None and delta is not None):
        raise InvalidInput(
            "epsilons, rhos",
            "both or neither",
            "give epsilons (with delta for Gaussian noise), or rhos alone",
        )
    guarantees: list[Guarantee]
    if rhos is not None:
        guarantees = [ZCDP(rho, path.neighbours) for rho in rhos]  # type: ignore[arg-type]
    elif delta is None:
        guarantees = [PureDP(epsilon, path.neighbours) for epsilon in epsilons or ()]  # type: ignore[arg-type]
    else:
        sizes = tuple(float(epsilon) for epsilon in epsilons or ())
        share = _share(exact_positive(delta, "delta"), sizes)
        guarantees = [ApproxDP(size, share, path.neighbours) for size in sizes]
    return [
        Candidate(PathLevel(path, guarantee), guarantee_params(guarantee))
        for guarantee in guarantees
    ]


def _share(delta: Fraction, epsilons: tuple[float, ...]) -> float:
    """Return δ of each level alone; wrong levels are refused where they are priced."""
    share = round_down(delta / max(len(epsilons), 1))
    if len(epsilons) < 2 or epsilons[0] <= 0 or any(a >= b for a, b in pairwise(epsilons)):
        return share
    return max(share, share_of_delta(epsilons, round_down(delta)))


def guarantee_params(guarantee: Guarantee) -> dict[str, float]:
    """Return the public number of a level: its ε or ρ."""
    name = "rho" if guarantee.as_zcdp() is not None else "epsilon"
    return {name: float(guarantee.size)}


@dataclass(frozen=True)
class PathLevel:
    """One level of a path, as a mechanism: a single release with fresh noise."""

    path: Path
    guarantee: Guarantee

    @property
    def law(self) -> str:
        """``"laplace"`` under pure DP, else ``"gaussian"``."""
        return "laplace" if self.guarantee.as_pure() is not None else "gaussian"

    def square(self) -> Fraction:
        """Return μ² of a Gaussian level, rounded down."""
        zcdp, approx = self.guarantee.as_zcdp(), self.guarantee.as_approx()
        if zcdp is not None:
            return 2 * Fraction(zcdp.rho)
        assert approx is not None
        return Fraction(gaussian_mu(approx.epsilon, approx.delta)) ** 2

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        """Return the output for one fresh release at this level."""
        seed = randomness.bytes(SEED_BYTES)
        return self.path.walk([self], seed, randomness.simulated).output(0, data)


@dataclass(frozen=True)
class PathSearch(Selector):
    """Look at the levels of a :class:`NoisePath` until an output reaches ``at_least``; release it.

    Parameters
    ----------
    at_least : float, optional
        The score that an output must reach. Required without ``held_out``.
    held_out : HeldOut or GaussianCounts, optional
        Decide by a noisy count on held-out rows instead (:mod:`expost.selection.held_out`). The
        released value is then a :class:`~expost.selection.held_out.Seen`.

    Notes
    -----
    The claim and its proof are stated in :mod:`expost.selection.noise_path`. Assumed: the
    statistic's sensitivity is as stated, it does not fail on any rows, and scores depend on outputs
    alone.
    """

    at_least: float | None = None
    held_out: HeldOut | GaussianCounts | None = None
    name: ClassVar[str] = "noise-path"
    runs_here: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_goal(self.at_least)
        if self.held_out is not None:
            if self.at_least not in (None, 0.0):
                raise InvalidInput(
                    "at_least", self.at_least, "the held-out rows have thresholds; leave it out"
                )
            object.__setattr__(self, "at_least", 0.0)

    def settings(self) -> dict[str, Any]:
        """Return the selector's name and public settings in plain JSON types."""
        held = None if self.held_out is None else self.held_out.settings()
        return {"name": self.name, "at_least": self.at_least, "held_out": held}

    def _price(self, candidates: Candidates) -> Charges:
        """Charge each level its ε (or ρ), with the δ of all levels; a miss costs the last."""
        levels = path_levels(candidates)
        guarantees = [level.guarantee for level in levels]
        pairs = [guarantee.as_approx() for guarantee in guarantees]
        if levels[0].law == "gaussian" and pairs[0] is not None:
            total = _total_delta([pair for pair in pairs if pair is not None])
            guarantees = [
                ApproxDP(pair.epsilon, total, pair.neighbours) for pair in pairs if pair is not None
            ]
        if self.held_out is not None:
            self.held_out.check(
                levels[0].guarantee, [float(guarantee.size) for guarantee in guarantees]
            )
        return Charges.from_list(guarantees, guarantees[-1])

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result for Laplace or Gaussian noise."""
        level = path_levels(candidates)[0]
        named = level.path.theorem(level.law)
        if self.held_out is None:
            return named
        return f"{named}; {self.held_out.theorem}"

    def _sent(self, candidates: Candidates) -> Sequence[Any]:
        """Return what counts the held-out rows of a large table."""
        return [] if self.held_out is None else [self.held_out.count]

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw the key of the path's noise."""
        return {"path": randomness.bytes(SEED_BYTES).hex(), "simulated": randomness.simulated}

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return one look per level, from coarse to fine."""
        levels = path_levels(candidates)
        walk = levels[0].path.walk(levels, bytes.fromhex(draws["path"]), draws["simulated"])
        return [Run(index, _Look(walk, index, self.held_out)) for index in range(len(levels))]

    def _rule(self, candidates: Candidates) -> ReleaseRule:
        """Release the first level that passes, or the last one, which is paid, as missed."""
        if self.at_least is None:
            raise InvalidInput("at_least", None, "give the number that a score must reach")
        return ReleaseRule.FIRST_PASS_OR_LAST

    def _refuses_score(self, candidates: Candidates) -> str | None:
        """Refuse a score with held-out rows: the proof compares the noisy count itself."""
        return (
            None
            if self.held_out is None
            else "with held_out the noisy count is compared with its threshold; leave it out"
        )


def _total_delta(pairs: Sequence[ApproxDP]) -> float:
    """Return the δ of a search that may stop at any level: at most the sum of theirs."""
    # Two valid bounds: the sum of all δ_i, and what a stopping rule can gain (stopped_delta).
    added = round_up(sum((Fraction(pair.delta) for pair in pairs), Fraction(0)))
    mus = tuple(gaussian_mu(pair.epsilon, pair.delta) for pair in pairs)
    return min(added, stopped_delta(tuple(pair.epsilon for pair in pairs), mus))


class _Walk:
    """The looks at one path. The noise of look j comes from the key and j alone.

    Threads take turns. Levels must be asked in ascending order to be cheap; an earlier one starts
    anew.
    """

    def __init__(self, levels: Sequence[PathLevel], seed: bytes, simulated: bool) -> None:
        self._levels, self._key = levels, RunKey(seed, simulated)
        self._path, self._law = _statistic_path(levels), levels[0].law
        self._deviations = path_deviations(levels) if self._law == "gaussian" else []
        self._turn = threading.Lock()
        self._data: Any = None
        self._values: Floats | None = None
        self._restart()

    def _restart(self) -> None:
        """Go back to the state before the first look."""
        self._reached, self._precision, self._weighted = -1, 0.0, np.zeros(0)
        self._noise: Integers | None = None

    def __reduce__(self) -> tuple[type[_Walk], tuple[Sequence[PathLevel], bytes, bool]]:
        """Send nothing that was computed from data, and no noise, to a worker."""
        return _Walk, (self._levels, self._key.key, self._key.simulated)

    def output(self, index: int, data: Any) -> Any:
        """Return the output of a level."""
        with self._turn:
            if self._values is None or self._data is not data:
                self._restart()
                self._data, self._values = data, self._path.values(data)
            if index < self._reached:
                self._restart()
            look = self._gaussian if self._law == "gaussian" else self._laplace
            noisy, scale = look(index, self._values)
        return self._path.finish(noisy, scale)

    def _gaussian(self, index: int, values: Floats) -> tuple[Floats, float]:
        if self._reached < 0:
            self._weighted = np.zeros(len(values))
        for look in range(self._reached + 1, index + 1):
            deviation = self._deviations[look]
            noisy = add_gaussian(values, lattice_for(deviation), self._key.source(look))
            self._weighted = self._weighted + noisy / deviation**2
            self._precision += 1 / deviation**2
        self._reached = index
        return self._weighted / self._precision, 1 / math.sqrt(self._precision)

    def _laplace(self, index: int, values: Floats) -> tuple[Floats, float]:
        step, scales = laplace_lattice(self._levels)
        if self._noise is None:
            self._noise = laplace_paths(scales, self._path.dimension, self._key.source(0))
        most = 2.0**51
        steps = np.rint(np.clip(np.nan_to_num(values / step), -most, most)).astype(np.int64)
        self._reached = index
        # Added as whole numbers: a float would round large noise before the sum is made.
        return (steps + self._noise[index]) * step, float(scales[index]) * step


@dataclass(frozen=True, repr=False)
class _Look:
    """One look: the output of a level and, with held-out rows, its noisy count. Secret: no repr."""

    walk: Walk
    index: int
    held_out: HeldOut | GaussianCounts | None

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        output = self.walk.output(self.index, data)
        if self.held_out is None:
            return output
        return self.held_out.look(self.index, output, data, randomness)


def _statistic_path(levels: Sequence[PathLevel]) -> NoisePath:
    """Return the path of levels of a statistic."""
    path = levels[0].path
    assert isinstance(path, NoisePath)
    return path


def path_deviations(levels: Sequence[PathLevel]) -> list[float]:
    """Return σ_j of each look, rounded up: (Δ/σ_j)² ≤ μ_j² − μ_{j−1}² holds exactly."""
    squares = [Fraction(0), *(level.square() for level in levels)]
    sensitivity = _statistic_path(levels).bound
    return [root_up(sensitivity**2 / (after - before)) for before, after in pairwise(squares)]


def laplace_lattice(levels: Sequence[PathLevel]) -> tuple[float, list[Fraction]]:
    """Return the step of the lattice, and the scale of each level in steps."""
    path = _statistic_path(levels)
    step = math.ldexp(1.0, math.frexp(float(path.bound / path.dimension))[1] - 1 - _LAPLACE_BITS)
    moved = path.bound / Fraction(step) + path.dimension
    return step, [moved / level.guarantee.size for level in levels]


def path_levels(candidates: Candidates) -> list[PathLevel]:
    """Return the candidates' mechanisms if they are the levels of one path, coarse to fine."""
    levels = [
        candidate.mechanism
        for candidate in candidates
        if isinstance(candidate.mechanism, PathLevel)
    ]
    if len(levels) < len(candidates) or any(level.path != levels[0].path for level in levels):
        raise InvalidCandidate(
            "mechanism", "other mechanisms", "give the levels of one NoisePath (NoisePath.levels)"
        )
    check_noise_levels(candidates)
    if levels[0].law == "gaussian":
        squares = [level.square() for level in levels]
        if any(a >= b for a, b in pairwise(squares)):
            raise InvalidCandidate("guarantee", "levels", "give levels that are farther apart")
    elif max(laplace_lattice(levels)[1]) > LARGEST_SCALE:
        raise InvalidCandidate(
            "guarantee",
            float(levels[0].guarantee.size),
            f"too small for Laplace noise in {_statistic_path(levels).dimension} dimensions; "
            "give larger levels, or a delta for Gaussian noise",
        )
    return levels


@dataclass(frozen=True)
class NoiseReduction(Selector):
    """Refine one noisy answer until its score reaches ``at_least``, and release that answer.

    The candidates are the same ``Query`` under ``DiscreteLaplace`` with increasing ε, or under
    ``DiscreteGaussian`` with increasing ρ.

    Parameters
    ----------
    at_least : float, optional
        The score that an answer must reach. Required by :meth:`select`; :meth:`refine` does not use
        it.

    Notes
    -----
    The noise of the levels is coupled (:mod:`expost.mechanisms`), so outcome i costs
    ε_i (or ρ_i), and "nothing" costs the last. The score receives an ``Estimate``, which carries
    its noise scale.

    It is assumed that the query's sensitivity (ℓ1 for Laplace, ℓ2 for Gaussian) is as stated.
    Tests: ``tests/theorems/test_pure.py``, ``tests/mechanisms/test_noise_paths.py``.
    """

    at_least: float | None = None
    name: ClassVar[str] = "noise-reduction"

    def __post_init__(self) -> None:
        check_goal(self.at_least)

    def refine(
        self,
        candidates: Candidates,
        data: Any,
        *,
        randomness: Randomness | None = None,
        simulation: bool = False,
    ) -> Iterator[Release]:
        """Yield the answers from coarse to fine, on demand.

        Stop when an answer is good enough, and pay for that one only.

        Parameters
        ----------
        candidates : sequence of Candidate
            The noise levels.
        data : object
            Passed to the query as is.
        randomness : Randomness, optional
            Source of the noise; by default the entropy of the operating system.
        simulation : bool
            True allows seeded randomness.

        Yields
        ------
        Release
            The answer of the next level, without a score, and its charge.
        """
        checked = self._check(candidates)
        charges = self._price(checked)
        source = require_protection(randomness, simulation=simulation)
        for run in self._runs(checked, charges, self._draw(checked, source)):
            value = settle_failure(call_or_failure(run.call, data, source), run.index, None)
            yield self._release(checked, charges, Outcome(run.index, value, None, None), source)

    def _price(self, candidates: Candidates) -> Charges:
        """Charge each level its own guarantee; "nothing" costs the last."""
        _levels(candidates)
        guarantees = [candidate.guarantee for candidate in candidates]
        return Charges.from_list(guarantees, guarantees[-1])

    def _theorem(self, candidates: Candidates) -> str:
        """Return the name of the result for Laplace or Gaussian noise."""
        if _levels(candidates)[0].law == "laplace":
            return (
                "Laplace noise reduction (Koufogiannis et al. 2016; Whitehouse et al. 2019), "
                "discrete form"
            )
        return "Brownian noise reduction (Whitehouse et al. 2022), discrete Gaussian increments"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw one coupled noise path per dimension of the query."""
        levels = _levels(candidates)
        path = laplace_path if levels[0].law == "laplace" else gaussian_path
        spreads = [level.spread for level in levels]
        paths = [path(spreads, randomness) for _ in range(levels[0].query.dimension)]
        return {
            "noise": [[z.as_integer_ratio() for z in level] for level in zip(*paths, strict=True)]
        }

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return one run per level, from coarse to fine."""
        return [
            Run(index, _Level(level, tuple(Fraction(*ratio) for ratio in noise)))
            for index, (level, noise) in enumerate(
                zip(_levels(candidates), draws["noise"], strict=True)
            )
        ]

    def _rule(self, candidates: Candidates) -> ReleaseRule:
        """Release the first level that passes, or nothing."""
        if self.at_least is None:
            raise InvalidInput(
                "at_least", None, "give the number that a score must reach, or use refine()"
            )
        return ReleaseRule.FIRST_PASS_OR_NOTHING


@dataclass(frozen=True, repr=False)
class _Level:
    """The answer of one level with its part of the noise path; secret, so it has no repr."""

    level: DiscreteNoise
    noise: tuple[Fraction, ...]

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        return self.level.answer(data, self.noise)


def _levels(candidates: Candidates) -> list[DiscreteNoise]:
    """Return the candidates' mechanisms if they are one query at increasing ε (or ρ)."""
    levels = [
        candidate.mechanism
        for candidate in candidates
        if isinstance(candidate.mechanism, (DiscreteLaplace, DiscreteGaussian))
    ]
    if len(levels) < len(candidates) or len({type(level) for level in levels}) > 1:
        raise InvalidCandidate(
            "mechanism", "other mechanisms", "give only DiscreteLaplace, or only DiscreteGaussian"
        )
    if any(level.query != levels[0].query for level in levels):
        raise InvalidCandidate("query", "several queries", "all levels must ask the same Query")
    check_noise_levels(candidates)
    return list(levels)
