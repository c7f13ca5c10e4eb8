"""Algorithms 1 and 2: the first candidate above a bar (``alg:at-classic``, ``alg:generalized-at``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.engine import ReleaseRule, Run
from expost.mechanisms.discrete_noise import Query
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, PureDP
from expost.randomness.coins import geometric
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, round_up
from expost.selection.candidate import Candidate, group, level_places
from expost.selection.drop_coins import DroppingSelector, pure_levels, pure_rates
from expost.selection.selector import Draws, all_copies, require_kind


@dataclass(frozen=True)
class AboveThreshold(DroppingSelector):
    """Go through the candidates in order and release the first that reaches ``target``, or nothing.

    *Over mechanisms* (Algorithm 2): candidate i is kept with probability e^{−γ_i·x} and run; the first kept output whose score
    reaches the target is released. Pure DP (``theorem:generalized-at``): charges ε_i + γ_i + ε′ with γ_i ≥ ε_i, and ε′ for nothing.
    Rényi DP (an extension of ours, docs/theory.md): with ``delta`` or ``order``, as in ``RandomDropping``; only the
    candidates before the winner compete with it, and "nothing" is charged.

    *Over queries* (Algorithm 1, pure DP): the candidates' mechanisms are bare ``Query`` objects with whole values and sensitivity 1;
    candidate i's guarantee says how much noise it gets: y_i ~ Geom(e^{−ε_i}). The first with f_i + y_i − k ≥ target is
    released together with that number, which is the free estimate. Charges: 2ε_i + ε′ (``theorem:at-classic``), or
    ε_i + ε′ if ``monotone`` (``theorem:at-classic-monotone``: under add-remove, adding a person raises every query or
    none); ε′ for nothing. A repeated query is another look with fresh noise.

    Assumed: candidates keep their promises; scores depend on outputs alone; queries never fail on valid data. Charges are rounded
    up. Tests: ``tests/theorems/test_pure.py``, ``tests/theorems/test_renyi.py``.
    """

    overhead: Number
    target: float
    monotone: bool = False
    minimum_drop_level: int = 0
    delta: Number | None = None
    order: Number | tuple[Number, ...] | None = None
    method: str = "sharp"
    weights: tuple[float, ...] | None = None
    name: ClassVar[str] = "above-threshold"
    takes_queries: ClassVar[bool] = True

    earlier_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.target is None:
            raise InvalidInput("target", None, "give the bar that a score must reach")
        if not isinstance(self.monotone, bool):
            raise InvalidInput(
                "monotone", self.monotone, "give True or False: True claims more and pays less"
            )
        self._check_settings()

    @property
    def _may_release_nothing(self) -> bool:
        return True

    def _over_queries(self, candidates: Sequence[Candidate]) -> bool:
        queries = [isinstance(candidate.mechanism, Query) for candidate in candidates]
        if any(queries) and not all(queries):
            raise InvalidCandidate(
                "candidates", "queries and mechanisms", "give only one kind of the two"
            )
        if self.monotone and not queries[0]:
            raise InvalidInput(
                "monotone", True, "only queries can be monotone; over mechanisms leave it out"
            )
        if queries[0] and self._claim() is not None:
            raise InvalidInput(
                "delta, order",
                (self.delta, self.order),
                "over queries charges are pure; leave them out",
            )
        return queries[0]

    def _refuses_score(self, candidates: Sequence[Candidate]) -> str | None:
        """Algorithm 1's proof compares the noisy number itself: under a falling score every query looked at would cost."""
        return (
            "over queries the noisy number itself is compared with the bar; leave it out"
            if self._over_queries(candidates)
            else None
        )

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        over_queries = self._over_queries(candidates)
        if self._claim() is not None:
            return self.analyse(candidates).charges
        require_kind(candidates, "AboveThreshold (without delta or order)", PureDP)
        if over_queries:
            self._check_queries(candidates)
        groups = group(candidates)
        overhead = exact(self.overhead, "overhead")
        second = [Fraction(0)] * len(groups) if self.monotone else pure_rates(groups)
        levels = pure_levels(groups, [each + overhead for each in second])
        nothing = PureDP(round_up(overhead), levels[0].neighbours)
        return Charges(tuple(levels), level_places(groups, len(candidates)), nothing)

    def _check_queries(self, candidates: Sequence[Candidate]) -> None:
        all_copies(candidates)
        if self.minimum_drop_level:
            raise InvalidInput(
                "minimum_drop_level",
                self.minimum_drop_level,
                "over queries nothing is dropped; leave it out",
            )
        if self.monotone and candidates[0].guarantee.neighbours != ADD_REMOVE:
            raise InvalidInput("monotone", True, "needs the add-remove relation")
        for candidate in candidates:
            query = candidate.mechanism
            assert isinstance(query, Query)
            if query.steps() != 1 or query.grid is not None or query.dimension != 1:
                raise InvalidCandidate(
                    "query", query, "Algorithm 1 needs single whole values of sensitivity 1"
                )
            if candidate.drop_rate is not None:
                raise InvalidCandidate(
                    "drop_rate",
                    candidate.drop_rate,
                    "over queries nothing is dropped; leave it out",
                )
            if candidate.guarantee.size == 0:
                raise InvalidCandidate(
                    "guarantee", candidate.guarantee, "a query needs noise: give ε > 0"
                )

    def _theorem(self, candidates: Sequence[Candidate]) -> str:
        if self._over_queries(candidates):
            return "theorem:at-classic-monotone" if self.monotone else "theorem:at-classic"
        if self._claim() is None:
            return "theorem:generalized-at"
        return f"theorem:generalized-at under Rényi DP (T1 and T2, {self.method})"

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws:
        if self._over_queries(candidates):
            return {"level": geometric(exact(self.overhead, "overhead"), randomness)}
        return {"kept": self.drop_law(candidates).draw(candidates, randomness)}

    def _runs(
        self, candidates: Sequence[Candidate], charges: Charges, draws: Draws
    ) -> Sequence[Run]:
        if "kept" in draws:
            return [Run(index, candidates[index].call) for index in draws["kept"]]
        return [
            Run(index, noisy_comparison(candidates[index], draws["level"]))
            for index in all_copies(candidates)
        ]

    def _rule(self, candidates: Sequence[Candidate]) -> ReleaseRule:
        return ReleaseRule.FIRST_PASS_OR_NOTHING


@dataclass(frozen=True, repr=False)
class NoisyComparison:
    """f(data) + y − k with y ~ Geom(e^{−ε}): what Algorithm 1 compares with the bar, and releases."""

    query: Query
    rate: Fraction
    level: int

    def __call__(self, data: Any, randomness: Randomness) -> int:
        return self.query.evaluate(data)[0] + geometric(self.rate, randomness) - self.level


def noisy_comparison(candidate: Candidate, level: int) -> NoisyComparison:
    """The comparison that a candidate asks for, at drop level ``level``."""
    assert isinstance(candidate.mechanism, Query)
    return NoisyComparison(candidate.mechanism, candidate.guarantee.size, level)
