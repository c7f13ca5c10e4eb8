"""Several strategies to one goal: trainings that stop when they pass, then attempts with DP-SGD.

Every strategy is a request of its own (:mod:`expost.tuning.runs.run_attempts`): it is made only if
those before it missed the goal, and the costs of those that were made add up (docs/theory.md,
"Attempts in sequence"). ε, δ and 1 − confidence are shared among the strategies beforehand, so that
together they never cost more than ``privacy.max_epsilon``. Everything here is computed from public
numbers.

**Order.** Progressive training on public features comes first: a pass costs the steps that were
made, and it is the cheapest strategy on every data set that was measured (docs/least-epsilon.md).
If it reaches its limit, a second path follows that regularises less. A regression has second
moments as its other path: they need less ε for few columns, and where columns are nearly dependent
they get further (flights: docs/noise-reduction.md). A network is trained progressively after a
linear model, and once more with other steps. Attempts with DP-SGD come last, if the job has a grid:
their misses cost little, but a pass costs about twice a level. A network whose number of rows is
secret, or that has a grid of architectures or a device of its own, is trained by attempts alone;
the linear model before them may cost at most ``SHARE`` of what they are expected to cost at the
goal that is easiest for them.

**Price.** :func:`price_job` reads no row and asks no budget. ``expost.tune``, ``plan_job`` and a
server plan by the same function, so what a server shows is what the job is charged by.

Tests: ``tests/tuning/test_strategies.py``, ``tests/tuning/test_pricing.py``,
``tests/tuning/test_every_budget.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np

from expost.errors import InvalidInput
from expost.privacy.charges import weaknesses
from expost.privacy.guarantees import ZCDP, ZERO_OUT, ApproxDP, PureDP
from expost.rationals import charge_text, round_down
from expost.selection.above_threshold import PlannedAttempt
from expost.selection.candidate import Candidate
from expost.training.progressive_modules import ModuleTraining
from expost.tuning.model.released_model import Recipe
from expost.tuning.plan.job_plan import JobPlan, plan_search
from expost.tuning.plan.rehearsal import Pace, check_network, made_up
from expost.tuning.request.settings import ModelSettings, Settings
from expost.tuning.request.tune_request import LINEAR
from expost.tuning.rows.job_rows import JobRows, rows_of_head
from expost.tuning.rows.job_tables import Table
from expost.tuning.runs.candidates import Hooks, make_candidates
from expost.tuning.runs.path_training import (
    GROWTH,
    LEAST_OF_MOMENTS,
    MOMENTS,
    PROGRESSIVE,
    Concentrated,
    Places,
    PublicRows,
    PublicScore,
    Strategy,
    least_level,
    levels_up_to,
    no_useful_level,
    step_of,
    tell_step,
    usable_levels,
)
from expost.tuning.runs.run_attempts import OverTheLimit, Step

SECOND_SCALE = 4.0
"""The scale of the second path of progressive training, which regularises less."""

FIRST_PART = 0.9
"""The part of δ and of 1 − confidence that the first of two paths has."""

FIRST_LIMIT = 0.6
"""The part of the largest ε that the first of two paths may cost."""

FEW_FEATURES = 10
"""Regressions on so few columns begin with second moments, and need less ε by them."""

BEFORE_MOMENTS = 0.3
"""The part of the largest ε that progressive training may cost if second moments follow it."""

MANY_MOMENTS = 100
"""Of more columns there are so many second moments that their noise costs more than it gains."""

SHARE = 0.25
"""For a network that is trained by attempts alone: the most that a linear model before them may
cost, as a share of what the attempts are expected to cost where they cost least."""

EVERY_ORDER: tuple[float, ...] = ()
"""Stands for all Rényi orders above 1: charges in zCDP."""

DELTA_SHARE = 0.1
"""The part of δ and of 1 − confidence of a linear model before the attempts of such a network."""

PATH_SHARE = 0.5
"""The same part for what is trained progressively before attempts, and its part of the largest
ε."""

NETWORK = "network"
"""Progressive training of a network, in a list of what is tried."""

BEFORE_NETWORK, NETWORK_PART = 0.1, 0.8
"""What a linear model may cost of the largest ε before progressive training of a network, which has
this part of δ and of 1 − confidence."""

FIRST_NETWORK, SECOND_NETWORK = 0.6, 2.0
"""The part of the first of two trainings of a network, and the number of the other."""

NETWORK_LIMIT = 0.8
"""For a network: the part of the largest ε that its attempts may cost if they are alone, or if they
do not fit into what is left by ``PATH_SHARE``."""


@dataclass(frozen=True)
class StrategyPlan:
    """Strategies of a job, and the part of δ (and of 1 − confidence) left for attempts."""

    strategies: tuple[Strategy, ...]
    left: float


def plan_strategies(
    settings: Settings,
    recipe: Recipe,
    rows: JobRows,
    order: tuple[float, ...] | None,
    by_attempts: Callable[[Settings], JobPlan],
    public: PublicScore | None = None,
    device: str = "cpu",
) -> JobPlan:
    """Return the plan of a job: attempts, trainings that stop when they pass, or both.

    ``public``: how models are scored if not by the goal's metric on the scoring rows.
    """
    network = recipe.kind not in LINEAR
    only_attempts = settings.model.training == "dp-sgd"
    if order == EVERY_ORDER and (only_attempts or (network and settings.search.settings)):
        raise InvalidInput(
            "privacy.order",
            "a budget of zCDP",
            "DP-SGD samples rows and satisfies no zCDP; use an (ε, δ) or a Rényi budget, or a "
            "linear model with another training",
        )
    if only_attempts:
        return by_attempts(settings)
    places = Places(
        rows.places,
        rows.score_places,
        int(np.prod(rows.X.shape[1:])),
        settings.data.relation,
        None if rows.shares is None else rows.most,
    )
    attempts, left_out, module = None, "", None
    if network and not (settings.search.settings and (device != "cpu" or _axes(settings))):
        module = _checked_width(recipe, settings, places)
    by_grid = network and module is None
    if settings.search.settings and order != EVERY_ORDER:
        part = DELTA_SHARE if by_grid else PATH_SHARE
        for limit in [NETWORK_LIMIT] if by_grid else [1 - PATH_SHARE] + [NETWORK_LIMIT] * network:
            try:
                attempts = by_attempts(_with_part(settings, 1 - Fraction(part), limit))
                break
            except OverTheLimit as error:
                share, needed = error.value, error.valid.partition(";")[0]
                left_out = f"no attempts with DP-SGD, which have ε = {share:g} of it: {needed}"
        if attempts is not None:
            left_out = ""
        elif by_grid:
            alone = by_attempts(settings)
            kept = f"; {alone.left_out}" if alone.left_out else ""
            return replace(alone, left_out=f"attempts alone, which need all of it{kept}")
    charged = None
    if order is not None:
        # With attempts there is one order for all requests: their charges add up.
        orders = () if attempts is None else (order, attempts.order)
        charged = Concentrated.of(settings.privacy.delta, rows.public, *orders)
    plan = strategies_of(settings, recipe, places, rows.public, attempts, charged, module=module)
    if not plan.strategies and attempts is None:
        raise no_useful_level(settings.goal, places, settings.privacy.max_epsilon)
    if not plan.strategies:  # the attempts then have the whole δ and the whole 1 − confidence
        return by_attempts(settings)
    if rows.public and public is None:
        public = PublicRows(rows.score_X, rows.score_y)
    planned = _joined(settings, recipe, places, plan, attempts, public)
    if settings.search.settings and order == EVERY_ORDER:
        text = "The grid is left out: DP-SGD satisfies no zCDP, which the budget counts."
        planned = replace(planned, reasons=(*planned.reasons, text))
    return replace(planned, left_out=left_out) if left_out else planned


def _with_part(settings: Settings, part: Fraction, limit: float) -> Settings:
    """Return the settings of the attempts: a part of δ, of 1 − confidence and of the largest ε."""
    goal = replace(settings.goal, confidence=1 - float(part) * (1 - settings.goal.confidence))
    privacy = replace(
        settings.privacy,
        delta=share_of(settings.privacy.delta, part),
        max_epsilon=limit * settings.privacy.max_epsilon,
    )
    return replace(settings, goal=goal, privacy=privacy)


def share_of(delta: float, part: float | Fraction) -> float:
    """Return a part of δ, rounded down, so that the parts add up to at most δ."""
    return round_down(Fraction(delta) * Fraction(part))


def strategies_of(
    settings: Settings,
    recipe: Recipe,
    places: Places,
    public: bool,
    attempts: JobPlan | None,
    charged: Concentrated | None = None,
    *,
    module: int | None = None,
) -> StrategyPlan:
    """Return the strategies of a job before its attempts, in the order in which they are tried.

    ``module``: the number of parameters of a network that can be trained progressively.
    """
    by_grid = recipe.kind not in LINEAR and module is None
    part = 1.0 if attempts is None else DELTA_SHARE if by_grid else PATH_SHARE
    most = _left(settings)
    if settings.search.epsilons and module is None:  # the highest level that the grid allows
        most = min(most, settings.search.epsilons[-1])
    if attempts is not None:
        # Ways that miss cost as much as at worst, so what the attempts may cost is left to them.
        # A little less, as the sum of all requests is rounded up at each of them.
        rest = Fraction(_left(settings)) * (1 - Fraction(1, 2**40))
        rest -= Fraction(attempts.worst_case.epsilon)
        most = min(most, round_down(rest))
        if by_grid:
            most = min(most, SHARE * min(row.epsilon_mean for row in attempts.reach))
    linear = linear_recipe(recipe)
    width = None if linear.features is None else linear.features.width(places.features)
    goal = settings.goal

    def usable(levels: Sequence[float], confidence: float) -> tuple[float, ...]:
        """Return the levels at which a look can pass."""
        if public:
            return tuple(levels)
        return usable_levels(levels, goal, places, confidence, charged)

    if module is not None and settings.model.training == PROGRESSIVE:
        width = None
    strategies = list_strategies(
        settings.model,
        places,
        usable,
        module=module,
        delta=settings.privacy.delta,
        confidence=goal.confidence,
        classes=recipe.class_count,
        width=width,
        part=part,
        most=most,
        charged=charged,
    )
    return StrategyPlan(strategies, 1 - part)


def list_strategies(
    model: ModelSettings,
    places: Places,
    usable: Callable[[Sequence[float], float], tuple[float, ...]],
    *,
    delta: float,
    confidence: float,
    classes: int | None,
    width: int | None,
    module: int | None = None,
    part: float = 1.0,
    most: float,
    charged: Concentrated | None = None,
) -> tuple[Strategy, ...]:
    """Return the strategies before attempts, in the order in which they are tried.

    ``width`` and ``module``: the number of features of a linear model, and of the parameters of a
    network that is trained in the same way after it; None without.
    """
    first, second = (PROGRESSIVE, 1.0), (PROGRESSIVE, SECOND_SCALE)
    if model.training == MOMENTS:
        first = (MOMENTS, 1.0)
    elif model.training == "auto" and classes is None and places.features <= MANY_MOMENTS:
        second = (MOMENTS, 1.0)
        if places.features <= FEW_FEATURES:
            first, second = second, first
    if width is None:  # token ids, which have no features
        plan = []
    elif module is not None:
        plan = [(*first, 1 - NETWORK_PART, BEFORE_NETWORK)]
    elif part < 1 or model.training == MOMENTS:
        plan = [(*first, 1.0, 1.0)]
    else:
        share, limit = (0.5, BEFORE_MOMENTS) if second[0] == MOMENTS else (FIRST_PART, FIRST_LIMIT)
        plan = [(*first, share, limit), (*second, 1 - share, 1 - limit)]
    if module is not None:
        share, limit = (NETWORK_PART, 1 - BEFORE_NETWORK) if plan else (1.0, 1.0)
        rest = 1 - FIRST_NETWORK
        plan += [
            (NETWORK, 1.0, share * FIRST_NETWORK, limit * FIRST_NETWORK),
            (NETWORK, SECOND_NETWORK, share * rest, limit * rest),
        ]
    outputs = 1 if classes is None or classes == 2 else classes
    strategies = []
    least = {
        MOMENTS: LEAST_OF_MOMENTS,
        PROGRESSIVE: least_level((width or 1) * outputs, places.training),
        NETWORK: least_level(module or 1, places.training),
    }
    if charged is not None:  # more looks at a δ that is smaller, so this is a bound
        most_levels = model.levels or levels_up_to(
            charged.rho(most), charged.rho(min(least.values())), charged.growth
        )
        charged = replace(charged, looks=max(1, len(plan)) * len(most_levels))
    growth = GROWTH if charged is None else charged.growth

    def amount(epsilon: float) -> float:
        """Return ε in the unit of the charges."""
        return epsilon if charged is None else charged.rho(epsilon)

    whole = left = Fraction(amount(most))
    for kind, scale, share, limit in plan:
        # Rounded down: the tops of all strategies add up to at most the limit.
        top = round_down(min(left, whole * Fraction(limit)))
        left -= Fraction(top)
        if model.levels is not None:
            levels = tuple(level for level in map(amount, model.levels) if level <= top)
        else:
            levels = levels_up_to(top, amount(least[kind]), growth)
        own = 1 - part * share * (1 - confidence)
        own_delta = share_of(delta, Fraction(part) * Fraction(share))
        looks = usable(levels, own)
        if looks and looks[0] <= top:  # else with few scoring rows no look could pass
            network, kind = kind == NETWORK, PROGRESSIVE if kind == NETWORK else kind
            bound = model.norm_bound
            strategies.append(Strategy(kind, looks, own_delta, own, scale, bound, charged, network))
    return tuple(strategies)


def _joined(
    settings: Settings,
    recipe: Recipe,
    places: Places,
    plan: StrategyPlan,
    attempts: JobPlan | None,
    public: PublicScore | None,
) -> JobPlan:
    """Return one forecast of all requests; the first is charged with the whole δ."""
    linear = linear_recipe(recipe)
    steps: list[Step] = []
    for number, strategy in enumerate(plan.strategies):
        charged = settings.privacy.delta if number == 0 else 0.0
        trained = recipe if strategy.network else linear
        steps.append(step_of(strategy, trained, settings.goal, places, public, charged))
    if attempts is not None:
        concentrated = plan.strategies[0].charged is not None  # then no request is charged with a δ
        steps += [step if concentrated else uncharged(step) for step in attempts.steps]
    told = settings.privacy.tell
    tell = None if told is None else tell_step(told, steps[: len(plan.strategies)], places.scoring)
    reasons = tuple(reasons_of(plan, places, public is not None, attempts))
    if attempts is None:
        joined = JobPlan(
            tuple(steps),
            settings.privacy.delta,
            Pace(0.0, 0.0),
            scoring_rows=places.scoring,
            reasons=reasons,
            tell=tell,
        )
    else:
        joined = replace(
            attempts,
            steps=tuple(steps),
            delta=settings.privacy.delta,
            reasons=reasons,
            tell=tell,
        )
    if told is not None and joined.worst_case.epsilon > settings.privacy.max_epsilon:
        raise InvalidInput(  # of charges in ρ, which do not add up in ε
            "privacy.tell", told, "with it the job may cost more than max_epsilon; give less"
        )
    return joined


def _axes(settings: Settings) -> bool:
    """Return whether the grid has architectures: one has other parameters than the next."""
    return any(point.arguments is not None for point in settings.search.settings)


def _checked_width(recipe: Recipe, settings: Settings, places: Places) -> int | None:
    """Return the number of parameters of a network that can be trained with all rows in each step.

    None for a secret number of rows, where only a linear model can be trained in this way.
    """
    if settings.data.relation != ZERO_OUT:
        if settings.model.training == PROGRESSIVE:
            raise InvalidInput(
                "data.rows",
                settings.data.rows,
                "rows of a network have fixed positions, so their number is public: leave this "
                'key out, or use training = "dp-sgd" with the table [search]',
            )
        return None
    check_network(recipe)
    training = ModuleTraining(cast(Any, recipe.factory), recipe.loss, places.training)
    shaped, targets = made_up(recipe, 2)
    training.rows_of(recipe.shaped(shaped), targets, "cpu")  # refuses what cannot be vectorised
    return training.width


def _left(settings: Settings) -> float:
    """Return the most that a job may cost without the score of a model that missed."""
    told = Fraction(settings.privacy.tell or 0)
    return round_down(Fraction(settings.privacy.max_epsilon) - told)


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
    plan: StrategyPlan, places: Places, public: bool, attempts: JobPlan | None
) -> list[str]:
    """Return sentences that say what is tried, in which order, and why."""
    sentences = []
    for number, strategy in enumerate(plan.strategies):
        name = {
            PROGRESSIVE: "Progressive training" + " of the network" * strategy.network,
            MOMENTS: "Least squares from second moments with noise reduction",
        }[strategy.kind]
        before = plan.strategies[max(0, number - 1)]
        if number and (strategy.kind, strategy.network) == (before.kind, before.network):
            name = "If that misses: the same with " + (
                "other steps" if strategy.network else "less regularisation"
            )
        elif number:
            name = f"If that misses: {name[0].lower()}{name[1:]}"
        sentences.append(
            f"{name}: {len(strategy.levels)} looks from {strategy.cost(0)} to "
            f"{strategy.cost(-1)}; a pass costs the steps that were made."
        )
    if attempts is not None:
        cheapest = attempts.epsilon(attempts.charges[0])
        sentences.append(
            f"Then {attempts.attempts} attempts with DP-SGD: a pass costs "
            f"{charge_text(cheapest, 3)} or more."
        )
    if not public:
        unit = "rows" if places.rows_per_person is None else "persons"
        sentences.append(
            f"Scored on {places.scoring} held-out {unit} by noisy counts, at no further cost."
        )
    if places.rows_per_person is not None:
        sentences.append(
            "The unit of privacy is one person with all their rows, of which at most "
            f"{places.rows_per_person} are used."
        )
    return sentences


def price_job(
    settings: Settings, head: Table, places: int, order: tuple[float, ...] | None = None
) -> JobPlan:
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
) -> JobPlan:
    """Return the plan of a job; of its rows only public numbers and public rows are used.

    ``rehearsed`` says how long the candidates take.
    """
    trained = replace(recipe, features=None)  # DP-SGD trains on the encoded rows

    def by_attempts(settings: Settings) -> JobPlan:
        """Plan the attempts of Algorithm 2 (or 3) over DP-SGD."""
        candidates = make_candidates(
            settings, trained, rows.places, hooks or Hooks(), device, rows.shape
        )
        pace = rehearsed(candidates)
        return plan_search(settings, candidates, rows.places, order, rows.score_places, pace)

    planned = plan_strategies(settings, recipe, rows, order, by_attempts, device=device)
    total = rows.places if rows.public else rows.places + rows.score_places
    left_out = planned.left_out
    if left_out:
        limit = f"privacy.max_epsilon = {settings.privacy.max_epsilon:g}"
        left_out = f"To cost at most {limit}: {left_out}."
    return replace(planned, left_out=left_out, warnings=tuple(weaknesses_of(planned, total)))


def weaknesses_of(planned: JobPlan, rows: int) -> list[str]:
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
