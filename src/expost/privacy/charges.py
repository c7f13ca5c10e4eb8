"""What each outcome of a selection costs: a table that is made before any data is read.

Tests: ``tests/privacy/test_guarantees.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee, guarantee_from_dict


@dataclass(frozen=True)
class Charges:
    """One charge per candidate, and one for the outcome "nothing".

    All charges have the same kind and the same neighbouring relation. ``charges[i]`` is the charge
    of candidate i, and ``len(charges)`` is the number of candidates.

    Parameters
    ----------
    levels : tuple of Guarantee
        Each distinct charge once.
    level_of : tuple of int
        ``level_of[i]`` is the position in ``levels`` of the charge of candidate i.
    nothing : Guarantee
        The charge of the outcome "nothing".

    Raises
    ------
    InvalidInput
        If there is no charge, if a position is out of range, or if the charges differ in kind,
        relation or orders.
    """

    levels: tuple[Guarantee, ...]
    level_of: tuple[int, ...]
    nothing: Guarantee

    def __post_init__(self) -> None:
        if not self.levels or not self.level_of:
            raise InvalidInput("charges", self.levels, "give at least one charge and one candidate")
        if not all(0 <= level < len(self.levels) for level in set(self.level_of)):
            raise InvalidInput(
                "level_of",
                "…",
                f"give whole numbers from 0 to {len(self.levels) - 1}, positions in the levels",
            )
        for level in (*self.levels, self.nothing):
            self.levels[0].require_same_terms(level)

    def __repr__(self) -> str:
        return (
            f"Charges({len(self)} candidates, {len(self.levels)} levels, "
            f"worst_case={self.worst_case!r})"
        )

    def __len__(self) -> int:
        return len(self.level_of)

    def __getitem__(self, candidate: int) -> Guarantee:
        return self.levels[self.level_of[candidate]]

    @property
    def worst_case(self) -> Guarantee:
        """The smallest guarantee that covers every outcome."""
        return reduce(lambda a, b: a.at_worst(b), self.levels, self.nothing)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; runs of equal levels are written as [level, length]."""
        return {
            "levels": [level.as_dict() for level in self.levels],
            "level_of": [[level, len(list(run))] for level, run in groupby(self.level_of)],
            "nothing": self.nothing.as_dict(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Charges:
        """Read a table that :meth:`as_dict` wrote."""
        return cls(
            tuple(guarantee_from_dict(level) for level in record["levels"]),
            tuple(level for level, length in record["level_of"] for _ in range(length)),
            guarantee_from_dict(record["nothing"]),
        )

    @classmethod
    def from_list(cls, charges: Iterable[Guarantee], nothing: Guarantee) -> Charges:
        """Make a table from one charge per candidate; equal charges are stored once.

        Parameters
        ----------
        charges : iterable of Guarantee
            The charges of the candidates, in order.
        nothing : Guarantee
            The charge of the outcome "nothing".

        Returns
        -------
        Charges
            The table.
        """
        levels: dict[Guarantee, int] = {}
        level_of = tuple(levels.setdefault(charge, len(levels)) for charge in charges)
        return cls(tuple(levels), level_of, nothing)
