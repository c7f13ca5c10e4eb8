"""Tuning at a server: a question against the public facts of the rows, its price, and its run.

The price is that of the job itself (:mod:`expost.tuning.plan.strategies`), from public facts. A job
keeps its files in a folder of the server, so that it continues after a crash with the same draws.
Tests: ``tests/server/test_tuning.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from expost.budget.limits import Budget
from expost.certificates.document import composed, worst_in_turn
from expost.errors import InvalidInput
from expost.features.functions import function_names
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.plan import plan_levels
from expost.server.jobs.datasets import ROWS, head_of, require_delta
from expost.tuning.job import tune
from expost.tuning.model.released_model import MISSED_MODEL, MODEL
from expost.tuning.plan.strategies import order_within, price_job
from expost.tuning.request.defaults import (
    default_delta,
    default_levels,
    fill_goal,
    fill_model,
    fill_search,
)
from expost.tuning.request.metrics import METRICS, REGRESSION_METRICS
from expost.tuning.request.settings import AXES, read_settings
from expost.tuning.request.settings import Settings as JobSettings
from expost.tuning.request.tune_request import MAX_EPSILON, MODELS
from expost.tuning.rows.job_tables import Table, head_from_dict
from expost.tuning.runs.run_attempts import CERTIFICATE

_TABLES = ("model", "search", "goal", "privacy")
_MOST_EPOCHS = 1000  # of one training: a longer one would keep a worker from others
_MOST_LEVELS, _MOST_SETTINGS = 50, 1000  # a price is computed while somebody waits


def read_job(
    facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str
) -> dict[str, Any]:
    """Check a tuning job against the facts of its rows; return it with all its tables.

    What it leaves open (the model, the bound of a loss, parts of a grid) is filled in from public
    facts, as :func:`expost.tune` does.
    """
    if facts["kind"] != ROWS:
        raise InvalidInput("kind", "tune", "this data set answers count, sum, mean")
    if budget_kind == "pure":
        raise InvalidInput("budget", "pure", "tuning needs an approx, a zcdp or a renyi budget")
    tables = {name: _present(asked.get(name) or {}) for name in _TABLES}
    given = tables["privacy"].get("max_epsilon")
    _check_delta(facts, tables["privacy"].get("delta"), budget_kind)
    limited = tables["model"].get("training", "dp-sgd") != "dp-sgd" or not tables["search"]
    _fill(facts, tables)
    kind, metric = tables["model"]["kind"], tables["goal"].get("metric", "accuracy")
    if kind not in MODELS:  # "module:factory" would run code of the analyst beside the data
        raise InvalidInput("model.kind", kind, "give one of " + ", ".join(MODELS))
    if tables["search"].get("model") is not None:  # nor a list of them
        raise InvalidInput("search.model", "a list", "a server runs no code of an analyst")
    if metric not in METRICS:  # nor a function of the analyst
        raise InvalidInput("goal.metric", metric, "give one of " + ", ".join(METRICS))
    maps = [tables["model"].get("features"), tables["search"].get("features")]
    if function_names(maps):
        raise InvalidInput("features", "a function", "a server runs no code of an analyst")
    if tables["privacy"].get("learn_facts") is not None:  # the price would not hold
        raise InvalidInput(
            "privacy.learn_facts", tables["privacy"]["learn_facts"], "the owner states the facts"
        )
    if limited and facts.get("largest_epsilon") and given is None:
        given = tables["privacy"]["max_epsilon"] = min(MAX_EPSILON, facts["largest_epsilon"])
    settings = read_settings(config_of(facts, tables))
    _check_largest(facts, settings, given)
    search = settings.search
    longest = max((setting.epochs for setting in search.settings), default=0)
    if longest > _MOST_EPOCHS:
        raise InvalidInput(
            "search.epochs", longest, f"a server trains at most {_MOST_EPOCHS} epochs"
        )
    if len(search.epsilons) > _MOST_LEVELS or len(search.settings) > _MOST_SETTINGS:
        raise InvalidInput(
            "search",
            f"{len(search.epsilons)} levels of {len(search.settings)} settings",
            f"a server takes at most {_MOST_LEVELS} levels of {_MOST_SETTINGS} settings",
        )
    return {"dataset": facts["name"], "kind": "tune", **tables}


def _fill(facts: Mapping[str, Any], tables: dict[str, dict[str, Any]]) -> None:
    """Fill in what a job leaves open, from the facts of its rows."""
    bounds, goal, search = facts["data"].get("target_bounds"), tables["goal"], tables["search"]
    regression = bounds is not None or goal.get("metric") in REGRESSION_METRICS
    fill_model({**tables, "data": facts["data"]}, regression)
    filled = dict(goal)
    fill_goal(filled, bounds, regression)
    goal |= {key: filled[key] for key in ("loss_bound",) if key in filled}
    if regression:
        goal["metric"] = filled["metric"]
    if facts.get("delta") is not None:
        tables["privacy"].setdefault("delta", facts["delta"])
    if search and not all(key in search for key in ("epsilons", *AXES)):
        places = head_of_facts(facts)[1]
        share = 1 - facts["data"].get("holdout", 0.2)
        training = max(1, int(places * share))
        most = tables["privacy"].get("max_epsilon") or MAX_EPSILON
        search.setdefault("epsilons", default_levels(training, float(most)))
        fill_search(search, tables["model"]["kind"], training)


def config_of(facts: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job in the form of its TOML file."""
    asked = {name: dict(tables[name]) for name in _TABLES if name != "search" or tables[name]}
    return {"data": dict(facts["data"]), **asked}


def head_of_facts(facts: Mapping[str, Any]) -> tuple[Table, int]:
    """Return the columns of a data set, without rows, and its number of places."""
    known = facts if "head" in facts else _built_in(json.dumps(facts["data"], sort_keys=True))
    return head_from_dict(known["head"], facts["name"]), int(known["places"])


@lru_cache(maxsize=64)
def _built_in(data: str) -> dict[str, Any]:
    """The head of a built-in data set, which is public."""
    return head_of(json.loads(data))


@dataclass(frozen=True)
class JobPrice:
    """What a tuning job may cost, before it is asked for."""

    plan: Mapping[str, Any]
    largest: Guarantee

    @property
    def charges(self) -> Charges:
        """The largest charge of the whole job, as what a budget is asked for."""
        return Charges((self.largest,), (0,), self.largest)


def price_tuning(facts: Mapping[str, Any], question: Mapping[str, Any], terms: Budget) -> JobPrice:
    """Return what a job may cost in a budget with these terms, from public facts."""
    settings = read_settings(config_of(facts, question))
    planned = price_job(settings, *head_of_facts(facts), order_within(settings, terms))
    missed = [step.charges.nothing for step in planned.steps]
    told = [] if planned.tell is None else [planned.tell.charges.worst_case]
    plan = planned.as_dict() | {
        "worst_case": planned.worst_case.epsilon,
        "price_of_a_miss": [planned.epsilon(charge) for charge in missed],
        "all_missed": planned.epsilon(composed([*missed, *told])),
    }
    for unmeasured in ("seconds", "seconds_per_run"):
        del plan[unmeasured]
    return JobPrice(plan, worst_in_turn([step.charges for step in planned.requests]))


def plan_document(
    epsilons: list[float],
    configurations: int,
    delta: float,
    repeats: int = 1,
    attempts: int | None = None,
) -> dict[str, Any]:
    """Return the plan of a tuning job, as ``expost plan --json`` prints it."""
    job = plan_levels(list(epsilons), configurations, delta=delta, repeats=repeats)
    return job.to_goal(attempts).as_dict()


def run_job(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    *,
    folder: Path,
    ledger: Any,
    budget: str,
    analyst: str,
    memo: str,
    executor: Any,
) -> tuple[dict[str, Any], bytes | None]:
    """Run or continue a job; return its document and the released model."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / CERTIFICATE).exists():
        tune(
            _renamed(config_of(facts, question), folder, facts["name"]),
            ledger=ledger,
            budget=budget,
            analyst=analyst,
            memo=memo,
            out=folder,
            executor=executor,
            stop_early=False,  # the time that an attempt takes depends on the draw alone
        )
    certificate = json.loads((folder / CERTIFICATE).read_text(encoding="utf-8"))
    released = [folder / name for name in (MODEL, MISSED_MODEL) if (folder / name).exists()]
    return (
        {"result": result_of(certificate), "certificate": certificate},
        released[0].read_bytes() if released else None,
    )


def _renamed(config: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """The job with its files under the name of the data set, because certificates name them."""
    data = dict(config["data"])
    for key, stem in (("path", name), ("public_test", f"{name}-public")):
        if data.get(key) is not None:
            source = Path(data[key]).absolute()
            ending = "".join(source.suffixes[-2 if source.suffix == ".gz" else -1 :])
            link = folder / f"{stem}{ending}"
            if not link.is_symlink():
                link.symlink_to(source)
            data[key] = str(link)
    return config | {"data": data}


def result_of(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job released, from its certificate."""
    tuning = certificate["tuning"]
    attempts = tuning["attempts"]
    shown = certificate["params"], certificate["passed"]
    chosen = next(
        (
            attempt
            for attempt in attempts
            if (attempt.get("params"), attempt.get("passed")) == shown
        ),
        attempts[-1],
    )
    passed = bool(
        chosen.get("passed") if tuning["goal"]["value"] is not None else chosen.get("params")
    )
    missed = certificate["outcome"] == "missed"
    return {
        "passed": passed,
        "missed": missed,
        "params": certificate["params"] if passed or missed else {},
        "score": chosen.get("score") if passed or missed else None,
        "confidence": tuning["confidence"],
        "spent": tuning["spent"],
        "goal": tuning["goal"],
        "attempts": len(attempts),
        "attempts_allowed": tuning["attempts_allowed"],
        "theorem": certificate["theorem"],
        "simulated": certificate["simulated"],
    }


def _check_delta(facts: Mapping[str, Any], given: Any, budget_kind: str) -> None:
    """Refuse a δ that is no number of that size; by default in ρ, that of as many rows."""
    if isinstance(given, (int, float)):
        known = facts
        if facts.get("delta") is None and budget_kind != "approx":
            known = {"delta": default_delta(head_of_facts(facts)[1])}
        require_delta(known, given, "privacy.delta")


def _check_largest(facts: Mapping[str, Any], settings: JobSettings, given: Any) -> None:
    most = facts.get("largest_epsilon")
    for field, levels in _levels(settings, given).items():
        if most is not None and max(levels, default=0.0) > most:
            raise InvalidInput(field, max(levels), f"the owner allows levels up to {most:g}")


def _levels(settings: JobSettings, given: Any) -> dict[str, tuple[float, ...]]:
    """The levels at which a job may train, by the key that states them."""
    levels = {"search.epsilons": settings.search.epsilons}
    if settings.model.training != "dp-sgd":  # what stops when it passes may cost the whole job
        most = given or min([settings.privacy.max_epsilon, *settings.search.epsilons[-1:]])
        levels["privacy.max_epsilon"] = (most,)
        if settings.model.levels is not None:
            levels["model.levels"] = settings.model.levels
    return levels


def _present(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
