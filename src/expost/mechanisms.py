"""What a mechanism is; discrete Laplace and Gaussian noise, alone and in noise paths.

``FAILED`` and ``NOTHING`` stand for an outcome without an output. Both are false in a Boolean
context, and unpickling gives back the same object.

**Noise** is on integers and on rational grids. The samplers are exact, and no floating-point number
enters the noise. A query with real values is first rounded to a multiple of ``grid``. The rounding
⌊v/grid + ½⌋ is monotone and commutes with whole steps, so two scalars at distance at most Δ differ
by at most ⌈Δ/grid⌉ steps. In d dimensions rounding adds at most one step per coordinate, hence
Δ/grid + d in ℓ1 and Δ/grid + √d in ℓ2. The noise is scaled to this sensitivity. Assumption about
the caller: ``sensitivity`` bounds what one person can change in the *computed* values of the query.

**Noise paths**: noise for one query at several levels, so coupled that seeing all levels up to n
costs as much as level n alone (docs/theory.md, "Noise reduction"). Laplace (Koufogiannis, Han and
Pappas 2016; Whitehouse et al. 2019): the finest noise is drawn first; coarser levels are functions
of it and of coins that do not depend on the data. Gaussian (Whitehouse et al. 2022): the estimate
at variance T_n averages independent releases of precision 1/T_n − 1/T_{n−1}, at ρ = Δ²/(2T_n). The
caller passes strictly decreasing scales or variances; they are not checked here.

Tests: ``tests/mechanisms/test_discrete_noise.py``, ``tests/mechanisms/test_noise_paths.py``
(marginal and joint distributions by enumeration).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil, isqrt
from statistics import NormalDist
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, Guarantee, PureDP
from expost.randomness import coins, samplers
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact_positive, round_up


class _Sentinel:
    """A value that stands for an outcome and holds no data."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return self._name


NOTHING: Final = _Sentinel("NOTHING")
"""The outcome ⊥: no candidate was kept, or no candidate passed."""

FAILED: Final = _Sentinel("FAILED")
"""The output of a candidate that raised an exception; it ranks below every score."""


Call = Callable[[Any, Randomness], Any]
"""A mechanism without its guarantee: ``(data, randomness) -> output``."""


@runtime_checkable
class Mechanism(Protocol):
    """A privacy guarantee and a call ``(data, randomness) -> output``.

    Data and randomness are arguments, never fields. The implementer ensures three things. The
    distributions of the output on neighbouring data satisfy ``guarantee``. Noise comes from
    ``randomness``, or from the mechanism's own source if that is at least as good. Every call is
    independent of the others.
    """

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that one call satisfies."""
        ...

    def __call__(self, data: Any, randomness: Randomness) -> Any:
        """Return the output of one independent run."""
        ...


@dataclass(frozen=True)
class Estimate:
    """A noisy number and the distribution of its noise.

    Parameters
    ----------
    value : int or Fraction
        The noisy number.
    scale : float
        The scale b of Laplace noise, or the standard deviation σ of Gaussian noise.
    law : str
        ``"laplace"`` or ``"gaussian"``.
    """

    value: int | Fraction
    scale: float
    law: str

    def __float__(self) -> float:
        return float(self.value)

    def half_width(self, confidence: float = 0.95) -> float:
        """Return half the width of a central interval of the noise, in its continuous limit.

        Parameters
        ----------
        confidence : float, default 0.95
            The probability of the interval, strictly between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")
        if self.law == "laplace":
            return -self.scale * math.log1p(-confidence)
        return self.scale * NormalDist().inv_cdf((1 + confidence) / 2)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold."""
        value = int(self.value) if self.value == int(self.value) else float(self.value)
        return {"value": value, "scale": self.scale, "law": self.law}


@dataclass(frozen=True)
class Query:
    """A function of the data whose values are one or more numbers.

    Parameters
    ----------
    function : callable
        Takes the data and returns one number, or ``dimension`` numbers.
    sensitivity : number, default 1
        The most that one person can change in the computed values: in ℓ1 for Laplace noise, in ℓ2
        for Gaussian noise.
    grid : number, optional
        Real values are rounded to multiples of it. Without a grid the values must be integers.
    dimension : int, default 1
        How many numbers the function returns.

    Raises
    ------
    InvalidInput
        If an argument is not valid.
    """

    function: Callable[[Any], Any]
    sensitivity: Number = 1
    grid: Number | None = None
    dimension: int = 1
    _grid: Fraction | None = field(init=False, repr=False)
    _sensitivity: Fraction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidInput(
                "function", type(self.function).__name__, "give a function that takes the data"
            )
        count_of(self.dimension, "dimension", at_least=1)
        object.__setattr__(self, "_sensitivity", exact_positive(self.sensitivity, "sensitivity"))
        object.__setattr__(
            self, "_grid", None if self.grid is None else exact_positive(self.grid, "grid")
        )

    def steps(self, *, squared: bool = False) -> Fraction:
        """Return the sensitivity in steps of the grid, rounding included; ``squared``: in ℓ2."""
        if self._grid is None:
            return self._sensitivity
        plain = self._sensitivity / self._grid
        if self.dimension == 1:
            return Fraction(ceil(plain))
        root = isqrt(self.dimension)
        return plain + (self.dimension if not squared else root + (root * root < self.dimension))

    def evaluate(self, data: Any) -> list[int]:
        """Return the values of the query, rounded to whole steps of the grid."""
        answer = self.function(data)
        values = (
            [answer]
            if self.dimension == 1 and np.ndim(answer) == 0
            else list(np.asarray(answer, dtype=object).ravel())
        )
        if len(values) != self.dimension:
            raise InvalidInput(
                "query",
                f"{len(values)} values",
                f"return {self.dimension} as stated by `dimension`",
            )
        return [self._step(value) for value in values]

    def _step(self, value: Any) -> int:
        """One value in steps of the grid."""
        if self._grid is None:
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise InvalidInput(
                    "query",
                    type(value).__name__,
                    "return whole numbers, or give the query a `grid`",
                )
            return int(value)
        return int((_rational(value) / self._grid + Fraction(1, 2)).__floor__())

    @property
    def unit(self) -> Fraction:
        """The size of one step in the unit of the query."""
        return self._grid if self._grid is not None else Fraction(1)


class DiscreteNoise(ABC):
    """Base class of mechanisms that add integer noise to a query, in steps of its grid."""

    query: Query
    law: ClassVar[str]

    @property
    @abstractmethod
    def spread(self) -> Fraction:
        """The scale (Laplace) or variance (Gaussian) of the noise in steps of the grid."""

    @property
    @abstractmethod
    def output_scale(self) -> float:
        """The scale or standard deviation of the noise in the unit of the query."""

    def noise(self, count: int, randomness: Randomness) -> list[int]:
        """Return independent noise for ``count`` values, in steps of the grid."""
        laplace = self.law == "laplace"
        if count == 1:  # without a table
            draw = coins.discrete_laplace if laplace else coins.discrete_gaussian
            return [draw(self.spread, randomness)]
        draws = samplers.discrete_laplaces if laplace else samplers.discrete_gaussians
        return [int(z) for z in draws(self.spread, count, randomness)]

    def __call__(self, data: Any, randomness: Randomness) -> Estimate | list[Estimate]:
        """Return the query on ``data`` with fresh noise; see :meth:`answer`."""
        return self.answer(data, self.noise(self.query.dimension, randomness))

    def answer(self, data: Any, noise: Sequence[int | Fraction]) -> Estimate | list[Estimate]:
        """Return the query on ``data`` with given noise in steps, one number per value.

        It is one estimate if the dimension is 1, else a list.
        """
        steps, unit = self.query.evaluate(data), self.query.unit
        noisy = [
            Estimate(_whole((step + shift) * unit), self.output_scale, self.law)
            for step, shift in zip(steps, noise, strict=True)
        ]
        return noisy[0] if self.query.dimension == 1 else noisy


@dataclass(frozen=True)
class DiscreteLaplace(DiscreteNoise):
    """ε-DP: a query plus discrete Laplace noise of scale sensitivity/ε (in steps of the grid).

    Parameters
    ----------
    query : Query
        The query; its sensitivity is in ℓ1.
    epsilon : number
        ε > 0.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    """

    query: Query
    epsilon: Number
    neighbours: str = ADD_REMOVE
    law: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _require_query(self.query)
        exact_positive(self.epsilon, "epsilon")

    @property
    def guarantee(self) -> Guarantee:
        """ε-differential privacy."""
        return PureDP(self.epsilon, self.neighbours)  # type: ignore[arg-type]

    @property
    def spread(self) -> Fraction:
        return self.query.steps() / exact_positive(self.epsilon, "epsilon")

    @property
    def output_scale(self) -> float:
        return round_up(self.spread * self.query.unit)


@dataclass(frozen=True)
class DiscreteGaussian(DiscreteNoise):
    """ρ-zCDP: a query plus discrete Gaussian noise of variance sensitivity²/(2ρ).

    Parameters
    ----------
    query : Query
        The query; its sensitivity is in ℓ2.
    rho : number
        ρ > 0.
    neighbours : str, default "add-remove"
        The neighbouring relation: ``"add-remove"``, ``"replace"`` or ``"zero-out"``.

    References
    ----------
    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Theorem 4.
    """

    query: Query
    rho: Number
    neighbours: str = ADD_REMOVE
    law: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        _require_query(self.query)
        exact_positive(self.rho, "rho")

    @property
    def guarantee(self) -> Guarantee:
        """ρ-zero-concentrated differential privacy."""
        return ZCDP(self.rho, self.neighbours)  # type: ignore[arg-type]

    @property
    def spread(self) -> Fraction:
        return self.query.steps(squared=True) ** 2 / (2 * exact_positive(self.rho, "rho"))

    @property
    def output_scale(self) -> float:
        return math.sqrt(self.spread * self.query.unit**2)


def _rational(value: Any) -> Fraction:
    """A value as an exact rational.

    A nearby float could differ from the value on neighbouring data by more than the sensitivity.
    """
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, np.integer):
        return Fraction(int(value))
    if isinstance(value, (int, float, Fraction, Decimal, np.floating)):
        return Fraction(*value.as_integer_ratio())
    return Fraction(float(value))


def _whole(value: Fraction) -> int | Fraction:
    """A rational as an int if it is a whole number."""
    return int(value) if value.denominator == 1 else value


def _require_query(query: object) -> None:
    """Refuse everything but a Query."""
    if not isinstance(query, Query):
        raise InvalidInput(
            "query", type(query).__name__, "wrap the function: Query(function, sensitivity=…)"
        )


def laplace_path(scales: Sequence[Fraction], randomness: Randomness) -> list[int]:
    """Return discrete Laplace noise at decreasing scales; all levels cost as much as the last."""
    noise = coins.discrete_laplace(scales[-1], randomness)
    path = [noise]
    for finer, coarser in zip(reversed(scales[1:]), reversed(scales[:-1]), strict=True):
        if not keep_coin(1 / coarser, 1 / finer, randomness):
            noise += coins.discrete_laplace(coarser, randomness)
        path.append(noise)
    return path[::-1]


def keep_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """Return True with probability (p_b/p_a)·((1−p_a)/(1−p_b))².

    Here p_a = e^{−coarse_rate} > p_b = e^{−fine_rate}.
    """
    if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
        return False
    return all(_ratio_coin(coarse_rate, fine_rate, randomness) for _ in range(2))


def _ratio_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """True with probability (1−p_a)/(1−p_b), by repeated turns.

    One turn gives True with probability 1−p_a and False with probability p_a·(1−p_b/p_a) = p_a−p_b.
    With probability p_b another turn follows.
    """
    while True:
        if not coins.bernoulli_exp(coarse_rate, randomness):
            return True
        if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
            return False


def gaussian_path(variances: Sequence[Fraction], randomness: Randomness) -> list[Fraction]:
    """Return weighted averages of independent discrete Gaussians, at decreasing variances."""
    path: list[Fraction] = []
    precision = weighted = Fraction(0)
    for variance in variances:
        increment = 1 / variance - precision
        weighted += increment * coins.discrete_gaussian(1 / increment, randomness)
        precision = 1 / variance
        path.append(weighted / precision)
    return path
