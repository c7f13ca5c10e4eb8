"""Tuning at a desk: a question against the public facts of the rows, its price, and its run.

The price comes from the plan of the levels, without data. A job keeps its files in a folder of the
desk, so that it continues after a crash with the same draws.
Tests: ``tests/server/test_tuning.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput
from expost.selection.attempts import plan_for_bar
from expost.selection.plan import plan as make_plan
from expost.server.datasets import ROWS
from expost.tuning.job import tune
from expost.tuning.job_folder import CERTIFICATE
from expost.tuning.metrics import METRICS
from expost.tuning.model_file import MODEL
from expost.tuning.settings import MAX_EPSILON, read_settings
from expost.tuning.settings import Settings as JobSettings

_TABLES = ("model", "search", "goal", "privacy")
_KINDS = ("logistic", "softmax", "linear", "cnn")
_MOST_EPOCHS = 1000  # of one training: a longer one would keep a worker from others


def read_job(
    facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str
) -> dict[str, Any]:
    """Check a tuning job against the facts of its rows; return it with all its tables."""
    if facts["kind"] != ROWS:
        raise InvalidInput("kind", "tune", "this data set answers count, sum, mean")
    if budget_kind in ("pure", "zcdp"):
        raise InvalidInput("budget", budget_kind, "tuning needs an approx or a renyi budget")
    tables = {name: dict(asked.get(name) or {}) for name in _TABLES}
    kind = tables["model"].get("kind")
    if kind not in _KINDS:  # "module:factory" would run code of the analyst beside the data
        raise InvalidInput("model.kind", kind, "give one of " + ", ".join(_KINDS))
    metric = tables["goal"].get("metric") or "accuracy"
    if metric not in METRICS:  # nor a function of the analyst
        raise InvalidInput("goal.metric", metric, "give one of " + ", ".join(METRICS))
    if tables["privacy"].get("delta") is None:
        tables["privacy"]["delta"] = facts.get("delta")
    limited = tables["model"].get("training", "dp-sgd") != "dp-sgd"
    if limited and facts.get("largest_epsilon") and tables["privacy"].get("max_epsilon") is None:
        tables["privacy"]["max_epsilon"] = min(MAX_EPSILON, facts["largest_epsilon"])
    tables = {name: _present(table) for name, table in tables.items()}
    settings = read_settings(config_of(facts, tables))
    _check_largest(facts, settings)
    longest = max((each.epochs for each in settings.search.settings), default=0)
    if longest > _MOST_EPOCHS:
        raise InvalidInput("search.epochs", longest, f"a desk trains at most {_MOST_EPOCHS} epochs")
    return {"dataset": facts["name"], "kind": "tune", **tables}


def config_of(facts: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job in the form of its TOML file."""
    return {"data": dict(facts["data"]), **{name: dict(tables[name]) for name in _TABLES}}


def planned(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chance of reaching the bar and the price, from the levels alone."""
    settings = read_settings(config_of(facts, question))
    search, privacy = settings.search, settings.privacy
    return plan_document(
        list(search.epsilons),
        len(search.settings),
        privacy.delta,
        repeats=privacy.repeats,
        attempts=privacy.attempts,
        bar=settings.goal.bar is not None,
    )


def plan_document(
    epsilons: list[float],
    configurations: int,
    delta: float,
    *,
    repeats: int = 1,
    attempts: int | None = None,
    bar: bool = True,
) -> dict[str, Any]:
    """Return the plan of a tuning job, as ``expost plan --json`` prints it."""
    return dict(_document(tuple(epsilons), configurations, delta, repeats, attempts, bar))


@lru_cache(maxsize=1024)
def _document(
    epsilons: tuple[float, ...],
    configurations: int,
    delta: float,
    repeats: int,
    attempts: int | None,
    bar: bool,
) -> dict[str, Any]:
    """A plan; it takes seconds, and the cache holds public numbers only."""
    job = make_plan(list(epsilons), configurations, delta=delta, repeats=repeats)
    if not bar:
        return job.as_dict()
    reach = plan_for_bar(
        list(epsilons),
        [each.guarantee for each in job.candidates],
        job.configurations * job.repeats,
        delta=delta,
        attempts=attempts,
    )
    return {**reach.as_dict(), **job.as_dict()}


def run(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    *,
    folder: Path,
    ledger: Any,
    budget: str,
    analyst: str,
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
            out=folder,
            executor=executor,
            stop_early=False,  # the time that an attempt takes depends on the draw alone
        )
    certificate = json.loads((folder / CERTIFICATE).read_text(encoding="utf-8"))
    model = folder / MODEL
    return (
        {"result": result_of(certificate), "certificate": certificate},
        model.read_bytes() if model.exists() else None,
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
    chosen = next((each for each in attempts if each.get("passed")), attempts[-1])
    passed = bool(
        chosen.get("passed") if tuning["goal"]["bar"] is not None else chosen.get("params")
    )
    return {
        "passed": passed,
        "params": chosen.get("params") if passed else {},
        "score": chosen.get("score") if passed else None,
        "confidence": tuning["confidence"],
        "spent": tuning["spent"],
        "goal": tuning["goal"],
        "attempts": len(attempts),
        "attempts_allowed": tuning["attempts_allowed"],
        "theorem": certificate["theorem"],
        "simulated": certificate["simulated"],
    }


def _check_largest(facts: Mapping[str, Any], settings: JobSettings) -> None:
    most = facts.get("largest_epsilon")
    for field, levels in _levels(settings).items():
        if most is not None and max(levels) > most:
            raise InvalidInput(field, max(levels), f"the owner allows levels up to {most:g}")


def _levels(settings: JobSettings) -> dict[str, tuple[float, ...]]:
    """The levels at which a job may train, by the key that states them."""
    found = {"search.epsilons": settings.search.epsilons}
    if settings.model.training != "dp-sgd":  # what stops when it passes may cost the whole job
        found["privacy.max_epsilon"] = (settings.privacy.limit,)
        if settings.model.levels is not None:
            found["model.levels"] = settings.model.levels
    return found


def _present(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
