"""Algorithm 3: hyperparameter tuning by random dropping (``alg:maximum-selection``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee, PureDP, zero_like
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact, exact_positive, round_up
from expost.selection.candidate import Candidate
from expost.selection.dropping import RatedGroup, draw_kept, rate_pure
from expost.selection.plan import probability_nothing
from expost.selection.running import Rule, Run
from expost.selection.selector import Draws, Selector, check_target, require_kind

_FEWEST_CHANCES = 1e-4


@dataclass(frozen=True)
class RandomDropping(Selector):
    """Keep each copy of candidate i with probability e^{−γ_i·k}, k ~ Geom(e^{−ε′}); run the kept, release the best.

    Guarantee (``theorem:max-score``): ex-post ε̃-DP with ε̃(i) = ε_i + γ_i + ε′ for drop rates γ_i ≥ ε_i (by default
    γ_i = ε_i, hence 2ε_i + ε′) and ε̃(nothing) = 0, since nothing has run. What is assumed: each candidate keeps its promise,
    calls are independent, and the score depends on the output alone. Sums are exact and rounded up.
    Tests: ``tests/theorems/test_pure.py``.

    ``overhead``            ε′: small is cheap but drops more
    ``target``              a bar on the score. The winner is then the first kept run, by descending public priority, that
                            reaches it (the highest-priority kept run if none does): the law of running everything with the
                            score (passed?, priority), without running everything
    ``allow_nothing``       False: draw again until something is kept. That conditions on an event that does not depend on
                            data and after which nothing has run, so all charges stay. True: the paper's ⊥
    ``minimum_drop_level``  k₀: draw k₀ + Geom(e^{−ε′}) instead; same charges, about e^{−γk₀} as many runs
    ``max_runs``            refuse, when pricing, a list with more copies than this. A limit on the runs *drawn* would void
                            the theorem, so there is none
    """

    overhead: Number
    target: float | None = None
    allow_nothing: bool = False
    minimum_drop_level: int = 0
    max_runs: int | None = None
    name: ClassVar[str] = "random-dropping"

    def __post_init__(self) -> None:
        exact_positive(self.overhead, "overhead")
        check_target(self.target)
        count_of(self.minimum_drop_level, "minimum_drop_level", at_least=0)
        if self.max_runs is not None:
            count_of(self.max_runs, "max_runs", at_least=1)

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        require_kind(candidates, "RandomDropping", PureDP)
        groups = rate_pure(candidates)
        self._check_copies(groups)
        overhead = exact_positive(self.overhead, "overhead")
        levels: list[Guarantee] = []
        level_of = [0] * len(candidates)
        for place, rated in enumerate(groups):
            promise = rated.group.guarantee
            assert isinstance(promise, PureDP)
            charge = round_up(Fraction(promise.epsilon) + rated.rate + overhead)
            levels.append(PureDP(charge, promise.neighbours))
            for member in rated.group.members:
                level_of[member] = place
        return Charges(tuple(levels), tuple(level_of), zero_like(levels[0]))

    def _check_copies(self, groups: Sequence[RatedGroup]) -> None:
        copies = sum(rated.group.copies for rated in groups)
        if self.max_runs is not None and copies > self.max_runs:
            raise InvalidInput(
                "max_runs",
                self.max_runs,
                f"the candidates make {copies} copies in all; give fewer, or a larger max_runs",
            )

    def _theorem(self, candidates: Sequence[Candidate]) -> str:
        return "theorem:max-score"

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws:
        groups = rate_pure(candidates)
        if not self.allow_nothing:
            self._check_hope(groups)
        overhead = exact(self.overhead, "overhead")
        while True:
            kept = draw_kept(candidates, groups, overhead, self.minimum_drop_level, randomness)
            if kept or self.allow_nothing:
                return {"kept": kept}

    def _check_hope(self, groups: Sequence[RatedGroup]) -> None:
        """Refuse settings under which drawing until something is kept would take for ever. Public numbers only."""
        _, nothing = probability_nothing(
            float(self.overhead),
            [float(rated.rate) for rated in groups],
            [rated.group.copies for rated in groups],
            self.minimum_drop_level,
        )
        if 1 - nothing < _FEWEST_CHANCES:
            raise InvalidInput(
                "overhead",
                self.overhead,
                f"something would be kept in fewer than one draw in {round(1 / _FEWEST_CHANCES)}; raise the overhead or the "
                "repeats, lower minimum_drop_level, or say allow_nothing=True",
            )

    def _runs(self, candidates: Sequence[Candidate], draws: Draws) -> Sequence[Run]:
        kept = draws["kept"]
        if self.target is not None:
            rank = self._priorities(candidates)
            kept = sorted(kept, key=lambda index: (-rank[index], index))
        return [Run(index, candidates[index].call) for index in kept]

    def _priorities(self, candidates: Sequence[Candidate]) -> list[Fraction]:
        """Public priorities: those given, or minus the charge (cheapest first)."""
        given = [candidate.priority for candidate in candidates]
        if all(priority is None for priority in given):
            charges = self._price(candidates)
            level_rank = [-level.size for level in charges.levels]
            return [level_rank[level] for level in charges.level_of]
        if any(priority is None for priority in given):
            raise InvalidCandidate("priority", None, "give a priority to every candidate, or to none")
        return [exact(priority, "priority") for priority in given if priority is not None]

    def _rule(self, candidates: Sequence[Candidate]) -> Rule:
        return Rule.BEST if self.target is None else Rule.FIRST_PASS_OR_FIRST
