"""Algorithm 3: hyperparameter tuning by random dropping (``alg:maximum-selection``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.engine import ReleaseRule, Run
from expost.privacy.charges import Charges
from expost.privacy.guarantees import PureDP, zero_like
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact
from expost.selection.candidate import Candidate, group, level_places
from expost.selection.drop_coins import (
    DropLaw,
    DroppingSelector,
    pure_levels,
    pure_rates,
)
from expost.selection.drop_level import probability_nothing
from expost.selection.selector import Draws, check_flag, require_kind

_FEWEST_CHANCES = 1e-4


@dataclass(frozen=True)
class RandomDropping(DroppingSelector):
    """Keep each copy of candidate i with probability e^{−γ_i·x}, x random; run the kept, release the best.

    *Pure DP* (``theorem:max-score``): x = k ~ Geom(e^{−ε′}), and the selection is ex-post ε̃-DP with ε̃(i) = ε_i + γ_i + ε′ for
    drop rates γ_i ≥ ε_i (by default γ_i = ε_i, hence 2ε_i + ε′) and ε̃(nothing) = 0, since nothing has run. Sums are exact and
    rounded up. Tests: ``tests/theorems/test_pure.py``.

    *Rényi DP* (``theorem:max-score-rdp``, sharpened in docs/theory.md): say ``delta`` for a stand-alone ex-post (ε̃, δ) claim, or
    ``order`` (one, or several) for charges that a Rényi filter can add. Candidates promise RenyiDP, ZCDP or PureDP. x lives on
    multiples of a rational step, so the same exact coins serve. Tests: ``tests/theorems/test_renyi.py``.

    What is assumed: each candidate keeps its promise, calls are independent, and the score depends on the output alone.

    ``overhead``            ε′: small is cheap but drops more
    ``target``              a bar on the score. The winner is then the first kept run, by descending public priority, that
                            reaches it (if none does, the highest-priority one that did not fail): the law of running everything with the
                            score (passed?, priority), without running everything
    ``allow_nothing``       False: draw again until something is kept. That conditions on an event that does not depend on
                            data and after which nothing has run. True: the paper's ⊥
    ``minimum_drop_level``  k₀: draw k₀ + Geom instead; the charges hold, about e^{−γ·h·k₀} as many runs are made
    ``max_runs``            refuse, when pricing, a list with more copies than this. A limit on the runs *drawn* would void
                            the theorem, so there is none
    ``method``              Rényi: ``sharp`` (default), ``closed-form``, or ``paper``, the bound as published
    ``weights``             Rényi: a public prior over candidates, by default proportional to their keep chances; more weight,
                            smaller charge
    """

    overhead: Number
    target: float | None = None
    allow_nothing: bool = False
    minimum_drop_level: int = 0
    max_runs: int | None = None
    delta: Number | None = None
    order: Number | tuple[Number, ...] | None = None
    method: str = "sharp"
    weights: tuple[float, ...] | None = None
    name: ClassVar[str] = "random-dropping"

    earlier_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check_settings()
        check_flag(self.allow_nothing, "allow_nothing")
        if self.max_runs is not None:
            count_of(self.max_runs, "max_runs", at_least=1)

    @property
    def _may_release_nothing(self) -> bool:
        return self.allow_nothing

    def _price(self, candidates: Sequence[Candidate]) -> Charges:
        self._check_copies(sum(candidate.repeats for candidate in candidates))
        if self._claim() is not None:
            return self.analyse(candidates).charges
        require_kind(candidates, "RandomDropping (without delta or order)", PureDP)
        groups = group(candidates)
        overhead = exact(self.overhead, "overhead")
        levels = pure_levels(groups, [rate + overhead for rate in pure_rates(groups)])
        return Charges(tuple(levels), level_places(groups, len(candidates)), zero_like(levels[0]))

    def _check_copies(self, copies: int) -> None:
        if self.max_runs is not None and copies > self.max_runs:
            raise InvalidInput(
                "max_runs",
                self.max_runs,
                f"the candidates make {copies} copies in all; give fewer, or a larger max_runs",
            )

    def _theorem(self, candidates: Sequence[Candidate]) -> str:
        if self._claim() is None:
            return "theorem:max-score"
        return (
            "theorem:max-score-rdp"
            if self.method == "paper"
            else f"theorem:max-score-rdp, sharpened (T1, {self.method})"
        )

    def _draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> Draws:
        law = self.drop_law(candidates)
        if not self.allow_nothing:
            self._check_hope(law)
        while True:
            kept = law.draw(candidates, randomness)
            if kept or self.allow_nothing:
                return {"kept": kept}

    def _check_hope(self, law: DropLaw) -> None:
        """Refuse settings under which drawing until something is kept would take for ever. Public numbers only."""
        rates, copies = [float(rate) for rate in law.rates], [each.copies for each in law.groups]
        _, nothing = probability_nothing(float(law.overhead), rates, copies, law.minimum)
        if 1 - nothing < _FEWEST_CHANCES:
            raise InvalidInput(
                "overhead",
                self.overhead,
                f"something would be kept in fewer than one draw in {round(1 / _FEWEST_CHANCES)}; raise the overhead or the "
                "repeats, lower minimum_drop_level, or say allow_nothing=True",
            )

    def _runs(
        self, candidates: Sequence[Candidate], charges: Charges, draws: Draws
    ) -> Sequence[Run]:
        kept = draws["kept"]
        if self.target is not None:
            rank = _priorities(candidates, charges)
            kept = sorted(kept, key=lambda index: (-rank[index], index))
        return [Run(index, candidates[index].call) for index in kept]

    def _rule(self, candidates: Sequence[Candidate]) -> ReleaseRule:
        if self.target is None:
            return ReleaseRule.BEST
        _check_priorities(candidates)  # here, before anything is reserved or drawn
        return ReleaseRule.FIRST_PASS_OR_FIRST


def _check_priorities(candidates: Sequence[Candidate]) -> None:
    if len({candidate.priority is None for candidate in candidates}) > 1:
        raise InvalidCandidate("priority", None, "give a priority to every candidate, or to none")


def _priorities(candidates: Sequence[Candidate], charges: Charges) -> list[Fraction]:
    """Public priorities: those given, or minus the charge (cheapest first)."""
    given = [
        exact(candidate.priority, "priority")
        for candidate in candidates
        if candidate.priority is not None
    ]
    if given:
        return given
    level_rank = [-level.size for level in charges.levels]
    return [level_rank[level] for level in charges.level_of]
