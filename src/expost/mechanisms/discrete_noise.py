"""Discrete Laplace and Gaussian noise: integers and rational grids, exact samplers, no float in the noise.

A query with real values is rounded to a multiple of ``grid`` first. With ⌊v/grid + ½⌋ the rounding is monotone and moves
with its argument, so two scalars within Δ differ by at most ⌈Δ/grid⌉ steps; in d dimensions it adds at most one step a
coordinate, hence Δ/grid + d in ℓ1 and Δ/grid + √d in ℓ2. That is the sensitivity the noise is scaled to.

What the caller must promise: ``sensitivity`` bounds what one person can change in the query's *computed* values.
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
    """A function of the data with integer values, or real ones rounded to ``grid``; one number, or ``dimension`` of them.

    ``sensitivity`` is what one person can change: ℓ1 for Laplace noise, ℓ2 for Gaussian noise.
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
                "function", type(self.function).__name__, "give a function of the data"
            )
        count_of(self.dimension, "dimension", at_least=1)
        object.__setattr__(self, "_sensitivity", exact_positive(self.sensitivity, "sensitivity"))
        object.__setattr__(
            self, "_grid", None if self.grid is None else exact_positive(self.grid, "grid")
        )

    def steps(self, *, squared: bool = False) -> Fraction:
        """Sensitivity in steps of the grid, rounding included: in ℓ1, or in ℓ2 (``squared``)."""
        if self._grid is None:
            return self._sensitivity
        plain = self._sensitivity / self._grid
        if self.dimension == 1:
            return Fraction(ceil(plain))
        root = isqrt(self.dimension)
        return plain + (self.dimension if not squared else root + (root * root < self.dimension))

    def evaluate(self, data: Any) -> list[int]:
        """The values in steps of the grid."""
        answer = self.function(data)
        values = (
            [answer]
            if self.dimension == 1 and np.ndim(answer) == 0
            else list(np.asarray(answer, dtype=object).ravel())
        )
        if len(values) != self.dimension:
            raise InvalidInput(
                "query", f"{len(values)} values", f"the query promised {self.dimension}"
            )
        return [self._step(value) for value in values]

    def _step(self, value: Any) -> int:
        if self._grid is None:
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise InvalidInput(
                    "query", type(value).__name__, "return whole numbers, or give the query a grid"
                )
            return int(value)
        return int((_rational(value) / self._grid + Fraction(1, 2)).__floor__())

    @property
    def unit(self) -> Fraction:
        """What one step is worth."""
        return self._grid if self._grid is not None else Fraction(1)


class DiscreteNoise(ABC):
    """A query plus integer noise (in steps of its grid)."""

    query: Query
    law: ClassVar[str]

    @property
    @abstractmethod
    def spread(self) -> Fraction:
        """The parameter of the noise in steps of the grid: scale for Laplace, variance for Gaussian."""

    @property
    @abstractmethod
    def output_scale(self) -> float:
        """Scale or standard deviation of the noise in the query's own unit."""

    @abstractmethod
    def noise(self, count: int, randomness: Randomness) -> list[int]:
        """Independent noise for ``count`` values."""

    def __call__(self, data: Any, randomness: Randomness) -> Estimate | list[Estimate]:
        return self.answer(data, self.noise(self.query.dimension, randomness))

    def answer(self, data: Any, noise: Sequence[int | Fraction]) -> Estimate | list[Estimate]:
        """The query with this noise, in the query's own unit; a single value comes bare."""
        steps, unit = self.query.evaluate(data), self.query.unit
        noisy = [
            Estimate(_whole((step + shift) * unit), self.output_scale, self.law)
            for step, shift in zip(steps, noise, strict=True)
        ]
        return noisy[0] if self.query.dimension == 1 else noisy


@dataclass(frozen=True)
class DiscreteLaplace(DiscreteNoise):
    """ε-DP: the query plus discrete Laplace noise of scale sensitivity/ε (in steps of the grid)."""

    query: Query
    epsilon: Number
    neighbours: str = ADD_REMOVE
    law: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _require_query(self.query)
        exact_positive(self.epsilon, "epsilon")

    @property
    def guarantee(self) -> Guarantee:
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
    """ρ-zCDP: the query plus discrete Gaussian noise of variance sensitivity²/(2ρ) (Canonne et al. 2020, Theorem 4)."""

    query: Query
    rho: Number
    neighbours: str = ADD_REMOVE
    law: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        _require_query(self.query)
        exact_positive(self.rho, "rho")

    @property
    def guarantee(self) -> Guarantee:
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
    """The rational that a value is: a float near it could lie further from a neighbour's than the sensitivity allows."""
    if isinstance(value, np.ndarray):
        value = value[()]
    if isinstance(value, np.integer):
        return Fraction(int(value))
    if isinstance(value, (int, float, Fraction, Decimal, np.floating)):
        return Fraction(*value.as_integer_ratio())
    return Fraction(float(value))


def _whole(value: Fraction) -> int | Fraction:
    return int(value) if value.denominator == 1 else value


def _require_query(query: object) -> None:
    if not isinstance(query, Query):
        raise InvalidInput(
            "query", type(query).__name__, "wrap the function: Query(function, sensitivity=…)"
        )
