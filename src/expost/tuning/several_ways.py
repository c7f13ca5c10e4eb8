"""Several ways to one bar: trainings that stop when they pass, then attempts with DP-SGD.

Every way is a request of its own (:mod:`expost.tuning.run_attempts`): it is made only if those
before it missed the bar, and the costs of those that were made add up (docs/theory.md, "Attempts in
sequence"). ε, δ and 1 − confidence are shared among the ways beforehand, so that together they
never cost more than ``privacy.max_epsilon``. Everything here is computed from public numbers.

**Order.** Progressive training on public features comes first: a pass costs the steps that were
made, and it is the cheapest way on every data set that was measured (docs/least-epsilon.md). If it
reaches its limit, a second path follows that regularises less. Attempts with DP-SGD come last, if
the job has a grid: their misses cost little, but a pass costs about twice a level. For a network,
the ways before its attempts together may cost at most ``SHARE`` of what the attempts are expected
to cost at the bar that is easiest for them.

Tests: ``tests/tuning/test_several_ways.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from expost.errors import InvalidInput
from expost.rationals import charge_text, round_down
from expost.tuning.model import Recipe
from expost.tuning.model_settings import LINEAR, ModelSettings
from expost.tuning.noise_reduction import (
    MOMENTS,
    PROGRESSIVE,
    Places,
    Way,
    least_level,
    levels_up_to,
    no_useful_level,
    step_of,
    usable_levels,
)
from expost.tuning.pace import Pace
from expost.tuning.rows import JobRows
from expost.tuning.run_attempts import OverTheLimit, PlannedAttempt, Step
from expost.tuning.settings import Settings

if TYPE_CHECKING:
    from expost.tuning.forecast import Forecast

SECOND_SCALE = 4.0
"""The scale of the second path of progressive training, which regularises less."""

FIRST_PART = 0.8
"""The part of δ and of 1 − confidence that the first of two paths has."""

FIRST_LIMIT = 0.6
"""The part of the largest ε that the first of two paths may cost."""

SHARE = 0.25
"""For a network: the most that the ways before its attempts may cost, as a share of what the
attempts are expected to cost where they cost least."""

DELTA_SHARE = 0.1
"""For a network: the part of δ and of 1 − confidence that the ways before its attempts have."""

LINEAR_SHARE = 0.5
"""For a linear model with attempts: the same part, and the part of the largest ε."""


@dataclass(frozen=True)
class Plan:
    """The ways of a job and the part of δ (and of 1 − confidence) that is left for attempts."""

    ways: tuple[Way, ...]
    left: float


def plan_ways(
    settings: Settings,
    recipe: Recipe,
    rows: JobRows,
    order: tuple[float, ...] | None,
    by_attempts: Callable[[Settings], Forecast],
) -> Forecast:
    """Return the plan of a job: attempts, trainings that stop when they pass, or both.

    Parameters
    ----------
    settings : Settings
        What is asked.
    recipe : Recipe
        Description of the model.
    rows : JobRows
        Their public numbers are used and, if they are public, the scoring rows.
    order : tuple of float or None
        Rényi orders to charge at; paths are charged in (ε, δ) only.
    by_attempts : callable
        Plans the attempts with DP-SGD of settings whose δ and confidence are their share.
    """
    if settings.model.training == "dp-sgd":
        return by_attempts(settings)
    if order is not None:
        raise InvalidInput(
            "privacy.order",
            list(order),
            f"training = {settings.model.training!r} is charged in (ε, δ): use an (ε, δ) budget, "
            "or training = 'dp-sgd'",
        )
    places = Places(
        rows.places, rows.score_places, int(np.prod(rows.X.shape[1:])), settings.data.relation
    )
    attempts = None
    if settings.search.settings:
        part = DELTA_SHARE if recipe.kind not in LINEAR else LINEAR_SHARE
        try:
            attempts = by_attempts(_with_part(settings, 1 - Fraction(part)))
        except OverTheLimit:
            if recipe.kind not in LINEAR:
                raise
    plan = ways_of(settings, recipe, places, rows.public, attempts)
    if not plan.ways and attempts is None:
        raise no_useful_level(settings.goal, places, settings.privacy.limit)
    if not plan.ways:  # the attempts then have the whole δ and the whole 1 − confidence
        return by_attempts(settings)
    return _joined(settings, recipe, rows, places, plan, attempts)


def _with_part(settings: Settings, part: Fraction) -> Settings:
    """Return the settings of the attempts: a part of δ, of 1 − confidence and of a given limit."""
    goal = replace(settings.goal, confidence=1 - float(part) * (1 - settings.goal.confidence))
    privacy = replace(settings.privacy, delta=share_of(settings.privacy.delta, part))
    if privacy.max_epsilon is not None:  # the ways before have the other part (see ways_of)
        privacy = replace(privacy, max_epsilon=(1 - LINEAR_SHARE) * privacy.max_epsilon)
    return replace(settings, goal=goal, privacy=privacy)


def share_of(delta: float, part: float | Fraction) -> float:
    """Return a part of δ, rounded down, so that the parts add up to at most δ."""
    return round_down(Fraction(delta) * Fraction(part))


def ways_of(
    settings: Settings,
    recipe: Recipe,
    places: Places,
    public: bool,
    attempts: Forecast | None,
) -> Plan:
    """Return the ways of a job before its attempts, in the order in which they are tried."""
    network = recipe.kind not in LINEAR
    part = 1.0 if attempts is None else DELTA_SHARE if network else LINEAR_SHARE
    most = settings.privacy.limit
    if settings.search.epsilons:  # the highest level that the grid allows
        most = min(most, settings.search.epsilons[-1])
    if attempts is not None:
        most = min(most, LINEAR_SHARE * settings.privacy.limit)
        if network:
            most = min(most, SHARE * min(row.epsilon_mean for row in attempts.reach))
    linear = linear_recipe(recipe)
    width = None if linear.features is None else linear.features.width(places.features)
    goal = settings.goal

    def usable(levels: Sequence[float], confidence: float) -> tuple[float, ...]:
        """Return the levels at which a look can pass."""
        return tuple(levels) if public else usable_levels(levels, goal, places, confidence)

    ways = list_ways(
        settings.model,
        places,
        usable,
        delta=settings.privacy.delta,
        confidence=goal.confidence,
        classes=recipe.class_count,
        width=width,
        part=part,
        most=most,
    )
    return Plan(ways, 1 - part)


def list_ways(
    model: ModelSettings,
    places: Places,
    usable: Callable[[Sequence[float], float], tuple[float, ...]],
    *,
    delta: float,
    confidence: float,
    classes: int | None,
    width: int | None,
    part: float = 1.0,
    most: float,
) -> tuple[Way, ...]:
    """Return the ways before attempts, in the order in which they are tried.

    Parameters
    ----------
    model : ModelSettings
        Training, levels and norm bound.
    places : Places
        Public numbers of rows.
    usable : callable
        Takes levels and a confidence; returns the levels at which a look can pass.
    delta, confidence : float
        Of the whole job.
    classes : int or None
        Number of classes; None for a regression.
    width : int or None
        Number of features of progressive training; None: there is none.
    part : float
        The part of δ and of 1 − confidence that the ways have; below 1 attempts follow.
    most : float
        The most that all ways together may cost.
    """
    if width is None or model.training == MOMENTS:
        plan = [(MOMENTS, 1.0, 1.0, 1.0)]
    elif part < 1:
        plan = [(PROGRESSIVE, 1.0, 1.0, 1.0)]
    else:
        plan = [
            (PROGRESSIVE, 1.0, FIRST_PART, FIRST_LIMIT),
            (PROGRESSIVE, SECOND_SCALE, 1 - FIRST_PART, 1 - FIRST_LIMIT),
        ]
    outputs = 1 if classes is None or classes == 2 else classes
    ways = []
    left = Fraction(most)
    for kind, scale, share, limit in plan:
        # Rounded down: the tops of all ways add up to at most the limit.
        top = round_down(min(left, Fraction(most) * Fraction(limit)))
        left -= Fraction(top)
        if model.levels is not None:
            levels = tuple(level for level in model.levels if level <= top)
        elif kind == MOMENTS:
            levels = levels_up_to(top)
        else:
            levels = levels_up_to(top, least_level((width or 1) * outputs, places.training))
        own = 1 - part * share * (1 - confidence)
        own_delta = share_of(delta, Fraction(part) * Fraction(share))
        looks = usable(levels, own)
        if looks and looks[0] <= top:  # else with few scoring rows no look could pass
            ways.append(Way(kind, looks, own_delta, own, scale, model.norm_bound))
    return tuple(ways)


def _joined(
    settings: Settings,
    recipe: Recipe,
    rows: JobRows,
    places: Places,
    plan: Plan,
    attempts: Forecast | None,
) -> Forecast:
    """Return one forecast of all requests; the first is charged with the whole δ."""
    from expost.tuning.forecast import Forecast

    linear = linear_recipe(recipe)
    shown = (rows.score_X, rows.score_y) if rows.public else None
    steps: list[Step] = []
    for number, way in enumerate(plan.ways):
        charged = settings.privacy.delta if number == 0 else 0.0
        steps.append(step_of(way, linear, settings.goal, places, shown, charged))
    if attempts is not None:
        steps += [uncharged(step) for step in attempts.steps]
    reasons = tuple(reasons_of(plan, places, rows.public, attempts))
    if attempts is None:
        return Forecast(
            tuple(steps),
            settings.privacy.delta,
            Pace(0.0, 0.0),
            scoring_rows=places.scoring,
            reasons=reasons,
        )
    return replace(attempts, steps=tuple(steps), delta=settings.privacy.delta, reasons=reasons)


def uncharged(step: Step) -> Step:
    """Return an attempt that is charged without δ, which the first request was charged with."""
    assert isinstance(step.selector, PlannedAttempt)
    selector = replace(step.selector, charged_delta=0.0).remember(step.candidates)
    return replace(step, selector=selector, charges=selector.charges(step.candidates))


def linear_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a linear model on the same rows and with the same target."""
    if recipe.kind in LINEAR:
        return recipe
    if recipe.target_bounds is not None:
        return replace(recipe, kind="linear", loss="squared", input_shape=None, factory=None)
    return replace(recipe, kind="softmax", loss="softmax", input_shape=None, factory=None)


def reasons_of(plan: Plan, places: Places, public: bool, attempts: Forecast | None) -> list[str]:
    """Return sentences that say what is tried, in which order, and why."""
    sentences = []
    for number, way in enumerate(plan.ways):
        name = {
            PROGRESSIVE: "Progressive training",
            MOMENTS: "Least squares from second moments with noise reduction",
        }[way.kind]
        if number:
            name = "If that misses: the same with less regularisation"
        sentences.append(
            f"{name}: {len(way.epsilons)} looks from ε = {way.epsilons[0]:.3g} to "
            f"{way.epsilons[-1]:.3g}; a pass costs the steps that were made."
        )
    if attempts is not None:
        cheapest = attempts.epsilon(attempts.charges[0])
        sentences.append(
            f"Then {attempts.attempts} attempts with DP-SGD: a pass costs "
            f"{charge_text(cheapest, 3)} or more."
        )
    if not public:
        sentences.append(
            f"Scored on {places.scoring} held-out rows by noisy thresholds, at no further cost."
        )
    return sentences
