"""The selectors of a tuning job's requests: an attempt, a path, and a score after all missed.

They are the public selectors with two additions: the first request is charged with the δ of the
whole job, and charges may be stated at Rényi orders. Their grids are in the job's certificate, so
they live below :mod:`expost.certificates`, which prices them again.
Tests: ``tests/tuning/test_attempts.py``, ``tests/selection/test_grid.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from expost.execution.engine import ReleaseRule, Run
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ZCDP, ApproxDP, Guarantee
from expost.randomness.source import Randomness
from expost.selection.above_threshold import AboveThreshold
from expost.selection.candidate import Candidate
from expost.selection.drop_law import DropLaw
from expost.selection.noise_path import PathSearch
from expost.selection.selector import Draws, Selector


def with_delta(charges: Charges, delta: float | None) -> Charges:
    """Return (ε, δ) charges with another δ; charges of other kinds as they are."""
    if delta is None:
        return charges

    def changed(charge: Guarantee) -> Guarantee:
        pair = charge.as_approx()
        return charge if pair is None else ApproxDP(pair.epsilon, delta, pair.neighbours)

    return Charges(
        tuple(changed(level) for level in charges.levels),
        charges.level_of,
        changed(charges.nothing),
    )


@dataclass(frozen=True)
class PlannedAttempt(AboveThreshold):
    """Algorithm 2 as one attempt of a job."""

    charged_delta: float | None = None

    def remember(self, candidates: Sequence[Candidate]) -> PlannedAttempt:
        """Work out charges and drop law for these candidates once; both are public."""
        charges, law = super()._price(candidates), super().drop_law(candidates)
        known = (tuple(candidates), with_delta(charges, self.charged_delta), law)
        object.__setattr__(self, "_known", known)
        return self

    def _remembered(self, candidates: Sequence[Candidate]) -> tuple[Charges, DropLaw] | None:
        """Return charges and law if these are the very candidates they were worked out for."""
        known: tuple[tuple[Candidate, ...], Charges, DropLaw] | None = getattr(self, "_known", None)
        if known is None or len(known[0]) != len(candidates):
            return None
        same = all(a is b for a, b in zip(known[0], candidates, strict=True))
        return known[1:] if same else None

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        known = self._remembered(candidates)
        if known is not None:
            return known[0]
        return with_delta(super()._price(candidates), self.charged_delta)

    def drop_law(self, candidates: Sequence[Candidate]) -> DropLaw:
        known = self._remembered(candidates)
        return super().drop_law(candidates) if known is None else known[1]


@dataclass(frozen=True)
class PlannedPath(PathSearch):
    """A search along a path as one request of a job."""

    charged_delta: float | None = None
    training: str = "noise-reduction"
    orders: tuple[float, ...] | None = None

    def settings(self) -> dict[str, Any]:
        """Return the selector's name and public settings in plain JSON types."""
        return {**super().settings(), "training": self.training}

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        charges = super()._price(candidates)
        if self.orders is not None:
            levels = tuple(level.to_renyi(self.orders) for level in charges.levels)
            return Charges(levels, charges.level_of, charges.nothing.to_renyi(self.orders))
        return with_delta(charges, self.charged_delta)


@dataclass(frozen=True)
class Tell(Selector):
    """The request for a noisy score after all others missed, charged as they are."""

    charged: str = "approx"
    orders: tuple[float, ...] | None = None
    name: ClassVar[str] = "tell"
    runs_here: ClassVar[bool] = True

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        guarantee = candidates[0].guarantee.as_pure()
        assert guarantee is not None
        charge: Guarantee = guarantee.to_approx(0)
        if self.orders is not None:
            charge = guarantee.to_renyi(self.orders)
        elif self.charged == ZCDP.kind:
            charge = guarantee.to_zcdp()
        return Charges.from_list([charge], charge)

    def _theorem(self, candidates: Sequence[Candidate]) -> str:
        return "discrete Laplace noise"

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws:
        return {}

    def _runs(
        self, candidates: Sequence[Candidate], charges: Charges, draws: Draws
    ) -> Sequence[Run]:
        return [Run(0, candidates[0].call)]

    def _rule(self, candidates: Sequence[Candidate]) -> ReleaseRule:
        return ReleaseRule.BEST
