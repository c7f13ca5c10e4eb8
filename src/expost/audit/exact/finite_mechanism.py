"""Mechanisms small enough to be written down: two rows of probabilities, one for each of two neighbouring data sets.

A table states the mechanism's law on a pair of neighbours; its divergences are then finite sums. The same object is a mechanism that
can be run (data set 0 or 1), so a sampled audit can be held against the exact one. Probabilities are rationals (a float is the rational
it is), scaled to sum to 1 exactly; the floats that the exact laws use are within a rounding of them.
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, DiscreteNoise
from expost.privacy.guarantees import ADD_REMOVE, Guarantee, PureDP, RenyiDP
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, pad_up
from expost.selection.candidate import Candidate

DATA_SETS = (0, 1)
"""What a finite mechanism is run on: 0 draws from ``table``, 1 from ``neighbour``."""

_OFF_BY = Fraction(1, 10**12)
_MOST_OUTPUTS = 100_000
_REACH = 12  # standard deviations of a Gaussian that are summed; e^{−72} is left out


@dataclass(frozen=True)
class FiniteMechanism:
    """Probabilities of each output on a data set (``table``) and on its neighbour (``neighbour``).

    Output number j has the score ``scores[j]`` (default: j), and is released as that number. Scores differ within a mechanism: outputs
    of equal score could be told apart by who reads the release, but not by the selector.
    Refused unless both rows are non-negative, equally long, and sum to 1 within 1e-12.
    """

    table: Sequence[Number]
    neighbour: Sequence[Number]
    scores: Sequence[Number] | None = None
    _drawing: tuple[tuple[int, list[int]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = tuple(
            _probabilities(row, name)
            for name, row in (("table", self.table), ("neighbour", self.neighbour))
        )
        if len(rows[0]) != len(rows[1]):
            raise InvalidInput(
                "neighbour",
                f"{len(rows[1])} outputs",
                f"give {len(rows[0])}, as many as the table has",
            )
        scores = range(len(rows[0])) if self.scores is None else _listed(self.scores, "scores")
        numbers = tuple(float(exact(score, "scores")) for score in scores)
        if len(numbers) != len(rows[0]) or len(set(numbers)) != len(numbers):
            raise InvalidInput(
                "scores", self.scores, f"give {len(rows[0])} different numbers, one for each output"
            )
        for name, value in (
            ("table", _floats(rows[0])),
            ("neighbour", _floats(rows[1])),
            ("scores", numbers),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_drawing", tuple(_whole_parts(row) for row in rows))

    @classmethod
    def from_query(
        cls, mechanism: DiscreteNoise, data: Any, neighbour: Any, *, lowest: Number, highest: Number
    ) -> FiniteMechanism:
        """A query with discrete Laplace or Gaussian noise, its answer clamped to [``lowest``, ``highest``]: tails are lumped at the ends.

        Clamping is post-processing, so the mechanism's promise holds for the table. The data must be made up: the table, and any
        report on it, states the query's exact answer.
        """
        if (
            not isinstance(mechanism, (DiscreteLaplace, DiscreteGaussian))
            or mechanism.query.dimension != 1
        ):
            raise InvalidInput(
                "mechanism", type(mechanism).__name__, "give discrete noise on a query of one value"
            )
        unit = mechanism.query.unit
        first, last = (
            math.ceil(exact(lowest, "lowest") / unit),
            math.floor(exact(highest, "highest") / unit),
        )
        if not 0 < last - first < _MOST_OUTPUTS:
            raise InvalidInput(
                "highest", highest, f"give a range of 2 to {_MOST_OUTPUTS} steps of {float(unit):g}"
            )
        steps = np.arange(first, last + 1)
        rows = [
            _clamped_noise(mechanism, steps - mechanism.query.evaluate(each)[0])
            for each in (data, neighbour)
        ]
        return cls(rows[0].tolist(), rows[1].tolist(), [step * unit for step in steps.tolist()])

    def rows(self) -> Floats:
        """Both rows as an array: data set × output."""
        return np.array([self.table, self.neighbour])

    def __len__(self) -> int:
        return len(self.table)

    def __call__(self, data: Any, randomness: Randomness) -> float:
        """A draw of the row that ``data`` (0 or 1) names, by exact arithmetic on its probabilities."""
        if data not in DATA_SETS:
            raise InvalidInput(
                "data", type(data).__name__, "a table has two data sets: give 0 or 1"
            )
        unit, ends = self._drawing[int(data)]
        return float(self.scores[bisect_right(ends, randomness.below(unit))])  # type: ignore[index]

    def as_candidate(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        guarantee: Guarantee | None = None,
        repeats: int = 1,
        drop_rate: Number | None = None,
        priority: Number | None = None,
    ) -> Candidate:
        """A candidate that draws from the table; without a ``guarantee`` it promises its exact pure ε, rounded up."""
        promise = PureDP(self.pure_epsilon()) if guarantee is None else guarantee
        return Candidate(self, dict(params or {}), repeats, promise, drop_rate, priority)

    def pure_epsilon(self) -> float:
        """The smallest ε such that both rows are within e^ε of each other, padded up; ∞ if an output has chance 0 in one row only."""
        here, there = self.rows()
        if np.any((here > 0) != (there > 0)):
            return math.inf
        both = (here > 0) & (there > 0)
        return _padded(float(np.max(np.abs(np.log(here[both]) - np.log(there[both])))))

    def renyi(self, order: float) -> float:
        """The Rényi divergence at an order > 1, the larger of both directions, padded up."""
        if not order > 1 or math.isinf(order):
            raise InvalidInput("order", order, "give a finite number > 1")
        here, there = self.rows()
        largest = max(float(log_moment(a, b, order)) for a, b in ((here, there), (there, here)))
        return _padded(max(0.0, largest) / (order - 1))

    def curve(self, orders: Iterable[float], neighbours: str = ADD_REMOVE) -> RenyiDP:
        """The promise that the table keeps at these orders."""
        listed = tuple(orders)
        return RenyiDP(listed, tuple(self.renyi(order) for order in listed), neighbours)

    def hockey_stick(self, epsilon: float) -> float:
        """The smallest δ such that the table is (ε, δ)-DP, the larger of both directions."""
        here, there = self.rows()
        factor = math.exp(min(float(exact(epsilon, "epsilon")), 709.0))
        return max(
            float(np.maximum(a - factor * b, 0.0).sum()) for a, b in ((here, there), (there, here))
        )


def log_moment(here: Floats, there: Floats, order: float) -> Floats:
    """ln Σ P^α·Q^{1−α} along the last axis; outputs that P never has count nothing, ∞ where only P has one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(here > 0, order * np.log(here) + (1 - order) * np.log(there), -np.inf)
    return np.asarray(np.logaddexp.reduce(terms, axis=-1))


def _padded(value: float) -> float:
    return pad_up(value, value + 1.0) if math.isfinite(value) else math.inf


def _clamped_noise(
    mechanism: DiscreteLaplace | DiscreteGaussian, offsets: npt.NDArray[np.int64]
) -> Floats:
    """Chances that the noise is at each offset; the first and the last stand for everything beyond them."""
    spread = float(mechanism.spread)
    if isinstance(mechanism, DiscreteLaplace):
        ratio = math.exp(-1 / spread)
        chances = (1 - ratio) / (1 + ratio) * ratio ** np.abs(offsets)
        ends = [_laplace_above(ratio, -int(offsets[0])), _laplace_above(ratio, int(offsets[-1]))]
    else:
        reach = math.ceil(_REACH * math.sqrt(spread)) + int(np.abs(offsets).max())
        grid = np.arange(-reach, reach + 1)
        weights = np.exp(-(grid.astype(float) ** 2) / (2 * spread))
        weights /= weights.sum()
        chances = weights[offsets + reach]
        ends = [
            float(weights[: offsets[0] + reach + 1].sum()),
            float(weights[offsets[-1] + reach :].sum()),
        ]
    chances[0], chances[-1] = ends
    return np.asarray(chances / chances.sum())


def _laplace_above(ratio: float, value: int) -> float:
    """P(noise ≥ value) of the discrete Laplace law with parameter e^{−1/scale} = ``ratio``."""
    return ratio**value / (1 + ratio) if value > 0 else 1 - ratio ** (1 - value) / (1 + ratio)


def _probabilities(row: Any, name: str) -> tuple[Fraction, ...]:
    chances = [exact(chance, name) for chance in _listed(row, name)]
    if len(chances) > _MOST_OUTPUTS:
        raise InvalidInput(name, f"{len(chances)} outputs", f"give at most {_MOST_OUTPUTS}")
    total = sum(chances, Fraction(0))
    if min(chances) < 0 or abs(total - 1) > _OFF_BY:
        raise InvalidInput(name, row, "give non-negative numbers that sum to 1 (within 1e-12)")
    return tuple(chance / total for chance in chances)


def _listed(values: Any, name: str) -> list[Any]:
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, (list, tuple, range)) or not listed:
        raise InvalidInput(name, values, "give a list of numbers")
    return list(listed)


def _whole_parts(chances: Sequence[Fraction]) -> tuple[int, list[int]]:
    """A whole number, and where among its parts each output ends: a uniform number below it is an exact draw."""
    unit = math.lcm(*(chance.denominator for chance in chances))
    return unit, list(accumulate(int(chance * unit) for chance in chances))


def _floats(chances: Sequence[Fraction]) -> tuple[float, ...]:
    return tuple(float(chance) for chance in chances)
