"""Random Fourier features: cosines and sines of random directions from a public seed.

Tests: ``tests/features/test_fourier.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_256
from math import ceil, log2, pi, sqrt
from typing import ClassVar

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.features.feature_map import Cells, Features, is_real, number_block, whole_number

_INPUT_BITS = 24
_LEAST_BITS = 6
_MOST_ENTRIES = 10**8
_LARGEST_NORMAL = 6.0  # of a sum of twelve uniforms
# Coefficients of sin(2πu) = u·Σ c_k u^{2k}; the error is below 1e-9 for |u| ≤ 1/4.
_SINE = [2 * pi]
for _order in range(1, 8):
    _SINE.append(-_SINE[-1] * (2 * pi) * (2 * pi) / (2 * _order * (2 * _order + 1)))


@dataclass(eq=False)
class RandomFourier(Features):
    """Cosines and sines of x·w for random directions w: a linear model on them is a kernel model.

    The directions are normal with the given scale and come from a public seed; they are the same on
    every machine and in every version.

    Parameters
    ----------
    dimension : int
        Number of features, even: a cosine and a sine for each direction.
    scale : float
        Standard deviation of each entry of a direction. For rows of norm 1, from 1 to 3.
    seed : int, default=0
        Public seed.
    constant, norm
        As in :class:`Features`.

    Notes
    -----
    Values of a row are clipped to [−1, 1]: put features of another kind before
    (:class:`Chain`), or scale first. They are rounded to 24 bits, and the directions to as many
    bits as make all products and sums exact, so that a fast matrix product gives the same bits for
    every batch. Directions are sums of twelve uniform numbers.

    References
    ----------
    A. Rahimi and B. Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
    """

    kind: ClassVar[str] = "random_fourier"
    dimension: int = 1000
    scale: float = 1.5
    seed: int = 0

    def _check(self) -> None:
        if whole_number(self.dimension, "dimension", 2, 10**6) % 2:
            raise InvalidInput("dimension", self.dimension, "give an even number")
        whole_number(self.seed, "seed", 0, 2**63 - 1)
        if not (is_real(self.scale) and 1e-3 <= self.scale <= 1e3):
            raise InvalidInput("scale", self.scale, "give a number from 0.001 to 1000")

    def _width(self, columns: int) -> int:
        return self.dimension

    def _bound(self, columns: int) -> float:
        # cos² + sin² is 1 up to the error of the polynomials.
        return sqrt(self.dimension / 2) * (1 + 2.0**-20)

    def _values(self, cells: Cells) -> Floats:
        rows = np.clip(number_block(cells), -1.0, 1.0)
        unreadable = np.isnan(rows).any(axis=1)
        rows[unreadable] = 0.0
        rows = np.rint(rows * 2.0**_INPUT_BITS) * 2.0**-_INPUT_BITS
        directions = _directions(rows.shape[1], self.dimension // 2, float(self.scale), self.seed)
        turns = rows @ directions  # exact, by the choice of the bits
        turns -= np.rint(turns)
        waves = np.concatenate([_cosine(turns), _cosine(turns - 0.25)], axis=1)
        waves[unreadable] = np.nan
        return waves

    def _names(self, names: Sequence[str]) -> list[str]:
        half = range(self.dimension // 2)
        return [f"{name}{index}" for name in ("cos", "sin") for index in half]

    def _words(self) -> str:
        return (
            f"{self.dimension} random Fourier features (scale {self.scale:g}, public seed "
            f"{self.seed})"
        )


@lru_cache(maxsize=8)
def _directions(columns: int, count: int, scale: float, seed: int) -> Floats:
    """Return random directions in turns (divided by 2π), rounded to whole multiples of 2^{−b}.

    With |x_i| ≤ 1 in multiples of 2^{−24}, all products are multiples of 2^{−24−b}, and all sums
    are at most columns·6·scale/2π in absolute value. b is such that this is below 2^{53−24−b}.
    """
    largest = columns * _LARGEST_NORMAL * scale / (2 * pi)
    bits = 53 - _INPUT_BITS - 1 - ceil(log2(largest))
    if bits < _LEAST_BITS or columns * count > _MOST_ENTRIES:
        raise InvalidInput(
            "X",
            f"rows of {columns} values",
            "give fewer columns, a lower dimension or a lower scale",
        )
    source = shake_256(b"expost random Fourier features %d" % seed)
    words = np.frombuffer(source.digest(columns * count * 24), dtype="<u2")
    sums = words.reshape(12, columns, count).sum(axis=0, dtype=np.int64)
    normal = sums * 2.0**-16 - 6.0
    return np.asarray(np.rint(normal * (scale / (2 * pi) * 2.0**bits)) * 2.0**-bits)


def _cosine(turns: Floats) -> Floats:
    """Return cos(2πt), by a polynomial: library cosines may differ between batches."""
    offset = 0.25 - np.abs(turns - np.rint(turns))
    square = offset * offset
    sine = np.full_like(offset, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        sine *= square
        sine += coefficient
    return np.asarray(sine * offset)
