"""``expost.tune``: the model that passes a bar at the least ε, and a certificate of its cost.

The released model, its setting, its score and the charges of all attempts are together ex-post
(ε̃, δ)-DP with ε̃ = ``spent.epsilon`` and δ = ``privacy.delta``: theorems (T1) and (T2) of
docs/theory.md for each attempt, composed as in "Attempts in sequence", under the neighbours of
:mod:`expost.tuning.rows`.

Assumed: DP-SGD keeps its promise (:mod:`expost.training`), feature bounds and classes are public
knowledge, and what is not in the result (progress, failures, timing) stays with the curator.
Tests: ``tests/tuning/``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from expost import plots
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import InvalidInput, MissingExtra
from expost.execution.dispatch import Executor
from expost.execution.failure import OnFailure
from expost.execution.identity import identity_of
from expost.privacy.advice import weaknesses
from expost.privacy.guarantees import ApproxDP, PureDP
from expost.randomness.source import Randomness, require_protection
from expost.training.engines import need_device
from expost.tuning.candidates import FittedCodec, Hooks, make_candidates
from expost.tuning.certificate import Tuned, conclude, picture
from expost.tuning.defaults import described
from expost.tuning.evidence import described_source
from expost.tuning.forecast import Forecast, forecast
from expost.tuning.job_folder import CERTIFICATE, DATA, LEDGER, PICTURE, Journal, refuse_finished
from expost.tuning.model import Recipe
from expost.tuning.rehearsal import RowShape, rehearse
from expost.tuning.rows import JobRows, load_rows
from expost.tuning.run_attempts import make_attempts
from expost.tuning.settings import Settings, read_settings
from expost.tuning.several_ways import plan_ways

Before = Callable[[Forecast], None]


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """A job that was checked and planned; nothing was charged and nothing has run."""

    settings: Settings
    account: Account
    rows: JobRows
    recipe: Recipe
    forecast: Forecast


def tune(
    job: Any,
    X: Any = None,
    y: Any = None,
    *,
    ledger: LedgerOrPlace = None,
    budget: str | None = None,
    analyst: str = "",
    out: str | Path | None = None,
    randomness: Randomness | None = None,
    simulation: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    stop_early: bool = True,
    device: str = "cpu",
    on_planning: Callable[[], None] | None = None,
    before: Before | None = None,
    progress: Callable[[float, float], None] | None = None,
    on_attempt: Callable[[int, int], None] | None = None,
    on_failure: OnFailure | None = None,
    **settings: Any,
) -> Tuned:
    """Tune a model privately.

    With a bar (``at_least`` or ``at_most``) the job is a planned sequence of attempts: a miss
    releases nothing and costs little, and the first model that clears the bar with the wanted
    confidence is released. Without a bar (``maximize=True``) the best of one draw is released.

    Parameters
    ----------
    job : path, mapping, array_like or data frame
        A TOML file (``expost tune --init`` writes an example) or the same as a mapping. Or the
        rows: a file (``.csv``, ``.parquet``, ``.npz``), a data frame, or an array, with the
        settings as keywords.
    X, y : array_like, optional
        The rows, if ``job`` is a mapping that names no file. If ``job`` is an array of features,
        the second argument holds the targets.
    ledger : Ledger, str or Path, optional
        A ledger, or its file name or URL. The worst case of every attempt is reserved
        before it reads rows.
    budget, analyst : str, optional
        Which budget of the ledger pays, and on whose behalf.
    out : path, optional
        A folder for certificate, model and picture. The same call after a crash continues the
        job: same draws, one charge per attempt.
    randomness : Randomness, optional
        OS entropy by default; a seeded source is accepted only with ``simulation=True``.
    threads : int, optional
        Threads that train in this process.
    executor : concurrent.futures.Executor, optional
        Trains the candidates (docs/cluster.md); by default this process does.
    stop_early : bool
        False: train everything that was drawn, even after a model that passes.
    device : str
        "cpu", or "cuda" where the worker (or this process) has one.
    on_planning : callable, optional
        Called without arguments when settings, columns and ledger were checked, before the plan is
        made, which takes seconds.
    before : callable, optional
        Called with the plan (see :func:`expost.plan_job`) before the budget is asked and anything
        runs.
    progress, on_attempt, on_failure : callable, optional
        Tell the curator how far the training is, which attempt it is (number, at most), and what
        failed. Do not publish any of them.
    **settings
        With rows instead of a job: every key of the TOML file is a keyword of the same name, for
        example ``target``, ``at_least``, ``feature_bounds``, ``categories``, ``classes``,
        ``missing``, ``rows``, ``epsilons``, ``delta``; ``model`` is a kind, a function, a class or
        a name. What is left out has a default that depends on the number of places only
        (:mod:`expost.tuning.defaults`). :func:`expost.default_job` shows them, and
        :func:`expost.plan_job` shows what the job may cost.

    Returns
    -------
    Tuned

    Raises
    ------
    InvalidInput
        A setting is not valid, public facts are missing, or the model cannot be trained or scored
        on made-up rows. Nothing was charged.
    BudgetRefused
        The ledger refused the first attempt. Nothing was charged.

    Examples
    --------
    ::

        expost.tune("job.toml")
        expost.tune(frame, target="label", at_least=0.8, classes=["no", "yes"],
                    feature_bounds={"age": [0, 120]})
        expost.tune(X, y, at_least=0.8, feature_bounds=[0, 16], classes=10)
    """
    source = require_protection(randomness, simulation=simulation)
    date = datetime.now(UTC).date().isoformat()  # of the start: how long a job took is secret
    if out is not None:
        refuse_finished(Path(out))  # before the plan, which takes seconds
    ready = _prepared(
        (job, X, y, settings),
        Account(ledger, budget, analyst),
        source=source,
        hooks=Hooks(progress=progress if executor is None else None, threads=threads),
        executor=executor,
        device=device,
        on_planning=on_planning,
    )
    read, account, rows, recipe = ready.settings, ready.account, ready.rows, ready.recipe
    planned = ready.forecast
    for text in planned.warnings:
        warnings.warn(text, stacklevel=2)
    code = [identity_of(each) for each in (recipe.factory, read.goal.function)]
    identity = json.dumps([read.public(), code, account.identity, source.simulated], sort_keys=True)
    journal = None
    if out is not None:
        parts = {
            **_named(read.public()),
            "code of the model or the metric": code,
            "simulation": source.simulated,
            LEDGER: account.identity,
            DATA: rows.whole(""),
        }
        journal = Journal(Path(out), rows.whole(identity), rows.key, parts)
    if journal is not None:
        rows = rows.with_key(journal.key)  # the coins of an interrupted job are not tossed again
    data = rows.as_data(identity)
    try:
        if before is not None:
            before(planned)
        releases, refused = make_attempts(
            planned.steps,
            data,
            journal,
            planned.margins,
            on_attempt=on_attempt,
            randomness=source,
            simulation=simulation,
            on_failure=on_failure,
            progress=None if executor is None else progress,  # workers do not report themselves
            codec=FittedCodec(),
            executor=executor,
            stop_early=stop_early,
            ledger=account.ledger,
            budget=budget,
            analyst=analyst,
            memo=account.memo,
            source=described_source(read.data),
        )
        result = conclude(
            read,
            recipe,
            planned,
            releases,
            rows=rows.places,
            refused=refused,
            date=date,
            folder=None if journal is None else journal.folder,
        )
        if journal is not None:
            _publish(result, journal)
        return result
    finally:
        if journal is not None:
            journal.close()


def plan_job(
    job: Any,
    X: Any = None,
    y: Any = None,
    *,
    ledger: Any = None,
    budget: str | None = None,
    executor: Executor | None = None,
    device: str = "cpu",
    on_planning: Callable[[], None] | None = None,
    **settings: Any,
) -> Forecast:
    """Return the plan of a job: what it may cost and how likely it passes. Nothing is charged.

    The checks are those of :func:`expost.tune`, and the model is rehearsed on made-up rows. No
    model is trained on the rows, and the plan depends on public facts only.

    Parameters
    ----------
    job, X, y, ledger, budget, executor, device, on_planning, **settings
        As for :func:`expost.tune`. The ledger is asked for its kind of budget only.

    Returns
    -------
    Forecast
        Its ``as_dict()`` holds the chances, charges and times in plain types. It has an HTML form
        for notebooks.

    Raises
    ------
    InvalidInput
        As :func:`expost.tune`.

    Examples
    --------
    ::

        plan = expost.plan_job(X, y, at_least=0.8, feature_bounds=[0, 16], classes=10)
        print(plan.worst_case, plan.needed_to_start, plan.seconds)
    """
    return _prepared(
        (job, X, y, settings),
        Account(ledger, budget),
        source=Randomness(),
        hooks=Hooks(),
        executor=executor,
        device=device,
        on_planning=on_planning,
    ).forecast


def _prepared(
    asked: tuple[Any, Any, Any, dict[str, Any]],
    account: Account,
    *,
    source: Randomness,
    hooks: Hooks,
    executor: Executor | None,
    device: str,
    on_planning: Callable[[], None] | None,
) -> Prepared:
    """Check a job, read its rows and plan it."""
    config, X, y = described(*asked)
    read = read_settings(config, given_data=X is not None or y is not None)
    account = replace(account, memo=_memo(read))
    account.check_simulation(source.simulated)
    order = _order(read, account.ledger, account.budget)
    rows = load_rows(read.data, X, y, randomness=source)
    featured = Recipe.of(read, rows.schema, rows.shape)
    recipe = replace(featured, features=None)  # DP-SGD trains on the encoded rows
    if rows.public:
        read.goal.measure.check_public(rows.score_y)
    if on_planning is not None:
        on_planning()

    def by_attempts(settings: Settings) -> Forecast:
        """Plan the attempts of Algorithm 2 (or 3) over DP-SGD."""
        candidates = make_candidates(settings, recipe, rows.places, hooks, device)
        if executor is None and device != "cpu":
            need_device(device)
        pace = rehearse(candidates, RowShape(rows.places, rows.score_places), executor)
        return forecast(settings, candidates, rows.places, order, rows.score_places, pace)

    planned = plan_ways(read, featured, rows, order, by_attempts)
    total = rows.places if rows.public else rows.places + rows.score_places
    planned = replace(planned, warnings=tuple(_weaknesses(planned, total)))
    return Prepared(read, account, rows, recipe, planned)


def _weaknesses(planned: Forecast, rows: int) -> list[str]:
    """Return what is weak about the most expensive model that an attempt may release.

    The ε of charges at Rényi orders depends on the order that the ledger fixed; it is not judged.
    """
    worst = 0.0
    if planned.order is None:
        worst = max(planned.epsilon(each.charges.worst_case) for each in planned.steps)
    return weaknesses(ApproxDP(worst, planned.delta), rows)


def _order(settings: Settings, ledger: Any, budget: str | None) -> tuple[float, ...] | None:
    """The Rényi orders to charge at, if the ledger (or the settings) ask for that."""
    order = settings.privacy.order
    if ledger is None:
        return order
    kind = ledger.kind_of(budget)
    if kind in ("pure", "zcdp"):
        raise InvalidInput(
            "ledger",
            f"a {kind} budget",
            "tuning is charged in (ε, δ) or at Rényi orders; give an approx or a renyi budget, "
            "opened with a δ (expost ledger create FILE --name NAME --epsilon E --delta D "
            f"--neighbours {settings.data.relation})",
        )
    standing = ledger.standing(budget).filter.budget
    standing.coordinates(PureDP(0.0, settings.data.relation))  # refuses another relation
    if kind == "approx":
        if order is not None:
            raise InvalidInput(
                "privacy.order", order, "the ledger's budget is in (ε, δ): leave the order out"
            )
        return None
    wanted = tuple(standing.orders)
    if order is not None and not set(wanted) <= set(order):
        raise InvalidInput(
            "privacy.order",
            order,
            f"the ledger's budget is at the orders {list(wanted)}; leave it out to use those",
        )
    return order or wanted


def _named(public: dict[str, Any]) -> dict[str, str]:
    """Return settings by the name of their key in a job, as texts that can be compared."""
    names = {"goal.bar": "the bar", "data.bounds": "data.feature_bounds", "search.settings": "grid"}
    found = {}
    for table, values in public.items():
        for key, value in values.items():
            name = f"{table}.{key}"
            found[names.get(name, name)] = json.dumps(value, sort_keys=True)
    return found


def _memo(settings: Settings) -> str:
    source = settings.data.name or (settings.data.path.name if settings.data.path else "rows")
    return f"tune {settings.model.kind} on {source}"


def _publish(result: Tuned, journal: Journal) -> None:
    """The certificate last: a folder that has one is finished."""
    with suppress(
        MissingExtra
    ):  # matplotlib is an extra; the picture is no part of the certificate
        plots.draw_tuning(journal.folder / PICTURE, **picture(result))
    temporary = journal.folder / f".{CERTIFICATE}"
    temporary.write_text(result.certificate() + "\n", encoding="utf-8")
    temporary.replace(journal.folder / CERTIFICATE)
    journal.finish()
