"""Algorithm 3: hyperparameter tuning by random dropping (``alg:maximum-selection``).

The theorems, what is assumed of the caller, the rounding and the tests are stated in
:class:`RandomDropping`. Which copies are kept: :mod:`expost.selection.drop_law`; the steps of a
selection: :mod:`expost.selection.selector`. :class:`DroppingSelector` is what Algorithms 2 and 3
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.engine import ReleaseRule, Run
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ZCDP, PureDP, RenyiDP, zero_like
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact, exact_normal
from expost.selection.candidate import check_flag, check_goal, group_equal, level_places
from expost.selection.drop_law import (
    ChargeKind,
    DropLaw,
    probability_nothing,
    pure_levels,
    pure_rates,
)
from expost.selection.renyi_charges import Problem
from expost.selection.renyi_table import (
    Rated,
    RenyiTable,
    check_weights,
    price_renyi,
    rate_renyi,
    renyi_problem,
)
from expost.selection.selector import Candidates, Draws, Selector, require_kind

_SMALLEST_KEEP_PROBABILITY = 1e-4  # that a draw keeps something


class DroppingSelector(Selector):
    """Base class of selectors that keep copies by random dropping.

    The settings are fields of the subclasses and documented there. ``earlier_only`` is True if a
    winner competes only with the candidates before it (Algorithm 2).
    """

    overhead: Number
    minimum_drop_level: int
    delta: Number | None
    order: Number | tuple[Number, ...] | None
    method: str
    weights: tuple[float, ...] | None
    allow_nothing: bool
    earlier_only: ClassVar[bool]

    def _check_settings(self) -> None:
        """Refuse settings that are not valid, before any candidate is known."""
        exact_normal(self.overhead, "overhead")
        check_goal(self.at_least)
        count_of(self.minimum_drop_level, "minimum_drop_level", at_least=0)
        if self._claim() is None and self.weights is not None:
            raise InvalidInput(
                "weights",
                self.weights,
                "weights are for Rényi charges only: give delta or order, too",
            )

    def _claim(self) -> ChargeKind | None:
        """Return the Rényi claim that the settings ask for, or None for pure DP."""
        return ChargeKind.check(self.delta, self.order, self.method)

    def _elementary(self) -> str:
        """Return what else a charge may rest on: the least of what is proven is charged."""
        if self.order is not None:
            return ", at this or a larger order, or plain composition"
        return ", or by profiles (T3), or plain composition" if self.method == "sharp" else ""

    def _rated(self, candidates: Candidates) -> tuple[Rated, ChargeKind]:
        """Return the groups with curves and drop rates under Rényi DP, and the claim."""
        claim = self._claim()
        if claim is None:
            raise InvalidInput(
                "delta", None, "give delta for a stand-alone (ε̃, δ) claim, or order for a filter"
            )
        require_kind(self._check(candidates), type(self).__name__, RenyiDP, ZCDP, PureDP)
        weights = None if self.weights is None else check_weights(self.weights, candidates)
        return rate_renyi(
            group_equal(candidates, weights, in_order=self.earlier_only), claim
        ), claim

    def renyi_problem(self, candidates: Candidates) -> Problem:
        """Return the problem that the Rényi pricing solves. No data is read."""
        return renyi_problem(self, candidates, *self._rated(candidates))

    def analyse(self, candidates: Candidates) -> RenyiTable:
        """Return the Rényi charges with the order and shift behind each. No data is read."""
        rated, claim = self._rated(candidates)
        return price_renyi(candidates, rated, claim, self.renyi_problem(candidates))

    def drop_law(self, candidates: Candidates) -> DropLaw:
        """Return the law of what is kept: exact, public, and the same for every data set."""
        overhead = exact(self.overhead, "overhead")
        if self._claim() is None:
            groups = tuple(group_equal(candidates))
            return DropLaw(groups, pure_rates(groups), overhead, self.minimum_drop_level)
        rated, _ = self._rated(candidates)
        rates = tuple(rate * rated.step for rate in rated.rates)
        return DropLaw(rated.groups, rates, overhead * rated.step, self.minimum_drop_level)


@dataclass(frozen=True)
class RandomDropping(DroppingSelector):
    """Keep each copy of candidate i with probability e^{−γ_i·x}, run the kept, release the best.

    One drop level x is drawn for all copies, before any run reads data. It is secret.

    Parameters
    ----------
    overhead : number
        ε′ > 0, the parameter of the drop level. A small overhead costs less but drops more.
    at_least : float, optional
        The score that a run must reach to pass. The kept runs are then made in descending order of
        their public priority. The winner is the first that passes; if none passes, the first that
        did not fail. This has the same law as running everything with the score
        (passed?, priority), without running everything.
    allow_nothing : bool
        False (default): draw again until something is kept. This conditions on an event that does
        not depend on data; when nothing is kept, nothing has run. True: the outcome may be
        "nothing", the paper's ⊥.
    minimum_drop_level : int
        k₀: draw k₀ + Geom instead of Geom. The charges still hold, and about e^{−γ·h·k₀} times as
        many runs are made.
    max_runs : int, optional
        Refuse, when pricing, a list with more copies than this. There is no limit on the runs
        *drawn*, because such a limit would invalidate the theorem.
    delta : number, optional
        δ of a stand-alone ex-post (ε̃, δ) claim under Rényi DP.
    order : number or tuple of numbers, optional
        Orders of Rényi charges that a Rényi filter can add. Pass ``delta`` or ``order``, not both;
        without them the charges are pure.
    method : {"sharp", "closed-form", "paper"}
        The bound under Rényi DP. ``sharp`` is the least of all that are proven, ``paper`` the bound
        as published.
    weights : tuple of float, optional
        A public prior over the candidates under Rényi DP, by default proportional to their keep
        probabilities. A larger weight gives a smaller charge.

    Notes
    -----
    *Pure DP* (``theorem:max-score``). x = k ~ Geom(e^{−ε′}). The selection is ex-post ε̃-DP with
    ε̃(i) = ε_i + γ_i + ε′ for drop rates γ_i ≥ ε_i. By default γ_i = ε_i, so the charge is
    2ε_i + ε′. ε̃(nothing) = 0, because then nothing has run. Sums are exact and rounded up. Tests:
    ``tests/theorems/test_pure.py``.

    *Rényi DP* (``theorem:max-score-rdp``, sharpened in docs/theory.md). Guarantees are RenyiDP,
    ZCDP or PureDP, with or without a privacy profile. x is a multiple of a rational step h, so the
    same exact coins are used. Charges are the least of what is proven, rounded up. Tests:
    ``tests/theorems/test_renyi.py``, ``tests/theorems/test_profile_charges.py``.

    *Assumptions.* Each candidate keeps its guarantee, calls are independent, and the score depends
    on the output alone.
    """

    overhead: Number
    at_least: float | None = None
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

    def _price(self, candidates: Candidates) -> Charges:
        """Charge ε_i + γ_i + ε′ under pure DP, or by the Rényi analysis; rounded up."""
        self._check_copies(sum(candidate.repeats for candidate in candidates))
        if self._claim() is not None:
            return self.analyse(candidates).charges
        require_kind(candidates, "RandomDropping (without delta or order)", PureDP)
        groups = group_equal(candidates)
        overhead = exact(self.overhead, "overhead")
        levels = pure_levels(groups, [rate + overhead for rate in pure_rates(groups)])
        return Charges(tuple(levels), level_places(groups, len(candidates)), zero_like(levels[0]))

    def _check_copies(self, copies: int) -> None:
        """Refuse a list with more copies than ``max_runs``; the number of copies is public."""
        if self.max_runs is not None and copies > self.max_runs:
            raise InvalidInput(
                "max_runs",
                self.max_runs,
                f"the candidates make {copies} copies in all; give fewer, or a larger max_runs",
            )

    def _theorem(self, candidates: Candidates) -> str:
        """Return the label of the theorem for pure or Rényi DP."""
        if self._claim() is None:
            return "theorem:max-score"
        if self.method == "paper":
            return "theorem:max-score-rdp"
        return f"theorem:max-score-rdp, sharpened (T1, {self.method}){self._elementary()}"

    def _draw(self, candidates: Candidates, randomness: Randomness) -> Draws:
        """Draw the kept copies; unless ``allow_nothing``, draw again until something is kept."""
        law = self.drop_law(candidates)
        if not self.allow_nothing:
            self._check_something_is_kept(law)
        while True:
            kept = law.draw(candidates, randomness)
            if kept or self.allow_nothing:
                return {"kept": kept}

    def _check_something_is_kept(self, law: DropLaw) -> None:
        """Refuse settings under which almost no draw keeps anything; uses public numbers only."""
        rates, copies = [float(rate) for rate in law.rates], [group.copies for group in law.groups]
        _, nothing = probability_nothing(float(law.overhead), rates, copies, law.minimum)
        if 1 - nothing < _SMALLEST_KEEP_PROBABILITY:
            raise InvalidInput(
                "overhead",
                self.overhead,
                "something would be kept in fewer than one draw in "
                f"{round(1 / _SMALLEST_KEEP_PROBABILITY)}; raise the overhead or the repeats, "
                "lower minimum_drop_level, or set allow_nothing=True",
            )

    def _runs(self, candidates: Candidates, charges: Charges, draws: Draws) -> Sequence[Run]:
        """Return the kept copies in the order of the list, or by priority if there is a goal."""
        kept = draws["kept"]
        if self.at_least is not None:
            rank = _priorities(candidates, charges)
            kept = sorted(kept, key=lambda index: (-rank[index], index))
        return [Run(index, candidates[index].call) for index in kept]

    def _rule(self, candidates: Candidates) -> ReleaseRule:
        """Release the best run, or with a goal the first that passes."""
        if self.at_least is None:
            return ReleaseRule.BEST
        # Checked here, before anything is reserved or drawn.
        if len({candidate.priority is None for candidate in candidates}) > 1:
            raise InvalidCandidate("priority", None, "give a priority to every candidate or none")
        return ReleaseRule.FIRST_PASS_OR_FIRST


def _priorities(candidates: Candidates, charges: Charges) -> list[Fraction]:
    """Return the public priorities: those given, or minus the charge (cheapest first)."""
    given = [
        exact(candidate.priority, "priority")
        for candidate in candidates
        if candidate.priority is not None
    ]
    if given:
        return given
    level_rank = [-level.size for level in charges.levels]
    return [level_rank[level] for level in charges.level_of]
