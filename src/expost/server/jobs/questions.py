"""A question against the public facts of its data set, and its price. No data are touched.

A question is a :class:`.CountRequest` less what the owner states: source, person, bounds. It names
the wanted error first. Without an ε, the price is the smallest ε (with three digits) at which
the plan answers every group of the stated size. Everything that can be wrong with a question is
found here from public facts. Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from expost.analytics.count_plan import SIZES, plan_count
from expost.analytics.count_result import CountResult
from expost.analytics.pricing import ASSUMED_ROWS, AUTO, CheckedCount, CountPrice, price_request
from expost.analytics.quantile_request import CheckedQuantile, price_quantile
from expost.analytics.quantiles import QuantileProgress, QuantileResult, run_quantile
from expost.analytics.query import run_request
from expost.analytics.request import CountRequest, check_request, request_settings
from expost.analytics.sql_request import CheckedQuery
from expost.analytics.sql_result import QueryResult
from expost.analytics.sql_run import QueryRun, price_query, run_query
from expost.errors import InvalidInput
from expost.randomness.source import Randomness
from expost.server.jobs.datasets import (
    ROWS,
    TABLE,
    dataset_keys,
    require_delta,
    source_with_secrets,
)
from expost.server.jobs.error_questions import (
    ERRORS,
    CheckedErrors,
    checked_errors,
    errors_as_mean,
    question_as_mean,
)
from expost.server.jobs.sql_questions import (
    build_quantile,
    build_query,
    plan_quantiles,
    plan_sql,
    read_query,
    smallest_epsilon,
)
from expost.tables.typed_columns import split_condition

KINDS = ("count", "sum", "mean", "quantile", "query")
Checked = CheckedCount | CheckedQuantile | CheckedQuery | CheckedErrors
_ASKED = [name for name, (_, setting) in request_settings(CountRequest).items() if setting.analysts]


def read_question(
    facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str
) -> dict[str, Any]:
    """Check a question against the facts of its data set and fill in what it leaves open."""
    kind = asked.get("kind")
    if kind == ERRORS and facts["kind"] == ROWS:
        table, mean = errors_as_mean(facts, asked, budget_kind)
        named = {"kind": ERRORS, "release": asked.get("release")}
        return read_question(table, mean, budget_kind) | named
    if kind not in KINDS or facts["kind"] != TABLE:
        allowed = KINDS if facts["kind"] == TABLE else ("tune", ERRORS)
        raise InvalidInput("kind", kind, "this data set answers " + ", ".join(allowed))
    if kind == "query":
        question = read_query(facts, asked) | {"delta": _delta(facts, asked, budget_kind)}
        return _with_epsilon(facts, question)
    for name in ("sql", "release", *(("at", "within_rank") if kind != "quantile" else ())):
        if asked.get(name) is not None:
            raise InvalidInput(name, asked[name], f"it does not belong to a {kind}")
    by, where = list(asked.get("by") or ()), list(asked.get("where") or ())
    for column in by:
        if column not in facts["groups"]:
            raise InvalidInput("by", column, _one_of(facts["groups"]))
    for condition in where:
        _check_condition(facts, condition)
    column = asked.get("column")
    if kind != "count" and column not in facts["values"]:
        raise InvalidInput("column", column, _one_of(facts["values"]))
    private, keys = bool(asked.get("private_keys")), asked.get("keys")
    if keys is None and by and not private:
        keys = dataset_keys(facts, by)
        if keys is None:
            raise InvalidInput(
                "keys",
                None,
                "the groups of this column are not public: list them, or find them "
                "privately (private_keys)",
            )
    cap = asked.get("max_groups_per_user") or facts["max_groups_per_user"]
    within = asked.get("within")
    question = {name: asked.get(name) for name in _ASKED} | {
        "dataset": facts["name"],
        "by": by,
        "where": where,
        "keys": None if keys is None else [_plain(key) for key in keys],
        "private_keys": private,
        "within": 0.1 if within is None and asked.get("plus_minus") is None else within,
        "confidence": asked.get("confidence") or 0.9,
        "delta": _delta(facts, asked, budget_kind),
        "max_groups_per_user": (10 if cap is None and private else cap) if by else None,
        "size": asked.get("size") or facts["typical_group"],
        "count_rows": bool(asked.get("count_rows")),
        "max_rows_per_user": asked.get("max_rows_per_user") or facts["max_rows_per_user"],
    }
    if kind == "quantile":
        question |= _ranks(asked)
    return _with_epsilon(facts, question)


def _ranks(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a quantile has beside the fields of a mean; of a person one row counts by default."""
    for name in ("within", "plus_minus", "count_rows"):
        if asked.get(name):
            raise InvalidInput(name, asked[name], "the error of a quantile is within_rank")
    return {
        "at": list(asked.get("at") or (0.5,)),
        "within_rank": asked.get("within_rank") or 0.02,
        "within": None,
        "max_rows_per_user": asked.get("max_rows_per_user") or 1,
    }


def _with_epsilon(facts: Mapping[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    """A question with its price: the ε that was given, or the smallest that will do."""
    if question["epsilon"] is None and question["kind"] in _PLANS:
        size = (int(question["size"]),)

        def plan_at(epsilon: float, *, draft: bool) -> dict[str, Any]:
            asked = question | {"epsilon": epsilon}
            return _PLANS[question["kind"]](facts, asked, size, draft=draft)

        question["epsilon"] = smallest_epsilon(plan_at)
    elif question["epsilon"] is None:
        question["epsilon"] = _cheapest(
            _groups(question), question["size"], _plannable(facts, question)
        )
    most = facts.get("largest_epsilon")
    if most is not None and question["epsilon"] > most:
        raise InvalidInput(
            "epsilon",
            question["epsilon"],
            f"the owner allows at most {most:g} per request: accept a larger "
            "error, or ask about larger groups",
        )
    return question


def request_of_question(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as a request: with the source, the person and the bounds of the owner."""
    request = {name: question[name] for name in _ASKED}
    keys = request["keys"]
    request["keys"] = keys and [tuple(key) if isinstance(key, list) else key for key in keys]
    request |= {name: facts.get(name) for name in ("user", "table", "delimiter")}
    if question["kind"] != "count":
        request["bounds"] = facts["values"][question["column"]]
    counts = question["kind"] == "count"
    if counts and question["count_rows"]:
        request["max_rows_per_user"] = request["max_rows_per_user"] or "auto"
    elif counts:
        request["max_rows_per_user"] = None
    return request


def build_request(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    *,
    open_source: bool,
    model: bytes | None = None,
) -> Checked:
    """Return the checked request of a question; the source is opened or not, and no row is read.

    ``model`` is the released model whose errors are asked for, if it is to run.
    """
    if question["kind"] == ERRORS:
        if open_source and model is None:
            raise InvalidInput("release", question["release"], "the model is not here any more")
        mean = request_of_question(*question_as_mean(facts, question))
        return checked_errors(facts, question, mean, model)
    if question["kind"] == "query":
        return build_query(facts, question, open_source=open_source)
    if question["kind"] == "quantile":
        return build_quantile(facts, question, open_source=open_source)
    source = str(facts["source"])
    source = source_with_secrets(source) if open_source else source
    checked = check_request(source, request_of_question(facts, question), open_table=open_source)
    return replace(checked, source=f"data set {facts['name']}")


def price_question(
    facts: Mapping[str, Any], question: Mapping[str, Any], budget_kind: str
) -> CountPrice:
    """Return what a question may cost in a budget of this kind."""
    return price_checked(build_request(facts, question, open_source=False), budget_kind)


def price_checked(checked: Checked, budget_kind: str) -> CountPrice:
    """Return what a checked request may cost in a budget of this kind."""
    if isinstance(checked, CheckedQuery):
        return price_query(checked, budget_kind)
    if isinstance(checked, CheckedQuantile):
        return price_quantile(checked, budget_kind)
    if isinstance(checked, CheckedErrors):
        return price_request(checked.mean, budget_kind)
    return price_request(checked, budget_kind)


def run_checked(
    checked: Checked, priced: CountPrice, randomness: Randomness, evidence: dict[str, Any] | None
) -> CountResult | QuantileResult | QueryResult:
    """Run a request whose worst case is reserved, and return what it releases."""
    if isinstance(checked, CheckedQuery):
        return run_query(QueryRun(checked, randomness), priced, evidence)
    if isinstance(checked, CheckedQuantile):
        return run_quantile(checked, priced, randomness, evidence, QuantileProgress())
    if isinstance(checked, CheckedErrors):
        return run_request(checked.measured(), priced.charges, randomness, evidence)
    return run_request(checked, priced.charges, randomness, evidence)


def plan_question(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a question: what groups of some sizes cost, and how many fit."""
    if question["kind"] == ERRORS:
        return plan_question(*question_as_mean(facts, question))
    if question["kind"] in _PLANS:
        return _PLANS[question["kind"]](facts, question, ())
    sizes = tuple(sorted({*SIZES, int(question["size"])}))
    return _plan(_groups(question), sizes, question["epsilon"], _plannable(facts, question))


def _groups(question: Mapping[str, Any]) -> int | None:
    """How many groups are listed; None if they are found privately."""
    if question["private_keys"]:
        return None
    return 1 if question["keys"] is None else len(question["keys"])


def _plannable(facts: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    """The part of a request that its plan depends on, less ε, as a text that caches can compare."""
    left_out = ("epsilon", "keys", "by", "where", "user", "table", "delimiter")
    request = request_of_question(facts, question)
    return json.dumps({name: request[name] for name in sorted(request) if name not in left_out})


@lru_cache(maxsize=4096)
def _plan(
    groups: int | None, sizes: tuple[int, ...], epsilon: float, request: str, draft: bool = False
) -> dict[str, Any]:
    """A plan; the cache holds public numbers only."""
    asked = json.loads(request) | {"epsilon": epsilon}
    return plan_count(groups=groups, sizes=sizes, draft=draft, **asked).as_dict()


@lru_cache(maxsize=4096)
def _cheapest(groups: int | None, size: int, request: str) -> float:
    """The smallest ε of a fine grid at which the plan answers all groups of a size."""

    def plan_at(epsilon: float, *, draft: bool) -> dict[str, Any]:
        return _plan(groups, (size,), epsilon, request, draft)

    return smallest_epsilon(plan_at, _first_guess(size, json.loads(request)))


def _first_guess(size: int, request: Mapping[str, Any]) -> float:
    """Where a search begins: noise whose tail is the wanted error, if no one shares ε."""
    try:
        error, rows = request["within"] or 0.1, request["max_rows_per_user"]
        folds = max(0.1, -math.log(1 - min(request["confidence"], 1 - 1e-9)))
        most = request["max_groups_per_user"] or 1
        if request["kind"] == "mean":
            low, high = request["bounds"]
            wanted = request["plus_minus"] or error * max(abs(low + high) / 2, (high - low) / 4)
            error = wanted / (high - low) * size
        else:
            error = request["plus_minus"] or error * size
        folds *= ASSUMED_ROWS if rows == AUTO else rows or 1
        guess, delta = 1.3 * folds * most / error, request["delta"]
        if delta is not None:
            rho = most * (0.85 * folds / error) ** 2 / 2
            guess = rho + 2 * math.sqrt(-rho * math.log(delta))
        return guess if 0 < guess < math.inf else 0.1
    except (ArithmeticError, TypeError, ValueError):  # the look says which field is not valid
        return 0.1


def _delta(facts: Mapping[str, Any], asked: Mapping[str, Any], kind: str) -> float | None:
    """δ: none in a pure budget; else that of the question or of the owner."""
    given: float | None = asked.get("delta")
    if kind == "pure":
        if given is not None:
            raise InvalidInput("delta", given, "the budget is pure: leave δ out")
        return None
    require_delta(facts, given, "delta")
    chosen = given if given is not None else facts.get("delta")
    if chosen is None and kind in ("zcdp", "renyi"):
        raise InvalidInput("delta", None, "the budget needs a δ")
    return chosen


def _check_condition(facts: Mapping[str, Any], condition: str) -> None:
    """Refuse a condition that names other columns than the owner allows, or the wrong kind."""
    column, sign, wanted = split_condition(condition)
    allowed = dict.fromkeys([*facts["filters"], *facts["groups"], *facts["values"]])
    if column not in allowed:
        raise InvalidInput("where", column, _one_of(allowed))
    kind = facts["columns"][column]
    if kind == "boolean" and (wanted.lower() not in ("true", "false") or sign not in ("=", "!=")):
        raise InvalidInput("where", wanted, "this column is true or false")
    if kind == "number":
        try:
            sound = float(wanted) == float(wanted)
        except ValueError:
            sound = False
        if not sound:
            raise InvalidInput("where", wanted, "this column holds numbers: compare with a number")


def _one_of(names: Mapping[str, Any]) -> str:
    return "the data set has " + (", ".join(map(repr, names)) if names else "none")


def _plain(key: Any) -> Any:
    return [str(part) for part in key] if isinstance(key, (list, tuple)) else str(key)


_PLANS: dict[str, Callable[..., dict[str, Any]]] = {"quantile": plan_quantiles, "query": plan_sql}
