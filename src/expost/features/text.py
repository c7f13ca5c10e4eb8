"""Text as counts of hashed word and character n-grams.

Tests: ``tests/features/test_text.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.features.feature_map import Cells, Features, column_list, unit, whole_number
from expost.tables.cells import label_text

_WORD = re.compile(r"\w+")
_BASE, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
Hashes = npt.NDArray[np.uint64]


@dataclass(eq=False)
class HashedText(Features):
    """Word and character n-grams of a text, hashed into a fixed number of features.

    There is no vocabulary, so nothing is learned from the texts.

    Parameters
    ----------
    dimension : int, default=1024
        Number of features of a text.
    words : pair (shortest, longest) or None, default=(1, 2)
        Lengths of the n-grams of words; None: none.
    characters : pair (shortest, longest) or None, default=(3, 5)
        Lengths of the n-grams of characters, which forgive spelling; None: none.
    limit : int, default=10_000
        Characters of a text that are read.
    signed : bool, default=True
        Whether half of the n-grams count negatively, so that collisions cancel on average. False:
        features are in [0, 1].
    constant, norm
        As in :class:`Features`.

    Notes
    -----
    Case is ignored. An n-gram adds 1, or −1 if ``signed``, by its hash, to one feature. The signed
    square root is taken, so that a word that is repeated counts less, and a text is scaled to norm
    1. A missing text is an empty one. Numbers are read as they are written.

    Examples
    --------
    >>> from expost.features import HashedText
    >>> HashedText(256).transform(["a short text", "another one", None]).shape
    (3, 257)
    """

    kind: ClassVar[str] = "hashed_text"
    dimension: int = 1024
    words: Any = (1, 2)
    characters: Any = (3, 5)
    limit: int = 10_000
    signed: bool = True

    def _check(self) -> None:
        whole_number(self.dimension, "dimension", 2, 2**24)
        whole_number(self.limit, "limit", 1, 2**24)
        if not isinstance(self.signed, bool):
            raise InvalidInput("signed", self.signed, "give true or false")
        for name in ("words", "characters"):
            pair = getattr(self, name)
            if pair is None:
                continue
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise InvalidInput(name, pair, "give the shortest and the longest length")
            whole_number(pair[1], name, whole_number(pair[0], name, 1, 32), 32)
        if self.words is None and self.characters is None:
            raise InvalidInput("words", None, "give words or characters")

    def _width(self, columns: int) -> int:
        return columns * self.dimension

    def _bound(self, columns: int) -> float:
        return sqrt(columns)

    def _names(self, names: Sequence[str]) -> list[str]:
        return [f"{name}_hash{index}" for name in names for index in range(self.dimension)]

    def _values(self, cells: Cells) -> Floats:
        blocks = []
        for column in column_list(cells):
            counts = np.zeros((self.dimension, len(column)))
            for index, cell in enumerate(column.tolist()):
                counts[:, index] = self._counts(_text(cell)[: self.limit].lower())
            blocks.append(unit(np.sign(counts) * np.sqrt(np.abs(counts))).T)
        return np.concatenate(blocks, axis=1)

    def _counts(self, text: str) -> Floats:
        """Return the signed counts of the n-grams of a text."""
        hashes = []
        if self.words is not None:
            tokens = np.array([_hash(word) for word in _WORD.findall(text)], dtype=np.uint64)
            hashes += [_grams(tokens, n) for n in range(self.words[0], self.words[1] + 1)]
        if self.characters is not None:
            padded = f" {' '.join(text.split())} " if text.strip() else ""
            points = np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype="<u4")
            low, high = self.characters
            hashes += [~_grams(points.astype(np.uint64), n) for n in range(low, high + 1)]
        every = np.concatenate(hashes)
        signs = 1.0 - 2.0 * self.signed * (every >> np.uint64(63)).astype(np.float64)
        where = (every % np.uint64(self.dimension)).astype(np.int64)
        counts: Floats = np.bincount(where, signs, self.dimension)  # type: ignore[assignment]
        return counts  # whole numbers: exact in any order

    def _words(self) -> str:
        parts = [
            f"{name} n-grams of lengths {pair[0]} to {pair[1]}"
            for name, pair in (("word", self.words), ("character", self.characters))
            if pair is not None
        ]
        return f"text as {' and '.join(parts)}, hashed to {self.dimension} features"


def _text(cell: Any) -> str:
    """Return a cell as text; a missing one, or one that has no text, is empty."""
    if type(cell) is str:
        return cell
    text = call_or_failure(label_text, cell)
    return text if isinstance(text, str) else ""


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    """Return a hash of a word that is the same in every process."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _grams(tokens: Hashes, length: int) -> Hashes:
    """Return a hash of each run of ``length`` tokens; arithmetic is modulo 2^{64}."""
    count = len(tokens) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    mixed = np.full(count, length, dtype=np.uint64)
    for start in range(length):
        mixed = (mixed ^ tokens[start : start + count]) * _BASE
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX
    return np.asarray(mixed ^ (mixed >> np.uint64(32)))
