"""Facts that an owner reads from a file, or buys, when a data set is registered.

Everything is checked first, with made-up facts; then the charge is reserved in the data set's
budget, the rows are read, and the charge is settled. The facts are kept with their certificate,
which analysts may see. Tests: ``tests/server/test_buy_facts.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expost.budget.charging import Account
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.facts.column_facts import StatedFacts, stated_facts, with_facts
from expost.facts.describe import DELTA, describe
from expost.randomness.source import Randomness
from expost.server.jobs.datasets import source_with_secrets
from expost.tuning.request.bought_facts import learn_missing
from expost.tuning.request.defaults import job_with_defaults

_STAND_IN = [0.0, 1.0]
_PLACES = 1000  # of a job that is never run: only its facts are bought


def filled_from_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an owner states, with what is missing from ``facts``, the content of a file."""
    facts = dict(given)
    stated = facts.pop("facts", None)
    return facts if stated is None else _filled(facts, stated_facts(stated))


def with_stand_ins(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that can be checked before those that are to be bought are known."""
    rest = {key: value for key, value in facts.items() if key != "learn_facts"}
    if facts.get("learn_facts") is None or facts.get("kind") == "rows":
        return rest
    values = facts.get("values") or {}
    return rest | {"values": {name: known or _STAND_IN for name, known in values.items()}}


def without_stand_ins(document: dict[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked document in which bounds that are to be bought are None."""
    unknown = {name for name, known in (facts.get("values") or {}).items() if known is None}
    if not unknown:
        return document
    shown = {n: None if n in unknown else known for n, known in document["values"].items()}
    return document | {"values": shown}


def with_bought_facts(facts: Mapping[str, Any], ledger: Ledger, owner: str) -> dict[str, Any]:
    """Return what an owner states, with what is missing bought for ε = ``learn_facts``.

    Of a table these are the groups of columns without keys, the bounds of columns without bounds,
    and the rows per person if no cap is stated. The caller has checked all else.
    """
    rest = {key: value for key, value in facts.items() if key != "learn_facts"}
    epsilon, budget = facts["learn_facts"], str(facts["budget"])
    if ledger.kind_of(budget) != "approx":
        raise InvalidInput("budget", budget, "facts are charged in (ε, δ): give an approx budget")
    account = Account(ledger, budget, owner, f"facts for data set {facts['name']}")
    if facts.get("kind") == "rows":
        return _rows(rest, epsilon, account)
    return _table(rest, epsilon, account)


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


def _table(facts: dict[str, Any], epsilon: float, account: Account) -> dict[str, Any]:
    """Buy the groups and the bounds of a table that nobody stated."""
    groups, values = dict(facts.get("groups") or {}), dict(facts.get("values") or {})
    unknown = [name for name, known in [*groups.items(), *values.items()] if known is None]
    if not unknown:
        raise InvalidInput("learn_facts", epsilon, "all facts are stated: there is nothing to buy")
    bought = describe(
        source_with_secrets(facts["source"]),
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


def _rows(facts: dict[str, Any], epsilon: float, account: Account) -> dict[str, Any]:
    """Buy the facts of rows that models are tuned on."""
    most = {"learn_facts": epsilon, "max_epsilon": 2 * epsilon + 1, "delta": 10 * DELTA}
    job = job_with_defaults({"at_least": 0.5, **most}, _PLACES, path=facts.get("source"))
    job["data"] |= facts.get("data") or {}
    tables, learned = learn_missing(job, (None,) * 3, account, Randomness(), None)
    if learned is None:
        raise InvalidInput("learn_facts", epsilon, "all facts are stated: there is nothing to buy")
    own = {"path", "holdout"} - {*(facts.get("data") or {})}
    filled = {key: value for key, value in tables["data"].items() if key not in own}
    return facts | {"data": filled, "bought": learned.certificate}
