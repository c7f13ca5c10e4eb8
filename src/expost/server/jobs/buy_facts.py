"""Facts that an owner reads from a file, or buys, when a data set is registered.

Everything is checked first, with made-up facts; then the charge is reserved in the data set's
budget, the rows are read, and the charge is settled. The facts are kept with their certificate,
which analysts may see. Tests: ``tests/server/test_buy_facts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from expost.budget.charging import Account
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.facts.describe import DELTA, describe
from expost.facts.facts_file import StatedFacts, stated_facts, with_facts
from expost.randomness.source import Randomness
from expost.tuning.request.bought_facts import learn_missing
from expost.tuning.request.defaults import job_with_defaults

_STAND_IN = [0.0, 1.0]
_PLACES = 1000  # of a job that is never run: only its facts are bought


def with_bought_facts(
    given: Mapping[str, Any],
    ledger: Ledger,
    owner: str,
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what an owner states about a data set, with what is missing filled in.

    First from ``facts``, the content of a file of facts; what is still missing is bought for ε =
    ``learn_facts``: of a table the groups of columns without keys, the bounds of columns without
    bounds, and the rows per person if no cap is stated. ``check`` refuses what is not valid.
    """
    facts = dict(given)
    epsilon, stated = facts.pop("learn_facts", None), facts.pop("facts", None)
    if stated is not None:
        facts = _filled(facts, stated_facts(stated))
    if epsilon is None:
        return facts
    budget = str(facts["budget"])
    if ledger.kind_of(budget) != "approx":
        raise InvalidInput("budget", budget, "facts are charged in (ε, δ): give an approx budget")
    account = Account(ledger, budget, owner, f"facts for data set {facts['name']}")
    if facts.get("kind") == "rows":
        return _rows(facts, epsilon, account, check)
    return _table(facts, epsilon, account, check)


def _filled(facts: dict[str, Any], stated: StatedFacts) -> dict[str, Any]:
    """Fill in what an owner left open and facts state."""
    if facts.get("kind") == "rows":
        return facts | {"data": with_facts(facts.get("data") or {}, stated)}
    groups, values = facts.get("groups") or {}, facts.get("values") or {}
    filled = facts | {
        "groups": {name: known or stated.names(name) for name, known in groups.items()},
        "values": {name: known or stated.bounds(name) for name, known in values.items()},
    }
    cap = stated.head.get("max_rows_per_user")
    same = stated.head.get("user") in (None, facts.get("user"))
    return {"max_rows_per_user": cap, **filled} if cap and same else filled


def _table(
    facts: dict[str, Any],
    epsilon: float,
    account: Account,
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Buy the groups and the bounds of a table that nobody stated."""
    groups, values = dict(facts.get("groups") or {}), dict(facts.get("values") or {})
    unknown = [name for name, known in [*groups.items(), *values.items()] if known is None]
    if not unknown:
        raise InvalidInput("learn_facts", epsilon, "all facts are stated: there is nothing to buy")
    check(facts | {"values": {name: known or _STAND_IN for name, known in values.items()}})
    bought = describe(
        facts["source"],
        epsilon=epsilon,
        delta=DELTA,
        user=facts["user"],
        columns=list(dict.fromkeys(unknown)),
        table=facts.get("table"),
        delimiter=facts.get("delimiter"),
        ledger=account.ledger,
        budget=account.budget,
        analyst=account.analyst,
        memo=account.memo,
    )
    facts = _filled(facts, bought.stated())
    facts["values"] = {name: known or _STAND_IN for name, known in facts["values"].items()}
    return facts | {"bought": bought.certificate()}


def _rows(
    facts: dict[str, Any],
    epsilon: float,
    account: Account,
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Buy the facts of rows that models are tuned on."""
    check(facts)
    most = {"learn_facts": epsilon, "max_epsilon": 2 * epsilon + 1, "delta": 10 * DELTA}
    job = job_with_defaults({"at_least": 0.5, **most}, _PLACES, path=facts.get("source"))
    job["data"] |= facts.get("data") or {}
    tables, learned = learn_missing(job, None, None, account, Randomness(), None)
    if learned is None:
        raise InvalidInput("learn_facts", epsilon, "all facts are stated: there is nothing to buy")
    own = {"path", "holdout"} - {*(facts.get("data") or {})}
    filled = {key: value for key, value in tables["data"].items() if key not in own}
    return facts | {"data": filled, "bought": learned.certificate}
