"""``expost.tune``: the model that reaches a goal at the least ε, and a certificate of its cost.

The released model, its setting, its score and the charges of all attempts are together ex-post
(ε̃, δ)-DP with ε̃ = ``spent.epsilon`` and δ = ``privacy.delta``: theorems (T1) and (T2) of
docs/theory.md for each attempt, composed as in "Attempts in sequence", under the neighbours of
:mod:`expost.tuning.rows.job_rows`.

Assumed: DP-SGD keeps its guarantee (:mod:`expost.training`), feature bounds and classes are public
knowledge, and what is not in the result (progress, failures, timing) stays with the curator.
Tests: ``tests/tuning/``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from expost import plots
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import ExpostError, InvalidInput, MissingExtra
from expost.execution.calls import OnFailure
from expost.execution.checkpoint import identity_of
from expost.execution.workers import Executor, start_executor
from expost.randomness.source import Randomness, require_protection
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.training.engines import need_device, progress_bar
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.tuned import Tuned, chosen_of, conclude, picture
from expost.tuning.plan.job_plan import JobPlan
from expost.tuning.plan.rehearsal import Pace, RowShape, rehearse
from expost.tuning.plan.strategies import order_for, plan_rows
from expost.tuning.request.bought_facts import LearnedFacts, keywords_with, learn_missing
from expost.tuning.request.defaults import default_job, is_data_file, settings_and_rows
from expost.tuning.request.settings import DataSettings, Settings, read_settings
from expost.tuning.request.tune_request import TuneRequest
from expost.tuning.rows.job_rows import JobRows, load_rows
from expost.tuning.rows.spread_rows import SpreadRows, in_parts
from expost.tuning.runs.candidates import FittedCodec, Hooks, ScoredModel
from expost.tuning.runs.path_training import with_model
from expost.tuning.runs.run_attempts import (
    CERTIFICATE,
    DATA,
    LEDGER,
    PICTURE,
    Journal,
    Step,
    make_attempts,
    refuse_finished,
)

Before = Callable[[JobPlan], None]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """A job that was checked and planned; nothing was charged and nothing has run."""

    settings: Settings
    account: Account
    rows: JobRows
    recipe: Recipe
    forecast: JobPlan
    in_parts: bool


def with_named_executor(function: Callable[P, T]) -> Callable[P, T]:
    """Let ``executor`` be a name, or None for the one that the job names; ``progress``, True."""

    @wraps(function)
    def call(*arguments: Any, executor: Any = None, **options: Any) -> T:
        given: Any = function
        if options.get("progress") in (True, False):
            if not options.pop("progress"):
                return call(*arguments, executor=executor, **options)
            with progress_bar("training", unit=None) as bar:
                return call(*arguments, executor=executor, progress=bar, **options)
        if executor is None and arguments and not is_data_file(arguments[0]):
            job = arguments[0]
            if isinstance(job, (str, Path, Mapping)):
                with suppress(ExpostError):  # the function itself says what is wrong with the job
                    executor = TuneRequest.read(job).executor or "local"
        executor = None if executor == "local" else executor
        if not isinstance(executor, str):
            return given(*arguments, executor=executor, **options)  # type: ignore[no-any-return]
        with start_executor(executor, options.get("device", "cpu")) as running:
            return given(*arguments, executor=running, **options)  # type: ignore[no-any-return]

    return call


@with_named_executor
def tune(
    job: Any,
    X: Any = None,
    y: Any = None,
    *,
    groups: Any = None,
    ledger: LedgerOrPlace = None,
    budget: str | None = None,
    analyst: str = "",
    memo: str = "",
    out: str | Path | None = None,
    randomness: Randomness | None = None,
    simulation: bool = False,
    threads: int | None = None,
    executor: Executor | str | None = None,
    stop_early: bool = True,
    device: str = "cpu",
    on_planning: Callable[[], None] | None = None,
    before: Before | None = None,
    progress: Callable[[float, float], None] | bool | None = None,
    log_to: str | None = None,
    on_attempt: Callable[[int, int], None] | None = None,
    on_failure: OnFailure | None = None,
    **settings: Any,
) -> Tuned:
    """Tune a model privately.

    With a goal (``at_least`` or ``at_most``) the first model that clears it with the wanted
    confidence is released: of a training that stops when it passes, or of a planned sequence of
    attempts with DP-SGD. If a training reaches its limit, its last model is charged, and released
    as *missed* (``passed`` is False); attempts that miss release nothing and cost little. Without a
    goal (``maximize=True``) the best of one draw is released. The job never costs more than
    ``max_epsilon`` (default 4).

    Parameters
    ----------
    job : path, mapping, array_like or data frame
        A TOML file (``expost tune --init`` writes an example) or the same as a mapping. Or the
        rows: a file (``.csv``, ``.parquet``, ``.npz``), a data frame, or an array, with the
        settings as keywords.
    X, y : array_like, optional
        The rows, if ``job`` is a mapping that names no file. If ``job`` is an array of features,
        the second argument holds the targets.
    groups : array_like, optional
        The person of each row, for rows that are arrays; of a file or a data frame ``user`` names
        the column. With either, one person with all their rows is protected instead of one row.
    ledger : Ledger, str or Path, optional
        A ledger, or its file name or URL. The worst case of every attempt is reserved
        before it reads rows.
    budget, analyst : str, optional
        Which budget of the ledger pays, and on whose behalf.
    memo : str, optional
        What the entries of the ledger say; by default the model and the source of the rows.
    out : path, optional
        A folder for certificate, model and picture. The same call after a crash continues the
        job: same draws, one charge per attempt.
    randomness : Randomness, optional
        OS entropy by default; a seeded source is accepted only with ``simulation=True``.
    threads : int, optional
        Threads that train in this process.
    executor : concurrent.futures.Executor or str, optional
        Trains the candidates and makes sums over rows (docs/cluster.md): an executor, or
        ``"processes"``, ``"ray"``, ``"dask"``, ``"spark"`` or ``"local"``, which is this process.
        By default ``run.executor`` of the job, else this process. The release is the same.
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
    progress : callable or bool, optional
        Tells the curator how far the training is; True draws a bar in the terminal.
    log_to : str, optional
        ``"mlflow"``, ``"tensorboard"`` or ``"wandb"``, or with a place ``"mlflow:URI"``,
        ``"tensorboard:FOLDER"``, ``"wandb:PROJECT"``: one run is written there when the job is
        over, with public settings and what was released (docs/logging.md).
    on_attempt, on_failure : callable, optional
        Tell the curator which attempt it is (number, at most), and what failed. Do not publish
        them, nor the progress.
    **settings
        With rows instead of a job: every key of the TOML file is a keyword of the same name, for
        example ``target``, ``at_least``, ``feature_bounds``, ``categories``, ``classes``,
        ``missing``, ``rows``, ``epsilons``, ``delta``; ``model`` is a kind, a function, a class or
        a name. What is left out has a default that depends on the number of rows only
        (:mod:`expost.tuning.request.defaults`). :func:`expost.default_job` shows them, and
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
        expost.tune("visits.csv", user="patient", target="label", at_least=0.8, …)
    """
    source = require_protection(randomness, simulation=simulation)
    assert not isinstance(progress, bool)  # the decorator has made a bar of it
    loggers: Any = None if log_to is None else import_module("expost.integrations.loggers")
    if log_to is not None:
        loggers.check_log_to(log_to)
    date = datetime.now(UTC).date().isoformat()  # of the start: how long a job took is secret
    if out is not None:
        refuse_finished(Path(out))  # before the plan, which takes seconds
    account = Account(ledger, budget, analyst, memo)
    asked, learned = _with_facts((job, X, y, settings, groups), account, source, out)
    ready = _prepared(
        asked,
        account,
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
    code = [identity_of(function) for function in (recipe.factory, read.goal.function)]
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
    data, opened = rows.as_data(identity), ExitStack()
    data.device = device
    try:
        if before is not None:
            before(planned)
        if ready.in_parts:
            if rows.file is not None and journal is not None:
                data["file"] = rows.file.digest
            data.parts = opened.enter_context(SpreadRows(executor, threads))
            data.parts.read(rows, planned.steps)
        result = run_plan(
            read,
            planned,
            data,
            recipe=recipe,
            rows=rows.places,
            date=date,
            journal=journal,
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
        )
        if learned is not None:
            result = result.with_facts(learned)
        if journal is not None:
            _publish(result, journal)
        if log_to is not None:
            try:
                loggers.log_release(result, log_to)
            except Exception as error:  # what was paid for is not lost with a tracker
                warnings.warn(f"log_to = {log_to!r}: {error}", stacklevel=2)
        return result
    finally:
        opened.close()
        if journal is not None:
            journal.close()


@with_named_executor
def plan_job(
    job: Any,
    X: Any = None,
    y: Any = None,
    *,
    groups: Any = None,
    ledger: Any = None,
    budget: str | None = None,
    executor: Executor | str | None = None,
    device: str = "cpu",
    on_planning: Callable[[], None] | None = None,
    **settings: Any,
) -> JobPlan:
    """Return the plan of a job: what it may cost and how likely it passes. Nothing is charged.

    The checks are those of :func:`expost.tune`, and the model is rehearsed on made-up rows. No
    model is trained on the rows, and the plan depends on public facts only.

    Parameters
    ----------
    job, X, y, groups, ledger, budget, executor, device, on_planning, **settings
        As for :func:`expost.tune`. The ledger is asked for its kind of budget only.

    Returns
    -------
    JobPlan
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
        (job, X, y, settings, groups),
        Account(ledger, budget),
        source=Randomness(),
        hooks=Hooks(),
        executor=executor,
        device=device,
        on_planning=on_planning,
    ).forecast


def _prepared(
    asked: tuple[Any, Any, Any, dict[str, Any], Any],
    account: Account,
    *,
    source: Randomness,
    hooks: Hooks,
    executor: Any,
    device: str,
    on_planning: Callable[[], None] | None,
) -> Prepared:
    """Check a job, read its rows and plan it."""
    if executor is None and device != "cpu":
        need_device(device)
    config, X, y = settings_and_rows(*asked)
    read = read_settings(config, given_data=X is not None or y is not None)
    if asked[-1] is not None and read.data.user is None:  # a TOML file that does not say so
        raise InvalidInput("groups", "persons", 'add user = "groups" to [data] of the job')
    account = replace(account, memo=account.memo or _memo(read))
    account.check_simulation(source.simulated)
    order = order_for(read, account.ledger, account.budget)
    by_path = read.model.training != "dp-sgd" and not read.search.settings
    rows = load_rows(read.data, X, y, groups=asked[-1], randomness=source, lazy=by_path)
    recipe = Recipe.of(read, rows.schema, rows.shape)
    linear = recipe.factory is None  # a network reads its rows as they are
    by_parts = by_path and linear and in_parts(rows, recipe.features, executor)
    if not by_parts:
        rows = rows.loaded()
    if not linear or read.data.regression:  # where sums of a row may be rounded by its position
        rows = rows.in_positions()
    if rows.public:
        read.goal.measure.check_public(rows.score_y)
    if on_planning is not None:
        on_planning()

    def rehearsed(candidates: Sequence[Candidate]) -> Pace:
        return rehearse(candidates, RowShape(rows.places, rows.score_places), executor)

    planned = plan_rows(read, rows, recipe, order, hooks=hooks, device=device, rehearsed=rehearsed)
    recipe = replace(recipe, features=None)  # DP-SGD trains on the encoded rows
    return Prepared(read, account, rows, recipe, planned, by_parts)


def _with_facts(
    asked: tuple[Any, Any, Any, dict[str, Any], Any],
    account: Account,
    source: Randomness,
    out: str | Path | None,
) -> tuple[tuple[Any, Any, Any, dict[str, Any], Any], LearnedFacts | None]:
    """Return a job with the facts that it lacks, if it asks to buy them."""
    config, X, y = settings_and_rows(*asked)
    if TuneRequest.read(config).learn_facts is None:
        return asked, None
    account = replace(account, memo=account.memo or "facts for tune")
    account.check_simulation(source.simulated)
    folder = None if out is None else Path(out)
    job, _, _, settings, groups = asked
    config, learned = learn_missing(config, (X, y, groups), account, source, folder)
    if settings:  # a job of keywords: its defaults may depend on the facts
        config = default_job(job, groups=groups, **keywords_with(settings, config))
    return (config, X, y, {}, groups), learned


def run_plan(
    settings: Settings,
    planned: JobPlan,
    data: dict[str, Any],
    *,
    recipe: Recipe | None = None,
    rows: int | None,
    date: str,
    journal: Journal | None = None,
    on_attempt: Callable[[int, int], None] | None = None,
    **request: Any,
) -> Tuned:
    """Make the requests of a plan in turn, and compose what they released and cost.

    ``recipe``, ``rows`` and ``date``: as for :func:`conclude`.
    """
    releases, refused = make_attempts(
        planned.steps,
        data,
        journal,
        planned.margins,
        on_attempt=on_attempt,
        allowed=lambda total: planned.epsilon(total) <= settings.privacy.max_epsilon,
        after_miss=lambda releases: tell_after(planned, releases),
        source=described_source(settings.data),
        **request,
    )
    folder = None if journal is None else journal.folder
    return conclude(
        settings, recipe, planned, releases, rows=rows, refused=refused, date=date, folder=folder
    )


def tell_after(planned: JobPlan, releases: Sequence[Release | None]) -> Step | None:
    """Return the request for a score after misses: wanted, and a path released a model.

    Its price is that of a job in which every path missed, so none may be lost or left out.
    """
    if planned.tell is None or any(release is None or release.passed for release in releases):
        return None
    number = chosen_of(releases)
    chosen = releases[number]
    if chosen is None or not isinstance(chosen.value, ScoredModel):
        return None
    return with_model(planned.tell, planned.steps[number], chosen.value)


def _named(public: dict[str, Any]) -> dict[str, str]:
    """Return settings by the name of their key in a job, as texts that can be compared."""
    names = {
        "goal.value": "the goal",
        "data.bounds": "data.feature_bounds",
        "search.settings": "grid",
    }
    texts = {}
    for table, values in public.items():
        for key, value in values.items():
            name = f"{table}.{key}"
            texts[names.get(name, name)] = json.dumps(value, sort_keys=True)
    return texts


def described_source(data: DataSettings) -> dict[str, Any]:
    """Return the public description of the rows whose digest a ledger stores."""
    kind, name = "arrays", None
    if data.path is not None:
        kind, name = "file", data.path.name
    elif data.database is not None:
        kind, name = "table", data.table
    elif data.name is not None:
        kind, name = "data set", data.name
    return {
        "kind": kind,
        "name": name,
        "columns": None if data.features is None else list(data.features),
        "target": data.target,
        **({} if data.user is None else {"user": data.user}),
    }


def _memo(settings: Settings) -> str:
    source = described_source(settings.data)["name"] or "rows"
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
