"""What a tuning job may cost: a function of its settings, its columns and its number of rows.

:func:`price_job` reads no row and asks no budget. ``expost.tune``, ``plan_job`` and a server plan
by the same function, so what a server shows is what the job is charged by. Tests:
``tests/tuning/test_pricing.py``, ``tests/tuning/test_every_budget.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.charges import weaknesses
from expost.privacy.guarantees import ZCDP, ApproxDP, PureDP
from expost.selection.candidate import Candidate
from expost.tuning.candidates import Hooks, make_candidates
from expost.tuning.forecast import Forecast, forecast
from expost.tuning.model import Recipe
from expost.tuning.rows import JobRows, rows_of_head
from expost.tuning.settings import Settings
from expost.tuning.several_ways import EVERY_ORDER, plan_ways
from expost.tuning.tables import Table
from expost.tuning.timing import Pace


def price_job(
    settings: Settings, head: Table, places: int, order: tuple[float, ...] | None = None
) -> Forecast:
    """Return the plan of a job on a table with these columns and so many places.

    ``head`` has no rows, and ``order`` says how the budget is charged (:func:`order_for`). How long
    trainings take is not measured.
    """
    rows = rows_of_head(settings.data, head, places)
    return plan_rows(settings, rows, Recipe.of(settings, rows.schema, rows.shape), order)


def plan_rows(
    settings: Settings,
    rows: JobRows,
    recipe: Recipe,
    order: tuple[float, ...] | None,
    *,
    hooks: Hooks | None = None,
    device: str = "cpu",
    rehearsed: Callable[[Sequence[Candidate]], Pace] = lambda candidates: Pace(0.0, 0.0),
) -> Forecast:
    """Return the plan of a job; of its rows only public numbers and public rows are used.

    ``rehearsed`` says how long the candidates take.
    """
    trained = replace(recipe, features=None)  # DP-SGD trains on the encoded rows

    def by_attempts(settings: Settings) -> Forecast:
        """Plan the attempts of Algorithm 2 (or 3) over DP-SGD."""
        candidates = make_candidates(
            settings, trained, rows.places, hooks or Hooks(), device, rows.shape
        )
        pace = rehearsed(candidates)
        return forecast(settings, candidates, rows.places, order, rows.score_places, pace)

    planned = plan_ways(settings, recipe, rows, order, by_attempts)
    total = rows.places if rows.public else rows.places + rows.score_places
    left_out = planned.left_out
    if left_out:
        limit = f"privacy.max_epsilon = {settings.privacy.max_epsilon:g}"
        left_out = f"To cost at most {limit}: {left_out}."
    return replace(planned, left_out=left_out, warnings=tuple(weaknesses_of(planned, total)))


def weaknesses_of(planned: Forecast, rows: int) -> list[str]:
    """Return what is weak about the most expensive model that an attempt may release.

    The ε of charges at Rényi orders depends on the order that the ledger fixed; it is not judged.
    """
    worst = 0.0
    if planned.order is None:  # in (ε, δ), or in ρ
        worst = max(planned.epsilon(step.charges.worst_case) for step in planned.steps)
    return weaknesses(ApproxDP(worst, planned.delta), rows)


def order_for(settings: Settings, ledger: Any, budget: str | None) -> tuple[float, ...] | None:
    """Return the Rényi orders to charge at, if the ledger (or the settings) ask for that."""
    order = settings.privacy.order
    if ledger is None:
        return order
    return order_within(settings, ledger.standing(budget).filter.budget)


def order_within(settings: Settings, terms: Any) -> tuple[float, ...] | None:
    """Return the Rényi orders to charge at in a budget with these terms; None for (ε, δ)."""
    order, kind = settings.privacy.order, terms.kind
    if kind == "pure":
        raise InvalidInput(
            "ledger",
            "a pure budget",
            "tuning is charged in (ε, δ), in zCDP or at Rényi orders; give an approx, a zcdp or a "
            "renyi budget, opened with a δ (expost ledger create FILE --name NAME --epsilon E "
            f"--delta D --neighbours {settings.data.relation})",
        )
    nothing = ZCDP if kind == "zcdp" else PureDP
    terms.coordinates(nothing(0.0, settings.data.relation))  # refuses another relation
    if kind == "approx":
        if order is not None:
            raise InvalidInput(
                "privacy.order", order, "the ledger's budget is in (ε, δ): leave the order out"
            )
        return None
    if kind == "zcdp":
        if order:
            raise InvalidInput(
                "privacy.order", order, "the ledger's budget is in zCDP: leave the order out"
            )
        return EVERY_ORDER
    wanted = tuple(terms.orders)
    if order and not set(wanted) <= set(order):
        raise InvalidInput(
            "privacy.order",
            order,
            f"the ledger's budget is at the orders {list(wanted)}; leave it out to use those",
        )
    return order or wanted
