"""Finite mechanisms: two rows of probabilities, one per neighbouring data set.

A table states the output distribution of a mechanism on two neighbouring data sets, so divergences
are finite sums. The same object can be run as a mechanism (on data set 0 or 1), so an empirical
audit can be compared with the exact one. The probabilities are rational numbers (a float is taken
at its exact value), scaled to sum to exactly 1; the floats used by the exact laws are within one
rounding of them. Tests: ``tests/audit/test_exact.py``.
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
from expost.mechanisms import DiscreteGaussian, DiscreteLaplace, DiscreteNoise
from expost.privacy.guarantees import ADD_REMOVE, Guarantee, PureDP, RenyiDP
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, pad_up
from expost.selection.candidate import Candidate

DATA_SETS = (0, 1)
"""The data sets of a finite mechanism: 0 draws from ``table``, 1 from ``neighbour``."""

_OFF_BY = Fraction(1, 10**12)
_MOST_OUTPUTS = 100_000
_REACH = 12  # standard deviations of a Gaussian that are summed; about e^{−72} is left out


@dataclass(frozen=True)
class FiniteMechanism:
    """A mechanism given by the probabilities of its outputs on two neighbouring data sets.

    Parameters
    ----------
    table : sequence of number
        Probability of each output on the first data set.
    neighbour : sequence of number
        Probability of each output on the neighbouring data set.
    scores : sequence of number, optional
        Score of each output; the output is released as this number. Default: 0, 1, 2, …. The
        scores must differ: a reader of the release could tell outputs of equal score apart, but
        the selector could not.

    Raises
    ------
    InvalidInput
        Unless both rows are non-negative, have the same length, and sum to 1 within 1e-12.

    Examples
    --------
    >>> coin = FiniteMechanism([0.75, 0.25], [0.25, 0.75])
    >>> round(coin.pure_epsilon(), 6)
    1.098612
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
                f"pass {len(rows[0])} probabilities, as many as the table has",
            )
        scores = range(len(rows[0])) if self.scores is None else _listed(self.scores, "scores")
        numbers = tuple(float(exact(score, "scores")) for score in scores)
        if len(numbers) != len(rows[0]) or len(set(numbers)) != len(numbers):
            raise InvalidInput(
                "scores", self.scores, f"pass {len(rows[0])} different numbers, one per output"
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
        """Make the table of a query with discrete Laplace or Gaussian noise.

        Parameters
        ----------
        mechanism : DiscreteLaplace or DiscreteGaussian
            Noise on a query of one value.
        data, neighbour : object
            Two neighbouring data sets. Use made-up data: the table, and any report on it, states
            the exact answer of the query.
        lowest, highest : number
            The answer is clamped to [``lowest``, ``highest``]; the tails are added to the ends.

        Returns
        -------
        FiniteMechanism
            The guarantee of the mechanism holds for the table, because clamping is post-processing.
        """
        if (
            not isinstance(mechanism, (DiscreteLaplace, DiscreteGaussian))
            or mechanism.query.dimension != 1
        ):
            raise InvalidInput(
                "mechanism", type(mechanism).__name__, "pass discrete noise on a query of one value"
            )
        unit = mechanism.query.unit
        first, last = (
            math.ceil(exact(lowest, "lowest") / unit),
            math.floor(exact(highest, "highest") / unit),
        )
        if not 0 < last - first < _MOST_OUTPUTS:
            raise InvalidInput(
                "highest", highest, f"pass a range of 2 to {_MOST_OUTPUTS} steps of {float(unit):g}"
            )
        steps = np.arange(first, last + 1)
        rows = [
            _clamped_noise(mechanism, steps - mechanism.query.evaluate(each)[0])
            for each in (data, neighbour)
        ]
        return cls(rows[0].tolist(), rows[1].tolist(), [step * unit for step in steps.tolist()])

    def rows(self) -> Floats:
        """Return both rows as an array of shape (2, outputs)."""
        return np.array([self.table, self.neighbour])

    def __len__(self) -> int:
        return len(self.table)

    def __call__(self, data: Any, randomness: Randomness) -> float:
        """Draw an output of data set ``data`` (0 or 1), by exact arithmetic."""
        if data not in DATA_SETS:
            raise InvalidInput(
                "data", type(data).__name__, "a table has two data sets: pass 0 or 1"
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
        """Make a candidate that draws from the table.

        Parameters
        ----------
        params : mapping, optional
            Public settings of the candidate.
        guarantee : Guarantee, optional
            The guarantee. Default: the exact pure ε of the table, rounded up.
        repeats, drop_rate, priority
            As for :class:`~expost.selection.candidate.Candidate`.

        Returns
        -------
        Candidate
        """
        promise = PureDP(self.pure_epsilon()) if guarantee is None else guarantee
        return Candidate(self, dict(params or {}), repeats, promise, drop_rate, priority)

    def pure_epsilon(self) -> float:
        """Return the smallest ε for which the table is ε-DP, rounded up.

        It is ∞ if an output has probability 0 in one row only.
        """
        here, there = self.rows()
        if np.any((here > 0) != (there > 0)):
            return math.inf
        both = (here > 0) & (there > 0)
        return _padded(float(np.max(np.abs(np.log(here[both]) - np.log(there[both])))))

    def renyi(self, order: float) -> float:
        """Return the Rényi divergence at an order > 1: the larger direction, rounded up."""
        if not order > 1 or math.isinf(order):
            raise InvalidInput("order", order, "pass a finite number > 1")
        here, there = self.rows()
        largest = max(float(log_moment(a, b, order)) for a, b in ((here, there), (there, here)))
        return _padded(max(0.0, largest) / (order - 1))

    def curve(self, orders: Iterable[float], neighbours: str = ADD_REMOVE) -> RenyiDP:
        """Return the Rényi guarantee that the table keeps at these orders."""
        listed = tuple(orders)
        return RenyiDP(listed, tuple(self.renyi(order) for order in listed), neighbours)

    def hockey_stick(self, epsilon: float) -> float:
        """Return the smallest δ for which the table is (ε, δ)-DP: the larger direction."""
        here, there = self.rows()
        factor = math.exp(min(float(exact(epsilon, "epsilon")), 709.0))
        return max(
            float(np.maximum(a - factor * b, 0.0).sum()) for a, b in ((here, there), (there, here))
        )


def log_moment(here: Floats, there: Floats, order: float) -> Floats:
    """Return ln Σ P^α·Q^{1−α} along the last axis.

    Outputs with P = 0 contribute nothing. The result is ∞ where P > 0 and Q = 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(here > 0, order * np.log(here) + (1 - order) * np.log(there), -np.inf)
    return np.asarray(np.logaddexp.reduce(terms, axis=-1))


def _padded(value: float) -> float:
    """Round a loss up by more than its rounding error."""
    return pad_up(value, value + 1.0) if math.isfinite(value) else math.inf


def _clamped_noise(
    mechanism: DiscreteLaplace | DiscreteGaussian, offsets: npt.NDArray[np.int64]
) -> Floats:
    """Return the probability of each offset; the first and the last include everything beyond."""
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
    """Return P(noise ≥ value) for discrete Laplace noise with e^{−1/scale} = ``ratio``."""
    return ratio**value / (1 + ratio) if value > 0 else 1 - ratio ** (1 - value) / (1 + ratio)


def _probabilities(row: Any, name: str) -> tuple[Fraction, ...]:
    """Return a row as rational numbers that sum to exactly 1."""
    chances = [exact(chance, name) for chance in _listed(row, name)]
    if len(chances) > _MOST_OUTPUTS:
        raise InvalidInput(name, f"{len(chances)} outputs", f"pass at most {_MOST_OUTPUTS}")
    total = sum(chances, Fraction(0))
    if min(chances) < 0 or abs(total - 1) > _OFF_BY:
        raise InvalidInput(name, row, "pass non-negative numbers that sum to 1 (within 1e-12)")
    return tuple(chance / total for chance in chances)


def _listed(values: Any, name: str) -> list[Any]:
    """Return a list, tuple, range or array as a list that is not empty."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, (list, tuple, range)) or not listed:
        raise InvalidInput(name, values, "pass a list of numbers")
    return list(listed)


def _whole_parts(chances: Sequence[Fraction]) -> tuple[int, list[int]]:
    """Return a common denominator, and the cumulative numerators of the outputs.

    A uniform integer below the denominator then gives an exact draw.
    """
    unit = math.lcm(*(chance.denominator for chance in chances))
    return unit, list(accumulate(int(chance * unit) for chance in chances))


def _floats(chances: Sequence[Fraction]) -> tuple[float, ...]:
    return tuple(float(chance) for chance in chances)
