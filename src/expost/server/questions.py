"""A question against the public facts of its data set, and its price. No data are touched.

A question names the wanted error first. Without an ε, the price is the smallest ε (with three
digits) at which the plan answers every group of the stated size; :mod:`expost.analytics.plan` has
the rules. Everything that can be wrong with a question is found here from public facts.
Tests: ``tests/server/test_questions.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from expost.analytics.columns import _CONDITION, Measure
from expost.analytics.plan import SIZES, plan
from expost.analytics.query import value_measure
from expost.analytics.request import Request, make_request
from expost.errors import InvalidInput
from expost.server.datasets import TABLE, keys_of

KINDS = ("count", "sum", "mean")
_SMALLEST, _LARGEST = 1e-4, 1e3
_STEPS = 420  # seven decades; neighbouring ε differ by about four per cent
_PER_DECADE = 60


@dataclass(frozen=True)
class Question:
    """A checked question about a table.

    Parameters
    ----------
    document : mapping
        The question with all defaults filled in, as JSON.
    measure : Measure
        What is measured.
    groups : int or None
        How many groups are listed; None if they are found privately.
    """

    document: Mapping[str, Any]
    measure: Measure
    groups: int | None

    @property
    def options(self) -> dict[str, Any]:
        """The settings that a plan needs."""
        asked = self.document
        return {
            name: asked[name]
            for name in ("within", "plus_minus", "delta", "confidence", "max_groups_per_user")
        } | {"private_keys": asked["private_keys"]}


def read_question(facts: Mapping[str, Any], asked: Mapping[str, Any], budget_kind: str) -> Question:
    """Check a question against the facts of its data set and fill in what it leaves open."""
    kind = asked.get("kind")
    if kind not in KINDS or facts["kind"] != TABLE:
        allowed = KINDS if facts["kind"] == TABLE else ("tune",)
        raise InvalidInput("kind", kind, "this data set answers " + ", ".join(allowed))
    by = list(asked.get("by") or ())
    for column in by:
        if column not in facts["groups"]:
            raise InvalidInput("by", column, _one_of(facts["groups"]))
    where = list(asked.get("where") or ())
    for condition in where:
        _check_condition(facts, condition)
    private = bool(asked.get("private_keys"))
    keys = asked.get("keys")
    if keys is None and by and not private:
        keys = keys_of(facts, by)
        if keys is None:
            raise InvalidInput(
                "keys",
                None,
                "the groups of this column are not public: list them, or find them "
                "privately (private_keys)",
            )
    delta = _delta(facts, asked, budget_kind)
    within, plus_minus = asked.get("within"), asked.get("plus_minus")
    if within is None and plus_minus is None:
        within = 0.1
    document = {
        "dataset": facts["name"],
        "kind": kind,
        "by": by,
        "where": where,
        "keys": None if keys is None else [_plain(key) for key in keys],
        "private_keys": private,
        "within": within,
        "plus_minus": plus_minus,
        "confidence": asked.get("confidence") or 0.9,
        "delta": delta,
        "max_groups_per_user": _groups_cap(facts, asked, by, private),
        "epsilon": asked.get("epsilon"),
        "size": asked.get("size") or facts["typical_group"],
        "rows": bool(asked.get("rows")),
        "column": asked.get("column"),
        "max_rows_per_user": asked.get("max_rows_per_user") or facts["max_rows_per_user"],
    }
    measure = _measure(facts, document)
    groups = None if private else len(keys) if keys is not None else 1
    return _priced(facts, Question(document, measure, groups))


def _priced(facts: Mapping[str, Any], question: Question) -> Question:
    """The question with its ε."""
    document = dict(question.document)
    epsilon = document["epsilon"]
    if epsilon is None:
        epsilon = _cheapest(question.measure, question.groups, document["size"], _frozen(question))
        document["epsilon"] = epsilon
    most = facts.get("largest_epsilon")
    if most is not None and epsilon > most:
        raise InvalidInput(
            "epsilon",
            epsilon,
            f"the owner allows at most {most:g} per request: accept a larger "
            "error, or ask about larger groups",
        )
    return replace(question, document=document)


def make(facts: Mapping[str, Any], question: Question, *, opened: bool) -> Request:
    """Return the request of a question; with ``opened`` the table is opened, but no row is read."""
    asked = question.document
    keys = asked["keys"]
    request = make_request(
        str(facts["source"]),
        question.measure,
        by=asked["by"] or None,
        user=facts["user"],
        where=asked["where"],
        within=asked["within"],
        plus_minus=asked["plus_minus"],
        confidence=asked["confidence"],
        epsilon=asked["epsilon"],
        delta=asked["delta"],
        keys=None if keys is None else [tuple(k) if isinstance(k, list) else k for k in keys],
        private_keys=asked["private_keys"],
        max_groups_per_user=asked["max_groups_per_user"],
        table=facts["table"],
        delimiter=facts["delimiter"],
        opened=opened,
    )
    return replace(request, source=f"data set {facts['name']}")


def stored_question(facts: Mapping[str, Any], document: Mapping[str, Any]) -> Question:
    """Return a question that was checked and recorded before."""
    keys = document["keys"]
    groups = None if document["private_keys"] else 1 if keys is None else len(keys)
    return Question(document, _measure(facts, document), groups)


def planned(question: Question) -> dict[str, Any]:
    """Return the plan of a question: what groups of some sizes cost, and how many fit."""
    sizes = tuple(sorted({*SIZES, int(question.document["size"])}))
    return _plan(
        question.measure, question.groups, question.document["epsilon"], sizes, _frozen(question)
    )


Frozen = tuple[tuple[str, Any], ...]


def _frozen(question: Question) -> Frozen:
    return tuple(sorted(question.options.items()))


@lru_cache(maxsize=4096)
def _plan(
    measure: Measure, groups: int | None, epsilon: float, sizes: tuple[int, ...], options: Frozen
) -> dict[str, Any]:
    """A plan; the cache holds public numbers only."""
    return plan(
        groups=groups, measure=measure, sizes=sizes, epsilon=epsilon, **dict(options)
    ).as_dict()


@lru_cache(maxsize=4096)
def _cheapest(measure: Measure, groups: int | None, size: int, options: Frozen) -> float:
    """The smallest ε of a fine grid at which the plan answers all groups of a size."""

    def enough(place: int) -> bool:
        found = _plan(measure, groups, _epsilon_at(place), (size,), options)
        return found["sizes"][0]["cost"] is not None and found["sizes"][0]["groups"] is None

    low, high = 0, _STEPS
    if not enough(high):
        raise InvalidInput(
            "within or plus_minus",
            "this error",
            "no ε up to 1000 gives it for groups of this "
            "size; accept a larger error, or ask about larger groups",
        )
    while low < high:
        middle = (low + high) // 2
        try:
            found = enough(middle)
        except InvalidInput:  # so small an ε has no plan for this error
            found = False
        low, high = (low, middle) if found else (middle + 1, high)
    return _epsilon_at(low)


def _epsilon_at(place: int) -> float:
    """A point of the grid, rounded to three digits."""
    return float(f"{_SMALLEST * 10 ** (place / _PER_DECADE):.3g}")


def _measure(facts: Mapping[str, Any], asked: Mapping[str, Any]) -> Measure:
    """What a question measures; bounds are those of the owner."""
    if asked["kind"] == "count":
        if asked["column"] is not None:
            raise InvalidInput("column", asked["column"], "counts need none: leave it out")
        return Measure("rows", rows=asked["max_rows_per_user"]) if asked["rows"] else Measure()
    column = asked["column"]
    if column not in facts["values"]:
        raise InvalidInput("column", column, _one_of(facts["values"]))
    low, high = facts["values"][column]
    return value_measure(asked["kind"], column, (low, high), None, asked["max_rows_per_user"])


def _groups_cap(
    facts: Mapping[str, Any], asked: Mapping[str, Any], by: list[str], private: bool
) -> int | str | None:
    """m: that of the question, or that of the owner."""
    cap = asked.get("max_groups_per_user") or facts["max_groups_per_user"]
    if not by:
        return None
    return 10 if cap is None and private else cap


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
    found = _CONDITION.fullmatch(condition)
    if found is None:
        raise InvalidInput("where", condition, "give conditions like status=active or age>=18")
    column, sign, wanted = found.groups()
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
