"""Queries in SQL and quantiles at a server, by the functions of the command.

A query is priced on an empty table with the columns that the owner listed, so no private table is
opened, and other columns do not exist. The person may be counted, and nothing else. Joined tables
are those that the owner listed as public. Tests: ``tests/server/test_sql_questions.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from expost.analytics.count_plan import SIZES
from expost.analytics.quantile_request import CheckedQuantile, check_quantile, plan_quantile
from expost.analytics.sql_parser import (
    SqlQuestion,
    parse_question,
    parsed_expression,
    refused,
    sqlglot_module,
)
from expost.analytics.sql_question import where_lists
from expost.analytics.sql_request import CheckedQuery, check_query, plan_query
from expost.analytics.sql_tables import bare_name
from expost.errors import ExpostError, InvalidInput
from expost.server.jobs.datasets import require_distinct, source_with_secrets, table_columns
from expost.server.problems import Unavailable
from expost.tables.typed_columns import ibis_module

_SMALLEST = 1e-4
STEPS = 420  # seven decades; neighbouring ε differ by about four per cent
_PER_DECADE = 60
_GUIDED = 4  # looks that go where the one before says
_TOO_LITTLE = ("epsilon", "plus_minus", "max_group_epsilon")  # what a small ε is refused for
_PARTS_OF_SELECT = ("by", "where", "column", "count_rows", "at")


def epsilon_at(step: int) -> float:
    """Return a point of the grid of prices, rounded to three digits."""
    return float(f"{_SMALLEST * 10 ** (step / _PER_DECADE):.3g}")


def smallest_epsilon(plan_at: Callable[..., dict[str, Any]], first: float = 0.1) -> float:
    """Return the smallest ε of the grid at which a plan answers all groups.

    ``plan_at`` returns the plan at an ε, or a draft of it: smaller ε than those at which the draft
    answers all groups are not looked at again. ``first`` is a guess.
    """
    step = min(max(round(_PER_DECADE * math.log10(first / _SMALLEST)), 0), STEPS)
    least = 0
    for draft in (True, False):
        look = partial(look_at_step, plan_at=partial(plan_at, draft=draft))
        step = least = smallest_step(look, step, least)
    return epsilon_at(step)


def smallest_step(look: Callable[[int], tuple[bool, int]], step: int, low: int) -> int:
    """Return the smallest step from ``low`` on at which a plan answers all groups.

    ``look`` says whether a step does, and which step is likely the smallest to do so. Begins at
    ``step`` and goes on where a look says. After some looks, steps grow, and the interval is halved
    if both ends are known.
    """
    known, high, looks = low, STEPS + 1, 0  # it is in low … high; the last: there is none
    while low < high:
        fits, likely = look(step)
        low, high, looks = (low, step, looks + 1) if fits else (step + 1, high, looks + 1)
        least = 2 ** max(0, looks - _GUIDED)
        if least > 1 and low > known and high <= STEPS:
            step = (low + high) // 2
        else:
            step = min(likely, step - least) if fits else max(likely, step + least)
            step = min(max(step, low), high - 1)
    if low > STEPS:
        raise InvalidInput(
            "within or plus_minus",
            "this error",
            "no ε up to 1000 gives it for groups of this "
            "size; accept a larger error, or ask about larger groups",
        )
    return low


def look_at_step(step: int, plan_at: Callable[[float], dict[str, Any]]) -> tuple[bool, int]:
    """Return whether the ε of a step answers all groups, and which step is likely the smallest.

    One group costs about the same whatever the total is, so a look tells how large it must be.
    """
    try:
        plan = plan_at(epsilon_at(step))
    except InvalidInput as error:
        if step == STEPS or error.field not in _TOO_LITTLE:  # larger ε have no plan either
            raise
        return False, step + _PER_DECADE  # so small an ε has no plan for this error
    planned = plan["sizes"][0]
    smallest = plan.get("smallest_size_for_all")
    if smallest:  # noise, and with it the smallest group, falls with ε
        ratio = min(max(smallest / planned["size"], 1e-9), 1e9)
        return planned["groups"] is None, step + math.ceil(_PER_DECADE * math.log10(ratio))
    if planned["cost"] is None:
        return False, step + _PER_DECADE
    needed = planned["cost"] * plan["max_groups_per_user"] / plan["for_values"]
    per_decade = _PER_DECADE / (1 if plan["unit"] == "epsilon" else 2)
    return planned["groups"] is None, step + math.ceil(per_decade * math.log10(needed))


def _named(error: InvalidInput) -> ExpostError:
    """A refusal as analysts see it: the clause is part of what would be valid."""
    if error.field in ("source", "public"):  # which the owner named; it may say where it is
        return Unavailable("a table of this data set cannot be read now", "sql", "ask an owner")
    if error.field != "query":
        return error
    return InvalidInput("sql", None, f"{str(error.value)[:200]}: {error.valid}")


def read_query(facts: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check the SELECT of a question against the facts of its data set; ε may be open."""
    for name in _PARTS_OF_SELECT:
        if asked.get(name):
            raise InvalidInput(name, asked[name], "it is part of the SELECT")
    try:
        parsed = parse_question(asked.get("sql"))
        _check_tables(parsed, facts)
        _check_person(parsed, str(facts["user"]))
    except InvalidInput as error:
        raise _named(error) from None
    within, plus_minus = asked.get("within"), asked.get("plus_minus")
    keys = asked.get("keys")
    return {
        "dataset": facts["name"],
        "kind": "query",
        "sql": parsed.sql,
        **dict.fromkeys(_PARTS_OF_SELECT),
        "by": [],
        "where": [],
        "keys": keys and [list(key) if isinstance(key, (list, tuple)) else key for key in keys],
        "private_keys": bool(asked.get("private_keys")),
        "within": 0.1 if within is None and plus_minus is None else within,
        "plus_minus": plus_minus,
        "within_rank": asked.get("within_rank"),
        "confidence": asked.get("confidence") or 0.9,
        "epsilon": asked.get("epsilon"),
        "size": asked.get("size") or facts["typical_group"],
        "max_groups_per_user": asked.get("max_groups_per_user") or facts["max_groups_per_user"],
        "max_rows_per_user": asked.get("max_rows_per_user") or facts["max_rows_per_user"],
    }


def _check_tables(parsed: SqlQuestion, facts: Mapping[str, Any]) -> None:
    """Refuse other tables than the data set and the public ones that its owner listed."""
    own, public = str(facts["name"]), list(facts.get("public_tables") or ())
    if parsed.table.lower() != own.lower():
        raise refused(f"FROM {parsed.table}", f"the table of this data set is {own!r}")
    for join in parsed.joins:
        if join.name.lower() not in {name.lower() for name in public}:
            listed = ", ".join(map(repr, public)) or "none"
            raise refused(f"JOIN {join.name}", f"the owner listed as public: {listed}")


def _check_person(parsed: SqlQuestion, user: str) -> None:
    """Refuse conditions, groups and values of the person's column: it may be counted only."""
    column = sqlglot_module().exp.Column
    texts = [text for _, text in parsed.groups] + [parsed.where]
    texts += [side for join in parsed.joins for pair in join.on for side in pair]
    for aggregate in parsed.aggregates:
        counted = (
            aggregate.function == "distinct" and bare_name(aggregate.value or "") == user.lower()
        )
        texts += [aggregate.where, None if counted else aggregate.value]
    for text in texts:
        used = [] if text is None else parsed_expression(text).find_all(column)
        if any(node.name.lower() == user.lower() for node in used):
            raise refused(str(text), f"of {user} only COUNT(DISTINCT {user}) is answered")


def _options(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """A question as options of ``expost.query``, less source and ε."""
    same = ("private_keys", "within", "plus_minus", "within_rank", "confidence", "delta")
    options = {name: question[name] for name in same}
    keys = question["keys"]
    if keys is not None:
        options["keys"] = [tuple(key) if isinstance(key, list) else key for key in keys]
    elif not question["private_keys"]:
        parsed = parse_question(question["sql"])
        stated = {
            name: facts["groups"].get(_listed_name(facts, text))
            for name, text in parsed.groups
            if where_lists(parsed, text) is None
        }
        options["keys"] = {name: keys for name, keys in stated.items() if keys} or None
    return options | {
        "user": facts["user"],
        "public": list(facts.get("public_tables") or ()),
        "bounds": facts["values"],
        "max_groups_per_user": question["max_groups_per_user"],
        "max_rows_per_user": question["max_rows_per_user"],
        "delimiter": facts.get("delimiter"),
    }


def _listed_name(facts: Mapping[str, Any], text: str) -> str:
    """The column of a group as the owner wrote it."""
    names = {str(column).lower(): str(column) for column in facts["groups"]}
    return names.get(bare_name(text), "")


def _sources(facts: Mapping[str, Any], *, opened: bool) -> dict[str, Any]:
    """The tables of a data set: the private one as it is, or empty, with the listed columns."""
    stated = facts.get("public_tables") or {}
    public = {name: source_with_secrets(location) for name, location in stated.items()}
    if opened:
        own = source_with_secrets(str(facts["source"]))
        listed = list(facts["columns"])
        require_distinct(table_columns(facts, listed), listed)
        return {facts["name"]: (own, facts.get("table")), **public}
    usual = {"number": "float64", "boolean": "boolean", "text": "string"}
    types = facts.get("types") or {name: usual[kind] for name, kind in facts["columns"].items()}
    empty = ibis_module().schema(types).to_pyarrow().empty_table()
    return {facts["name"]: empty, **public}


def build_query(
    facts: Mapping[str, Any], question: Mapping[str, Any], *, open_source: bool
) -> CheckedQuery:
    """Return the checked query of a question; no private row is read."""
    options = _options(facts, question) | {"source": _sources(facts, opened=open_source)}
    try:
        checked = check_query(question["sql"], options | {"epsilon": question["epsilon"]})
    except InvalidInput as error:
        raise _named(error) from None
    compiled = replace(checked.compiled, source=f"data set {facts['name']}")
    return replace(checked, compiled=compiled)


def plan_sql(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    sizes: tuple[int, ...] = (),
    *,
    draft: bool = False,
) -> dict[str, Any]:
    """Return the plan of a query: what all parts together need for groups of some sizes."""
    sizes = sizes or tuple(sorted({*SIZES, int(question["size"])}))
    planned: dict[str, Any] = json.loads(
        _plan_sql(json.dumps([dict(facts), dict(question)]), sizes, draft)
    )
    return planned


@lru_cache(maxsize=1024)
def _plan_sql(asked: str, sizes: tuple[int, ...], draft: bool) -> str:
    """A plan as a text; the cache holds public numbers only."""
    facts, question = json.loads(asked)
    options: dict[str, Any] = _options(facts, question) | {"epsilon": question["epsilon"]}
    options |= {"source": _sources(facts, opened=False), "sizes": sizes}
    try:
        plan = plan_query(question["sql"], draft=draft, **options)
    except InvalidInput as error:
        raise _named(error) from None
    planned, smallest = plan.as_dict(), [part.smallest for part in plan.parts]
    together, most = [], planned["max_groups_per_user"]
    for index, size in enumerate(sizes):
        parts = [(part["sizes"][index], part["share"]) for part in planned["parts"]]
        groups = [part["groups"] for part, _ in parts if part["groups"] is not None]
        # In parts of the total: each aggregate must do with its share.
        known = all(part["cost"] is not None for part, _ in parts)
        worst = max(part["cost"] / share for part, share in parts) if known else None
        cost = None if worst is None else worst * planned["total"]
        together.append({"size": size, "cost": cost, "groups": min(groups, default=None)})
    told = {"sizes": together, "for_values": planned["total"], "max_groups_per_user": most}
    known_sizes = [size for size in smallest if size is not None]
    if len(known_sizes) == len(smallest):
        told["smallest_size_for_all"] = max(known_sizes)
    return json.dumps(planned | told)


def quantile_options(facts: Mapping[str, Any], question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as options of ``expost.quantile``."""
    names = (
        *("column", "at", "within_rank", "epsilon", "delta", "by", "where", "private_keys"),
        *("max_groups_per_user", "max_rows_per_user", "confidence"),
    )
    options = {name: question[name] for name in names} | {"user": facts["user"]}
    keys = question["keys"]
    options["keys"] = keys and [tuple(key) if isinstance(key, list) else key for key in keys]
    options |= {name: facts.get(name) for name in ("table", "delimiter")}
    return options | {"bounds": facts["values"][question["column"]]}


def build_quantile(
    facts: Mapping[str, Any], question: Mapping[str, Any], *, open_source: bool
) -> CheckedQuantile:
    """Return the checked quantiles of a question; no row is read."""
    source, options = str(facts["source"]), quantile_options(facts, question)
    source = source_with_secrets(source) if open_source else source
    checked = check_quantile(source, options, open_table=open_source)
    return replace(checked, base=replace(checked.base, source=f"data set {facts['name']}"))


def plan_quantiles(
    facts: Mapping[str, Any],
    question: Mapping[str, Any],
    sizes: tuple[int, ...] = (),
    *,
    draft: bool = False,
) -> dict[str, Any]:
    """Return the plan of quantiles, or a draft: what an attempt at groups of some sizes costs."""
    sizes = sizes or tuple(sorted({*SIZES, int(question["size"])}))
    given = quantile_options(facts, question)
    left_out = ("by", "where", "user", "keys", "table", "delimiter")
    options: dict[str, Any] = {name: given[name] for name in given if name not in left_out}
    planned = plan_quantile(sizes=sizes, **options)
    listed = 1 if question["keys"] is None else len(question["keys"])
    most = question["max_groups_per_user"] or listed
    for size in planned["sizes"]:
        fits = size["cost"] * most <= planned["for_values"]
        size["groups"] = None if fits else int(planned["for_values"] / size["cost"])
    return planned | {"max_groups_per_user": most}
