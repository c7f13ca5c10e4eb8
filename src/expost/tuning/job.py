"""``expost.tune``: data, model, grid, bar → the model that passes at the least ε, and a certificate of what it cost.

What is promised: the released model, its setting, its score and the charges of all attempts are together ex-post (ε̃, δ)-DP with
ε̃ = ``spent.epsilon`` (Theorem T1 of docs/theory.md for each attempt, composed), under the neighbours of :mod:`expost.tuning.rows`.
Assumed: DP-SGD keeps its promise (:mod:`expost.training`), feature bounds and classes are public knowledge, and what is not in the result
(progress, failures, timing) stays with the curator. Tests: ``tests/tuning/``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from expost import plots
from expost.errors import BudgetRefused, InvalidInput, MissingExtra
from expost.execution.dispatch import Executor
from expost.execution.failure import OnFailure
from expost.randomness.source import Randomness, require_protection
from expost.selection.release import Release
from expost.training.engines import need_device
from expost.tuning.candidates import Fitted, FittedCodec, Hooks, make_candidates
from expost.tuning.certificate import Tuned, conclude, picture
from expost.tuning.forecast import Forecast, forecast
from expost.tuning.job_folder import CERTIFICATE, PICTURE, Journal
from expost.tuning.model import Recipe
from expost.tuning.rows import load_rows
from expost.tuning.settings import Settings, read_settings

Before = Callable[[Forecast], None]


def tune(
    config: str | Path | Mapping[str, Any],
    X: Any = None,
    y: Any = None,
    *,
    ledger: Any = None,
    budget: str | None = None,
    analyst: str = "",
    out: str | Path | None = None,
    randomness: Randomness | None = None,
    simulation: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    stop_early: bool = True,
    device: str = "cpu",
    before: Before | None = None,
    progress: Callable[[float, float], None] | None = None,
    on_failure: OnFailure | None = None,
) -> Tuned:
    """Tune a model privately.

    ``config``      a TOML file (see ``expost tune --init``) or the same as a mapping; rows come from its [data], or as ``X`` and ``y``
    ``ledger``      an ``expost.budget.ledger.Ledger``: the worst case of every attempt is reserved before rows are used
    ``out``         a folder for certificate, model and picture. The same call after a crash goes on: same draws, one charge
    ``randomness``  OS entropy by default; a seeded source only with ``simulation=True``
    ``executor``    any ``concurrent.futures.Executor`` to train the candidates (docs/cluster.md), by default this process with ``threads``
    ``stop_early``  False: train all that was drawn, even after one that passes the bar (see ``Selector.select``)
    ``device``      "cpu", or "cuda" to train there, where the worker (or this process) has one
    ``before``      called with the forecast before the budget is asked and anything runs; ``progress`` and ``on_failure`` tell the
                    curator how far the training is and what failed: keep that to yourself
    """
    source = require_protection(randomness, simulation=simulation)
    settings = read_settings(config, given_data=X is not None or y is not None)
    order = _order(settings, ledger, budget)
    rows = load_rows(settings.data, X, y)
    recipe = Recipe.of(settings, rows.bounds)
    hooks = Hooks(progress=progress if executor is None else None, threads=threads)
    candidates = make_candidates(settings, recipe, len(rows.X), hooks, device)
    if executor is None and device != "cpu":
        need_device(device)
    job = forecast(settings, recipe, candidates, len(rows.X), rows.X.shape[1], order)
    account = None if ledger is None else [ledger.identity, budget, analyst]
    identity = json.dumps([settings.public(), account, source.simulated], sort_keys=True)
    data = rows.as_data(identity)
    journal = None if out is None else Journal(Path(out), data)
    try:
        if before is not None:
            before(job)
        request: dict[str, Any] = (
            {"ledger": ledger, "budget": budget, "analyst": analyst, "memo": _memo(settings)}
            if ledger is not None
            else {}
        )
        if executor is not None and progress is not None:
            request["progress"] = progress  # from tasks that are done: workers do not report
        attempts = _Attempts(settings, job, data, journal)
        releases, refused = attempts.make(
            randomness=source,
            simulation=simulation,
            on_failure=on_failure,
            codec=FittedCodec(),
            executor=executor,
            stop_early=stop_early,
            **request,
        )
        result = conclude(
            settings,
            recipe,
            job,
            releases,
            rows=len(rows.X),
            scoring_rows=len(rows.score_X),
            refused=refused,
            folder=None if journal is None else journal.folder,
        )
        if journal is not None:
            _publish(result, journal)
        return result
    finally:
        if journal is not None:
            journal.close()


class _Attempts:
    """Requests until the bar is passed, the attempts are used up, or the budget refuses; each is drawn, reserved and charged anew."""

    def __init__(
        self, settings: Settings, job: Forecast, data: dict[str, Any], journal: Journal | None
    ) -> None:
        self.settings, self.job, self.data, self.journal = settings, job, data, journal

    def make(self, **request: Any) -> tuple[list[Release | None], bool]:
        """What each attempt released, and whether the budget refused another."""
        journal = self.journal
        releases: list[Release | None] = [] if journal is None else journal.attempts
        while not self._enough(releases):
            try:
                release = self.job.selector.select(
                    self.job.candidates,
                    self.data,
                    score=_score,
                    checkpoint=None if journal is None else journal.checkpoint,
                    on_start=None if journal is None else journal.begin,
                    **request,
                )
            except BudgetRefused:
                if not any(each is not None for each in releases):
                    raise
                return releases, True
            releases.append(release)
            if journal is not None:
                journal.add(release)
        return releases, False

    def _enough(self, releases: list[Release | None]) -> bool:
        present = [each for each in releases if each is not None]
        if not present:
            return False  # also after lost attempts: there is nothing to release yet
        return (
            self.settings.goal.bar is None
            or any(each.passed for each in present)
            or len(releases) >= self.settings.privacy.attempts
        )


def _score(fitted: Fitted) -> float:
    return fitted.score


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
            "tuning is charged in (ε, δ) or at Rényi orders; give an approx or a renyi budget",
        )
    if kind == "approx":
        if order is not None:
            raise InvalidInput(
                "privacy.order", order, "the ledger's budget is in (ε, δ): leave the order out"
            )
        return None
    wanted = tuple(ledger.standing(budget).filter.budget.orders)
    if order is not None and not set(wanted) <= set(order):
        raise InvalidInput(
            "privacy.order",
            order,
            f"the ledger's budget is at the orders {list(wanted)}; leave it out to use those",
        )
    return order or wanted


def _memo(settings: Settings) -> str:
    source = settings.data.name or (settings.data.path.name if settings.data.path else "arrays")
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
