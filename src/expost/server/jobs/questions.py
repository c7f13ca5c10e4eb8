"""A question against the public facts of its data set, and its price. No data are touched.

A question is a :class:`.CountRequest` less what the owner states: source, person, bounds. It names
the wanted error first. Without an ε, the price is the smallest ε (with three digits) at which
the plan answers every group of the stated size. Everything that can be wrong with a question is
found here from public facts. Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from expost.analytics.count_plan import SIZES, plan_count
from expost.analytics.pricing import CheckedCount, CountPrice, price_request
from expost.analytics.request import CountRequest, check_request, request_settings
from expost.errors import InvalidInput
from expost.server.jobs.datasets import TABLE, dataset_keys
from expost.tables.typed_columns import split_condition

KINDS = ("count", "sum", "mean")
_ASKED = [name for name, (_, setting) in request_settings(CountRequest).items() if setting.analysts]
_SMALLEST = 1e-4
_STEPS = 420  # seven decades; neighbouring ε differ by about four per cent
_PER_DECADE = 60
_FIRST_STEP = 180  # ε = 0.1
_LOOKS = 8  # guided by a guess; further ones halve the interval


def read_question(
    facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str
) -> dict[str, Any]:
    """Check a question against the facts of its data set and fill in what it leaves open."""
    kind = asked.get("kind")
    if kind not in KINDS or facts["kind"] != TABLE:
        allowed = KINDS if facts["kind"] == TABLE else ("tune",)
        raise InvalidInput("kind", kind, "this data set answers " + ", ".join(allowed))
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
    if question["epsilon"] is None:
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
    rows = request["max_rows_per_user"] or "auto"
    counts_users = question["kind"] == "count" and not question["count_rows"]
    request["max_rows_per_user"] = None if counts_users else rows
    return request


def build_request(
    facts: Mapping[str, Any], question: Mapping[str, Any], *, open_source: bool
) -> CheckedCount:
    """Return the checked request of a question; the source is opened or not, and no row is read."""
    source = str(facts["source"])
    checked = check_request(source, request_of_question(facts, question), open_table=open_source)
    return replace(checked, source=f"data set {facts['name']}")


def price_question(
    facts: Mapping[str, Any], question: Mapping[str, Any], budget_kind: str
) -> CountPrice:
    """Return what a question may cost in a budget of this kind."""
    return price_request(build_request(facts, question, open_source=False), budget_kind)


def plan_question(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a question: what groups of some sizes cost, and how many fit."""
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
    groups: int | None, sizes: tuple[int, ...], epsilon: float, request: str
) -> dict[str, Any]:
    """A plan; the cache holds public numbers only."""
    return plan_count(groups=groups, sizes=sizes, epsilon=epsilon, **json.loads(request)).as_dict()


@lru_cache(maxsize=4096)
def _cheapest(groups: int | None, size: int, request: str) -> float:
    """The smallest ε of a fine grid at which the plan answers all groups of a size."""

    low, high, step = (
        0,
        _STEPS + 1,
        _FIRST_STEP,
    )  # the step is in low … high; the last: there is none
    for number in range(_STEPS):
        fits, likely = _look(groups, size, request, step)
        low, high = (low, step) if fits else (step + 1, high)
        if low == high:
            break
        ahead = min(likely, step - 1) if fits else max(likely, step + 1)
        step = min(max(ahead, low), high - 1) if number < _LOOKS else (low + high) // 2
    if low > _STEPS:
        raise InvalidInput(
            "within or plus_minus",
            "this error",
            "no ε up to 1000 gives it for groups of this "
            "size; accept a larger error, or ask about larger groups",
        )
    return _epsilon_at(low)


def _look(groups: int | None, size: int, request: str, step: int) -> tuple[bool, int]:
    """Whether the ε of a step answers all groups, and which step is likely the smallest to do so.

    One group costs about the same whatever the total is, so a look tells how large it must be.
    """
    try:
        plan = _plan(groups, (size,), _epsilon_at(step), request)
    except InvalidInput:
        if step == _STEPS:  # larger ε have no plan either
            raise
        return False, step + _PER_DECADE  # so small an ε has no plan for this error
    planned = plan["sizes"][0]
    if planned["cost"] is None:
        return False, step + _PER_DECADE
    needed = planned["cost"] * plan["max_groups_per_user"] / plan["for_values"]
    per_decade = _PER_DECADE / (1 if plan["unit"] == "epsilon" else 2)
    return planned["groups"] is None, step + math.ceil(per_decade * math.log10(needed))


def _epsilon_at(step: int) -> float:
    """A point of the grid, rounded to three digits."""
    return float(f"{_SMALLEST * 10 ** (step / _PER_DECADE):.3g}")


def _delta(facts: Mapping[str, Any], asked: Mapping[str, Any], kind: str) -> float | None:
    """δ: none in a pure budget; else that of the question or of the owner."""
    given: float | None = asked.get("delta")
    if kind == "pure":
        if given is not None:
            raise InvalidInput("delta", given, "the budget is pure: leave δ out")
        return None
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
