"""What is believed, before data is read, about which share of the settings passes at each level.

A belief is a list of scenarios. It is public and affects the expected cost only: charges are valid
whatever the truth is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput

SHARES = (0.5, 0.2, 0.08, 0.03)
"""Shares of the default belief: each may hold from any level on."""

LEAST_SHARE = 0.01
"""At the last level the default belief also has one passing setting in a hundred."""


@dataclass(frozen=True)
class Scenario:
    """A share ``share`` of the settings passes from level number ``level`` on (0 is the first)."""

    level: int
    share: float
    weight: float = 1.0


@dataclass(frozen=True)
class Belief:
    """Scenarios with weights.

    Parameters
    ----------
    levels : int
        Number of privacy levels.
    scenarios : tuple of Scenario
        What may be true; weights are relative.
    """

    levels: int
    scenarios: tuple[Scenario, ...]

    def __post_init__(self) -> None:
        for each in self.scenarios:
            if not 0 <= each.level < self.levels:
                raise InvalidInput(
                    "belief.level",
                    each.level,
                    f"give the number of a level, 0 to {self.levels - 1}",
                )
            if not 0 < each.share <= 1:
                raise InvalidInput("belief.share", each.share, "give a share with 0 < share <= 1")
            if not 0 < each.weight < float("inf"):
                raise InvalidInput("belief.weight", each.weight, "give a finite number > 0")
        if not self.scenarios:
            raise InvalidInput("belief", "no scenario", "give at least one scenario")

    @classmethod
    def default(cls, levels: int, copies: int) -> Belief:
        """Return a robust spread: shares of 50 to 3 % from any level on, 1 % at the last level.

        No share is below one copy in ``copies``, the number of copies at a level: a smaller one
        would mean that nothing passes.
        """
        shares = sorted({max(share, 1 / copies) for share in SHARES}, reverse=True)
        spread = [Scenario(level, share) for level in range(levels) for share in shares]
        return cls(levels, (*spread, Scenario(levels - 1, max(LEAST_SHARE, 1 / copies))))

    @classmethod
    def of_shares(cls, levels: int, shares: Sequence[float]) -> Belief:
        """Return the belief that one of ``shares`` holds, from any level on."""
        return cls(
            levels, tuple(Scenario(level, share) for level in range(levels) for share in shares)
        )

    @property
    def shares(self) -> Floats:
        """Share that passes, by scenario (rows) and level (columns)."""
        table = np.zeros((len(self.scenarios), self.levels))
        for row, each in zip(table, self.scenarios, strict=True):
            row[each.level :] = each.share
        return table

    @property
    def weights(self) -> Floats:
        """Weights of the scenarios; they sum to 1."""
        given = np.array([each.weight for each in self.scenarios])
        return np.asarray(given / given.sum())
