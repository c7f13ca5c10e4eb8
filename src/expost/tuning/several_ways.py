"""Several ways to one bar: noise reduction at several regularisations, then attempts with DP-SGD.

Every way is a request of its own (:mod:`expost.tuning.run_attempts`): it is made only if those
before it missed the bar, and the costs of those that were made add up (docs/theory.md, "Attempts in
sequence"). δ and 1 − confidence are shared among the ways beforehand. Everything here is computed
from public numbers.

**Order.** By the price of a miss. Least squares by second moments comes first: its ridge follows
the noise, so it is a good model at low levels already. It ends where regularised minimisation is
usually cheaper, at places·μ = ``END`` per output; a miss costs that level. Then comes noise
reduction with a small regularisation, which needs more and reaches more. The last way has no such
end, unless attempts with DP-SGD follow: their misses cost little, but a pass costs about twice a
level. For a network, all noise reduction together may cost at most ``SHARE`` of what its
attempts are expected to cost at the bar that is easiest for them, so that no bar that only the
network reaches costs much more. A way whose first level costs more than its part of that is left
out: with few scoring rows low levels cannot be judged.

A linear regression has one way, by second moments.

Tests: ``tests/tuning/test_several_ways.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.gaussian_profile import gaussian_mu
from expost.rationals import charge_text, round_down
from expost.tuning.model import Recipe
from expost.tuning.model_settings import LINEAR, ModelSettings
from expost.tuning.noise_reduction import (
    LEVELS,
    Places,
    Way,
    levels_up_to,
    margin_of_noisy_scores,
    margin_of_threshold,
    overhead_for,
    step_of,
    usable_levels,
)
from expost.tuning.pace import Pace
from expost.tuning.rows import JobRows
from expost.tuning.run_attempts import PlannedAttempt, Step
from expost.tuning.settings import Settings

if TYPE_CHECKING:
    from expost.tuning.forecast import Forecast

LADDER = (None, 0.003, 0.0005)
"""The regularisations that ``training = "auto"`` tries; None: second moments."""

WIDE = 1000
"""From this number of features on, second moments are left out: there would be more than half a
million of them, which drowns them in noise and takes long."""

_LEAST_OUTPUTS = 5  # fewer classes are not separated with less noise
END = 60.0
"""places·μ per output at which a way ends if another one follows, times 1, 5, 25 …."""

SHARE = 0.08
"""For a network: the most that noise reduction may cost, as a share of what its attempts are
expected to cost where they cost least."""

DELTA_SHARE = 0.1
"""For a network: the part of δ and of 1 − confidence that noise reduction has."""

LINEAR_SHARE = 0.5
"""For a linear model with attempts: the same part."""


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
    """Return the plan of a job: attempts, noise reduction, or both.

    Parameters
    ----------
    settings : Settings
        What is asked.
    recipe : Recipe
        Description of the model.
    rows : JobRows
        Their public numbers are used and, if they are public, the scoring rows.
    order : tuple of float or None
        Rényi orders to charge at; noise reduction is charged in (ε, δ) only.
    by_attempts : callable
        Plans the attempts with DP-SGD of settings whose δ and confidence are their share.
    """
    if settings.model.training == "dp-sgd":
        return by_attempts(settings)
    if order is not None:
        raise InvalidInput(
            "privacy.order",
            list(order),
            "noise reduction is charged in (ε, δ): use an (ε, δ) budget, or training = 'dp-sgd'",
        )
    places = Places(
        rows.places, rows.score_places, int(np.prod(rows.X.shape[1:])), settings.data.relation
    )
    searched = bool(settings.search.settings)
    attempts = None
    if searched and not _any_level(settings, None if rows.public else places.scoring):
        return by_attempts(settings)
    if searched:
        part = DELTA_SHARE if recipe.kind not in LINEAR else LINEAR_SHARE
        attempts = by_attempts(_with_part(settings, 1 - Fraction(part)))
    plan = ways_of(settings, recipe, places, rows.public, attempts)
    if not plan.ways:  # the attempts then have the whole δ and the whole 1 − confidence
        return by_attempts(settings)
    return _joined(settings, recipe, rows, places, plan, attempts)


def _with_part(settings: Settings, part: Fraction) -> Settings:
    """Return the settings with a part of δ and of 1 − confidence."""
    goal = replace(settings.goal, confidence=1 - float(part) * (1 - settings.goal.confidence))
    return replace(
        settings,
        goal=goal,
        privacy=replace(settings.privacy, delta=share_of(settings.privacy.delta, part)),
    )


def share_of(delta: float, part: float | Fraction, among: int = 1) -> float:
    """Return a part of δ, rounded down, so that the parts add up to at most δ."""
    return round_down(Fraction(delta) * Fraction(part) / among)


def ways_of(
    settings: Settings,
    recipe: Recipe,
    places: Places,
    public: bool,
    attempts: Forecast | None,
) -> Plan:
    """Return the ways of noise reduction of a job, in the order in which they are tried."""
    network = recipe.kind not in LINEAR
    part = 1.0 if attempts is None else DELTA_SHARE if network else LINEAR_SHARE
    limit = np.inf
    if network and attempts is not None:
        limit = SHARE * min(row.epsilon_mean for row in attempts.reach)
    ways = list_ways(
        _with_levels(settings),
        places,
        public,
        delta=settings.privacy.delta,
        confidence=settings.goal.confidence,
        classes=recipe.class_count,
        part=part,
        limit=limit,
    )
    return Plan(ways, 1 - part)


def _with_levels(settings: Settings) -> ModelSettings:
    """Return the model's settings with levels up to the highest one of ``search``, if given."""
    model, given = settings.model, settings.search.epsilons
    if model.levels is not None or not given:
        return model
    return replace(model, levels=levels_up_to(given[-1]))


def _any_level(settings: Settings, scoring_rows: int | None) -> bool:
    """Return whether noise reduction can judge a level that the search allows."""
    try:
        usable_levels(_with_levels(settings).levels or LEVELS, scoring_rows)
    except InvalidInput:
        return False
    return True


def list_ways(
    model: ModelSettings,
    places: Places,
    public: bool,
    *,
    delta: float,
    confidence: float,
    classes: int | None,
    part: float = 1.0,
    limit: float = np.inf,
) -> tuple[Way, ...]:
    """Return the ways of noise reduction, in the order in which they are tried.

    Parameters
    ----------
    model : ModelSettings
        Training, regularisations, levels and norm bound.
    places : Places
        Public numbers of rows.
    public : bool
        Whether public rows score.
    delta, confidence : float
        Of the whole job.
    classes : int or None
        Number of classes; None for a regression.
    part : float
        The part of δ and of 1 − confidence that noise reduction has; below 1 attempts follow.
    limit : float
        The most that all ways together may cost.
    """
    followed = part < 1
    levels = usable_levels(model.levels or LEVELS, None if public else places.scoring)
    if model.loss == "squared":
        chosen: tuple[float | None, ...] = (None,)
    elif model.training == "noise-reduction":
        chosen = model.regularisation or ladder_of(places.features)[:1]
    else:
        ladder = ladder_of(places.features)
        chosen = model.regularisation or (ladder[:1] if followed else ladder)
    each_delta = share_of(delta, part, len(chosen))
    each_confidence = 1 - part / len(chosen) * (1 - confidence)
    ways = []
    for place, regularisation in enumerate(chosen):
        kept = levels
        if followed or place < len(chosen) - 1:
            rank = rank_of(chosen, place)
            kept = levels_before_another(
                levels, each_delta, rank, classes, places.training, limit / len(chosen)
            )
        if kept:
            ways.append(
                Way(regularisation, kept, each_delta, each_confidence, norm_bound=model.norm_bound)
            )
    return tuple(ways)


def ladder_of(features: int) -> tuple[float | None, ...]:
    """Return the regularisations that suit a number of features, in the order of trying."""
    return LADDER[1:] if features >= WIDE else LADDER


def rank_of(chosen: Sequence[float | None], place: int) -> int:
    """Return how far a way goes: second moments are cheap early, regularisation needs more."""
    return place + (chosen[0] is not None)


def levels_before_another(
    levels: Sequence[float],
    delta: float,
    rank: int,
    classes: int | None,
    places: int,
    limit: float = np.inf,
) -> tuple[float, ...]:
    """Return the levels of a way that is followed by another one; none if all exceed ``limit``.

    Parameters
    ----------
    levels : sequence of float
        All levels, increasing.
    delta : float
        The way's δ.
    rank : int
        How far it goes (:func:`rank_of`).
    classes : int or None
        Number of classes, None for a regression.
    places : int
        Number of training rows, in public.
    limit : float
        The largest ε.
    """
    end = END * 5**rank * max(_LEAST_OUTPUTS, classes or 1) / places
    share = delta / len(levels)
    affordable = tuple(each for each in levels if each <= limit)
    return tuple(each for each in affordable if gaussian_mu(each, share) <= end) or affordable[:1]


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
        steps += [uncharged(each) for each in attempts.steps]
    reasons = tuple(reasons_of(settings, plan, places, rows.public, attempts))
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


def reasons_of(
    settings: Settings, plan: Plan, places: Places, public: bool, attempts: Forecast | None
) -> list[str]:
    """Return sentences that say what is tried, in which order, and why."""
    found = []
    for number, way in enumerate(plan.ways):
        name = (
            "least squares by second moments"
            if way.regularisation is None
            else f"regularisation {way.regularisation:g}"
        )
        why = (
            "first, because a miss costs least"
            if number == 0 and len(plan.ways) + (attempts is not None) > 1
            else "if that misses"
            if number
            else "one training, and a pass costs its level alone"
        )
        found.append(
            f"Noise reduction, {name}: {len(way.epsilons)} levels from {way.epsilons[0]:.3g} to "
            f"{way.epsilons[-1]:.3g}; {why}."
        )
    if attempts is not None:
        cheapest = attempts.epsilon(attempts.charges[0])
        found.append(
            f"Then {attempts.attempts} attempts with DP-SGD: a pass costs "
            f"{charge_text(cheapest, 3)} or more."
        )
    way = plan.ways[-1]
    middle = way.epsilons[len(way.epsilons) // 2]
    if not public and settings.goal.metric == "accuracy":
        threshold = margin_of_threshold(way, places.scoring, middle)
        noisy = margin_of_noisy_scores(way, places.scoring, middle)
        better = "smaller" if threshold <= noisy else "larger"
        found.append(
            f"Scored on {places.scoring} held-out rows by one noisy threshold (ε′ = "
            f"{overhead_for(places.scoring):.3g}) at no further cost: at ε = {middle:.3g} a model "
            f"must clear the bar by {threshold:.3g}, {better} than the {noisy:.3g} of a noisy "
            "score per level."
        )
    return found
