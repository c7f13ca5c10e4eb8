"""What Algorithms 2 and 3 share as selectors: settings, drop law, and Rényi pricing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from expost.errors import InvalidInput
from expost.privacy.guarantees import ZCDP, PureDP, RenyiDP
from expost.rationals import Number, count_of, exact, exact_positive
from expost.selection.candidate import Candidate, group
from expost.selection.dropping import DropLaw, pure_rates
from expost.selection.renyi_charges import Problem
from expost.selection.renyi_pricing import Claim, Rated, RenyiTable, check_weights, price_renyi, rate_renyi, renyi_problem
from expost.selection.selector import Selector, check_target, require_kind


class DroppingSelector(Selector):
    """A selector that keeps copies by random dropping. The settings are fields of the subclasses."""

    overhead: Number
    minimum_drop_level: int
    delta: Number | None
    order: Number | tuple[Number, ...] | None
    method: str
    weights: tuple[float, ...] | None
    earlier_only: ClassVar[bool]

    @property
    @abstractmethod
    def _may_release_nothing(self) -> bool: ...

    def _check_settings(self) -> None:
        exact_positive(self.overhead, "overhead")
        check_target(self.target)
        count_of(self.minimum_drop_level, "minimum_drop_level", at_least=0)
        if self._claim() is None and self.weights is not None:
            raise InvalidInput("weights", self.weights, "weights belong to Rényi charges: give delta or order too")

    def _claim(self) -> Claim | None:
        """The Rényi claim that the settings ask for, or None for pure DP."""
        return Claim.check(self.delta, self.order, self.method)

    def _rated(self, candidates: Sequence[Candidate]) -> tuple[Rated, Claim]:
        claim = self._claim()
        if claim is None:
            raise InvalidInput("delta", None, "give delta for a stand-alone (ε̃, δ) claim, or order for a filter")
        require_kind(self._check(candidates), type(self).__name__, RenyiDP, ZCDP, PureDP)
        weights = None if self.weights is None else check_weights(self.weights, candidates)
        return rate_renyi(group(candidates, weights, in_order=self.earlier_only), claim), claim

    def renyi_problem(self, candidates: Sequence[Candidate]) -> Problem:
        """What the Rényi pricing works on; no data is touched."""
        rated, claim = self._rated(candidates)
        return renyi_problem(
            candidates,
            rated,
            claim,
            overhead=float(self.overhead),
            minimum=self.minimum_drop_level,
            allow_nothing=self._may_release_nothing,
            earlier_only=self.earlier_only,
            weights=self.weights,
        )

    def analyse(self, candidates: Sequence[Candidate]) -> RenyiTable:
        """Rényi charges with the order and shift behind each; no data is touched."""
        rated, claim = self._rated(candidates)
        return price_renyi(candidates, rated, claim, self.renyi_problem(candidates))

    def drop_law(self, candidates: Sequence[Candidate]) -> DropLaw:
        """The law of what is kept: exact, public, the same for every data set."""
        overhead = exact(self.overhead, "overhead")
        if self._claim() is None:
            groups = tuple(group(candidates))
            return DropLaw(groups, pure_rates(groups), overhead, self.minimum_drop_level)
        rated, _ = self._rated(candidates)
        rates = tuple(rate * rated.step for rate in rated.rates)
        return DropLaw(rated.groups, rates, overhead * rated.step, self.minimum_drop_level)
