"""Algorithms 1 and 2: the first candidate above a bar (``alg:at-classic``, ``alg:generalized-at``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.mechanisms.discrete_noise import Query
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, Guarantee, PureDP
from expost.randomness.coins import geometric
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact_positive, round_up
from expost.selection.candidate import Call, Candidate
from expost.selection.dropping import draw_kept, rate_pure
from expost.selection.running import Rule, Run
from expost.selection.selector import Draws, Selector, check_target, require_kind


@dataclass(frozen=True)
class AboveThreshold(Selector):
    """Go through the candidates in order and release the first that reaches ``target``, or nothing.

    *Over mechanisms* (Algorithm 2, ``theorem:generalized-at``): candidate i is kept with probability e^{−γ_i·k}, γ_i ≥ ε_i, and
    run; the first kept output whose score reaches the target is released. Charges: ε_i + γ_i + ε′, and ε′ for nothing.

    *Over queries* (Algorithm 1): the candidates' mechanisms are bare ``Query`` objects with whole values and sensitivity 1;
    candidate i's guarantee says how much noise it gets: y_i ~ Geom(e^{−ε_i}). The first with f_i + y_i − k ≥ target is
    released together with that number, which is the free estimate. Charges: 2ε_i + ε′ (``theorem:at-classic``), or
    ε_i + ε′ if ``monotone`` (``theorem:at-classic-monotone``: under add-remove, adding a person raises every query or
    none); ε′ for nothing. A repeated query is another look with fresh noise.

    Assumed: candidates keep their promises; scores depend on outputs alone; queries never fail on valid data. Sums are exact
    and rounded up. Tests: ``tests/theorems/test_pure.py``.
    """

    overhead: Number
    target: float
    monotone: bool = False
    minimum_drop_level: int = 0
    name: ClassVar[str] = "above-threshold"
    takes_queries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        exact_positive(self.overhead, "overhead")
        if self.target is None:
            raise InvalidInput("target", None, "give the bar that a score must reach")
        check_target(self.target)
        count_of(self.minimum_drop_level, "minimum_drop_level", at_least=0)

    def _over_queries(self, candidates: Sequence[Candidate]) -> bool:
        queries = [isinstance(candidate.mechanism, Query) for candidate in candidates]
        if any(queries) and not all(queries):
            raise InvalidCandidate("candidates", "queries and mechanisms", "give only one kind of the two")
        if self.monotone and not queries[0]:
            raise InvalidInput("monotone", True, "only queries can be monotone; over mechanisms leave it out")
        return queries[0]

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        require_kind(candidates, "AboveThreshold", PureDP)
        over_queries = self._over_queries(candidates)
        if over_queries:
            self._check_queries(candidates)
        overhead = exact_positive(self.overhead, "overhead")
        levels: list[Guarantee] = []
        level_of = [0] * len(candidates)
        for place, rated in enumerate(rate_pure(candidates)):
            promise = rated.group.guarantee
            assert isinstance(promise, PureDP)
            second = rated.rate if not over_queries else Fraction(0 if self.monotone else promise.epsilon)
            charge = Fraction(promise.epsilon) + second + overhead
            levels.append(PureDP(round_up(charge), promise.neighbours))
            for member in rated.group.members:
                level_of[member] = place
        return Charges(tuple(levels), tuple(level_of), PureDP(round_up(overhead), levels[0].neighbours))

    def _check_queries(self, candidates: Sequence[Candidate]) -> None:
        if self.minimum_drop_level:
            raise InvalidInput("minimum_drop_level", self.minimum_drop_level, "over queries nothing is dropped; leave it out")
        if self.monotone and candidates[0].guarantee.neighbours != ADD_REMOVE:
            raise InvalidInput("monotone", True, "needs the add-remove relation")
        for candidate in candidates:
            query = candidate.mechanism
            assert isinstance(query, Query)
            if query.steps() != 1 or query.grid is not None or query.dimension != 1:
                raise InvalidCandidate("query", query, "Algorithm 1 needs single whole values of sensitivity 1")
            if candidate.drop_rate is not None:
                raise InvalidCandidate("drop_rate", candidate.drop_rate, "over queries nothing is dropped; leave it out")
            if candidate.guarantee.size == 0:
                raise InvalidCandidate("guarantee", candidate.guarantee, "a query needs noise: give ε > 0")

    def _theorem(self, candidates: Sequence[Candidate]) -> str:
        if not self._over_queries(candidates):
            return "theorem:generalized-at"
        return "theorem:at-classic-monotone" if self.monotone else "theorem:at-classic"

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws:
        overhead = exact_positive(self.overhead, "overhead")
        if self._over_queries(candidates):
            return {"level": geometric(overhead, randomness)}
        groups = rate_pure(candidates)
        return {"kept": draw_kept(candidates, groups, overhead, self.minimum_drop_level, randomness)}

    def _runs(self, candidates: Sequence[Candidate], draws: Draws) -> Sequence[Run]:
        if "kept" in draws:
            return [Run(index, candidates[index].call) for index in draws["kept"]]
        return [
            Run(index, noisy_comparison(candidate, draws["level"]))
            for index, candidate in enumerate(candidates)
            for _ in range(candidate.repeats)
        ]

    def _rule(self, candidates: Sequence[Candidate]) -> Rule:
        return Rule.FIRST_PASS_OR_NOTHING


def noisy_comparison(candidate: Candidate, level: int) -> Call:
    """f(data) + y − k with y ~ Geom(e^{−ε}): what Algorithm 1 compares with the bar, and releases."""
    query, promise = candidate.mechanism, candidate.guarantee
    assert isinstance(query, Query)
    assert isinstance(promise, PureDP)
    rate = Fraction(promise.epsilon)

    def compare(data: Any, randomness: Randomness) -> int:
        return query.evaluate(data)[0] + geometric(rate, randomness) - level

    return compare
