"""Algorithms 1 and 2: the first candidate that reaches a goal.

Algorithm 1 (``alg:at-classic``) works on queries, Algorithm 2 (``alg:generalized-at``) on
mechanisms. The theorems, what is assumed of the caller, the rounding and the tests are stated in
:class:`AboveThreshold`.

**The requests of a tuning job** (an attempt, a path, and a score after all missed) are the public
selectors with two additions: the first request is charged with the δ of the whole job, and charges
may be stated at Rényi orders. Their grids are in the job's certificate, so they live below
:mod:`expost.certificates`, which prices them again. Tests: ``tests/tuning/test_attempts.py``,
``tests/selection/test_grid.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.engine import ReleaseRule, Run
from expost.mechanisms import Query
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZCDP, ApproxDP, Guarantee, PureDP
from expost.randomness.coins import geometric
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, round_up
from expost.selection.candidate import Candidate, all_copies, check_flag, group_equal, level_places
from expost.selection.drop_law import DropLaw, pure_levels, pure_rates
from expost.selection.noise_path import PathSearch
from expost.selection.random_dropping import DroppingSelector
from expost.selection.selector import Candidates, Draws, Selector, require_kind


@dataclass(frozen=True)
class AboveThreshold(DroppingSelector):
    """Go through the candidates in order and release the first that reaches ``at_least``.

    If no candidate reaches it, nothing is released.

    Parameters
    ----------
    overhead : number
        ε′ > 0, the parameter of the drop level k. A small overhead costs less but drops more; over
        queries nothing is dropped, and k is subtracted from the noisy values instead.
    at_least : float
        The score that a run must reach to be released.
    monotone : bool
        Over queries only: True states that, under add-remove, adding a person raises every query
        or none. The charges are then smaller.
    minimum_drop_level : int
        k₀: draw k₀ + Geom instead of Geom; over mechanisms only. The charges still hold.
    delta : number, optional
        δ of a stand-alone ex-post (ε̃, δ) claim under Rényi DP; over mechanisms only.
    order : number or tuple of numbers, optional
        Orders of Rényi charges that a Rényi filter can add. Pass ``delta`` or ``order``, not both.
    method : {"sharp", "closed-form", "paper"}
        The bound under Rényi DP, as in ``RandomDropping``.
    weights : tuple of float, optional
        A public prior over the candidates under Rényi DP, as in ``RandomDropping``.

    Notes
    -----
    *Over mechanisms* (Algorithm 2). Candidate i is kept with probability e^{−γ_i·x} and run. The
    first kept output whose score reaches the goal is released.

    - Pure DP (``theorem:generalized-at``): the charge is ε_i + γ_i + ε′ with γ_i ≥ ε_i, and ε′ for
      nothing.
    - Rényi DP and privacy profiles (an extension of ours, docs/theory.md), with ``delta`` or
      ``order``: only the candidates before the winner compete with it, and "nothing" is charged;
      with ``delta`` it takes no share of δ.

    *Over queries* (Algorithm 1, pure DP). The candidates' mechanisms are bare ``Query`` objects
    with whole values and sensitivity 1. The guarantee of candidate i sets its noise:
    y_i ~ Geom(e^{−ε_i}). The first query with f_i + y_i − k ≥ at_least is released with that
    number, an estimate at no extra charge. The charge is 2ε_i + ε′ (``theorem:at-classic``), or
    ε_i + ε′ if ``monotone`` (``theorem:at-classic-monotone``); it is ε′ for nothing. A repeated
    query is asked again with fresh noise.

    *Assumptions.* Candidates keep their guarantees, scores depend on outputs alone, and queries
    never fail on valid data. Charges are rounded up. Tests: ``tests/theorems/test_pure.py``,
    ``tests/theorems/test_renyi.py``.
    """

    overhead: Number
    at_least: float
    monotone: bool = False
    minimum_drop_level: int = 0
    delta: Number | None = None
    order: Number | tuple[Number, ...] | None = None
    method: str = "sharp"
    weights: tuple[float, ...] | None = None
    name: ClassVar[str] = "above-threshold"
    takes_queries: ClassVar[bool] = True
    earlier_only: ClassVar[bool] = True
    allow_nothing = True  # no field: always
    rule: ClassVar[ReleaseRule] = ReleaseRule.FIRST_PASS_OR_NOTHING

    def __post_init__(self) -> None:
        if self.at_least is None:
            raise InvalidInput("at_least", None, "give the number that a score must reach")
        check_flag(self.monotone, "monotone")
        self._check_settings()

    def _over_queries(self, candidates: Candidates) -> bool:
        """Return whether the candidates are bare queries; refuse settings that do not fit."""
        queries = [isinstance(candidate.mechanism, Query) for candidate in candidates]
        if any(queries) and not all(queries):
            raise InvalidCandidate(
                "candidates", "queries and mechanisms", "give only queries, or only mechanisms"
            )
        if self.monotone and not queries[0]:
            raise InvalidInput(
                "monotone", True, "only queries can be monotone; over mechanisms leave it out"
            )
        if queries[0] and self._claim() is not None:
            raise InvalidInput(
                "delta, order",
                (self.delta, self.order),
                "charges over queries are pure; leave them out",
            )
        return queries[0]

    def _refuses_score(self, candidates: Candidates) -> str | None:
        """Refuse a score over queries: the proof of Algorithm 1 compares the noisy number itself.

        Under a decreasing score every query that was looked at would have to be paid.
        """
        return (
            "over queries the noisy number itself is compared with the goal; leave it out"
            if self._over_queries(candidates)
            else None
        )

    def _price(self, candidates: Candidates) -> Charges:
        """Charge by the theorems of Algorithm 1 or 2; sums are exact and rounded up."""
        over_queries = self._over_queries(candidates)
        if self._claim() is not None:
            return self.analyse(candidates).charges
        require_kind(candidates, "AboveThreshold (without delta or order)", PureDP)
        if over_queries:
            self._check_queries(candidates)
        groups = group_equal(candidates)
        overhead = exact(self.overhead, "overhead")
        # Monotone queries move one way, so the level alone hides the comparison: no second ε_i.
        second = [Fraction(0)] * len(groups) if self.monotone else pure_rates(groups)
        levels = pure_levels(groups, [level + overhead for level in second])
        nothing = PureDP(round_up(overhead), levels[0].neighbours)
        return Charges(tuple(levels), level_places(groups, len(candidates)), nothing)

    def _check_queries(self, candidates: Candidates) -> None:
        """Refuse queries and settings that the theorems of Algorithm 1 do not cover."""
        all_copies(candidates)
        if self.minimum_drop_level:
            raise InvalidInput(
                "minimum_drop_level",
                self.minimum_drop_level,
                "over queries nothing is dropped; leave it out",
            )
        if self.monotone and candidates[0].guarantee.neighbours != ADD_REMOVE:
            raise InvalidInput("monotone", True, "it needs guarantees for the add-remove relation")
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

    def _theorem(self, candidates: Candidates) -> str:
        """Return the label of the theorem for queries or for mechanisms."""
        if self._over_queries(candidates):
            return "theorem:at-classic-monotone" if self.monotone else "theorem:at-classic"
        if self._claim() is None:
            return "theorem:generalized-at"
        named = f"theorem:generalized-at under Rényi DP (T1 and T2, {self.method})"
        return named + ("" if self.method == "paper" else self._elementary())

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw the drop level (over queries), or the kept copies (over mechanisms)."""
        if self._over_queries(candidates):
            return {"level": geometric(exact(self.overhead, "overhead"), randomness)}
        return {"kept": self.drop_law(candidates).draw(candidates, randomness)}

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return the kept copies, or one noisy comparison per query, in the order of the list."""
        if "kept" in draws:
            return super()._runs(candidates, charges, draws)
        comparisons = [
            NoisyComparison(candidate.mechanism, candidate.guarantee.size, draws["level"])  # type: ignore[arg-type]
            for candidate in candidates
        ]
        return [Run(index, comparisons[index]) for index in all_copies(candidates)]


@dataclass(frozen=True, repr=False)
class NoisyComparison:
    """f(data) + y − k with y ~ Geom(e^{−ε}), which Algorithm 1 compares with the goal.

    If it reaches the goal, this number is released. The drop level k is secret: no repr.
    """

    query: Query
    rate: Fraction
    level: int

    def __call__(self, data: Any, randomness: Randomness) -> int:
        return self.query.evaluate(data)[0] + geometric(self.rate, randomness) - self.level


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

    def remember(self, candidates: Candidates) -> PlannedAttempt:
        """Work out charges and drop law for these candidates once; both are public."""
        charges, law = super()._price(candidates), super().drop_law(candidates)
        known = (tuple(candidates), with_delta(charges, self.charged_delta), law)
        object.__setattr__(self, "_known", known)
        return self

    def _remembered(self, candidates: Candidates) -> tuple[Charges, DropLaw] | None:
        """Return charges and law if these are the very candidates they were worked out for."""
        known: tuple[tuple[Candidate, ...], Charges, DropLaw] | None = getattr(self, "_known", None)
        if known is None or len(known[0]) != len(candidates):
            return None
        same = all(a is b for a, b in zip(known[0], candidates, strict=True))
        return known[1:] if same else None

    def _price(self, candidates: Candidates) -> Charges:
        known = self._remembered(candidates)
        if known is not None:
            return known[0]
        return with_delta(super()._price(candidates), self.charged_delta)

    def drop_law(self, candidates: Candidates) -> DropLaw:
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

    def _price(self, candidates: Candidates) -> Charges:
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
    rule: ClassVar[ReleaseRule] = ReleaseRule.BEST
    runs_here: ClassVar[bool] = True

    def _price(self, candidates: Candidates) -> Charges:
        guarantee = candidates[0].guarantee.as_pure()
        assert guarantee is not None
        charge: Guarantee = guarantee.to_approx(0)
        if self.orders is not None:
            charge = guarantee.to_renyi(self.orders)
        elif self.charged == ZCDP.kind:
            charge = guarantee.to_zcdp()
        return Charges.from_list([charge], charge)

    def _theorem(self, candidates: Candidates) -> str:
        return "discrete Laplace noise"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        return {}
