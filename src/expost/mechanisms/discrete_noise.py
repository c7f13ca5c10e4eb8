"""Discrete Laplace and Gaussian noise on integers and on rational grids.

The samplers are exact, and no floating-point number enters the noise. A query with real values is
first rounded to a multiple of ``grid``. The rounding ⌊v/grid + ½⌋ is monotone and commutes with
whole steps, so two scalars at distance at most Δ differ by at most ⌈Δ/grid⌉ steps. In d dimensions
rounding adds at most one step per coordinate, hence Δ/grid + d in ℓ1 and Δ/grid + √d in ℓ2. The
noise is scaled to this sensitivity.

Assumption about the caller: ``sensitivity`` bounds what one person can change in the *computed*
values of the query.

Tests: ``tests/mechanisms/test_discrete_noise.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil, isqrt
from typing import Any, ClassVar

import numpy as np

from expost.errors import InvalidInput
from expost.mechanisms.protocol import Estimate
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, Guarantee, PureDP
from expost.randomness import coins, samplers
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact_positive, round_up


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
        """Return the sensitivity in steps of the grid, rounding included.

        Parameters
        ----------
        squared : bool, default False
            Measure in ℓ2 instead of ℓ1.

        Returns
        -------
        Fraction
            The sensitivity.
        """
        if self._grid is None:
            return self._sensitivity
        plain = self._sensitivity / self._grid
        if self.dimension == 1:
            return Fraction(ceil(plain))
        root = isqrt(self.dimension)
        return plain + (self.dimension if not squared else root + (root * root < self.dimension))

    def evaluate(self, data: Any) -> list[int]:
        """Return the values of the query in steps of the grid.

        Parameters
        ----------
        data : object
            The data set.

        Returns
        -------
        list of int
            The rounded values.

        Raises
        ------
        InvalidInput
            If the function returns another number of values than ``dimension``, or values that are
            not whole numbers although there is no grid.
        """
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

    @abstractmethod
    def noise(self, count: int, randomness: Randomness) -> list[int]:
        """Return independent noise for ``count`` values.

        Parameters
        ----------
        count : int
            How many values.
        randomness : Randomness
            The source of random bits.

        Returns
        -------
        list of int
            The noise in steps of the grid.
        """

    def __call__(self, data: Any, randomness: Randomness) -> Estimate | list[Estimate]:
        """Return the query on ``data`` with fresh noise; see :meth:`answer`."""
        return self.answer(data, self.noise(self.query.dimension, randomness))

    def answer(self, data: Any, noise: Sequence[int | Fraction]) -> Estimate | list[Estimate]:
        """Return the query on ``data`` with given noise, in the unit of the query.

        Parameters
        ----------
        data : object
            The data set.
        noise : sequence of int or Fraction
            The noise in steps of the grid, one number per value.

        Returns
        -------
        Estimate or list of Estimate
            One estimate if the dimension is 1, else a list.
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
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.
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

    def noise(self, count: int, randomness: Randomness) -> list[int]:
        if count == 1:
            return [coins.discrete_laplace(self.spread, randomness)]
        return [int(z) for z in samplers.discrete_laplace(self.spread, count, randomness)]


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
        The neighbouring relation, ``"add-remove"`` or ``"replace"``.

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

    def noise(self, count: int, randomness: Randomness) -> list[int]:
        if count == 1:
            return [coins.discrete_gaussian(self.spread, randomness)]
        return [int(z) for z in samplers.discrete_gaussian(self.spread, count, randomness)]


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
