"""Bounds and groups that a count, a sum or a mean buys because nobody stated them.

The facts and the answers read the same rows, so their charges add up: the ε of the facts is part of
the request's, and so is a tenth of its δ. Tests: ``tests/analytics/test_learned_facts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from expost.analytics.request import check_request
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.facts.column_facts import StatedFacts, read_facts
from expost.facts.describe import DELTA, Facts, describe
from expost.randomness.source import Randomness

_DELTA_OF_FACTS = 0.1  # of the δ of a request
_MOST_GROUPS = 100_000  # of several columns


def facts_delta(delta: float | None) -> float:
    """Return the δ of facts that a request buys, which is part of its own."""
    return DELTA if delta is None else delta * _DELTA_OF_FACTS


def _by(options: Mapping[str, Any]) -> list[str]:
    """Return the columns of the group."""
    by = options.get("by")
    return [by] if isinstance(by, str) else list(by or ())


def _lacks(options: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a request lacks bounds, and whether it lacks groups."""
    bounds = options.get("kind") in ("sum", "mean") and options.get("bounds") is None
    listed = options.get("keys") is not None or options.get("private_keys")
    return bounds, bool(_by(options)) and not listed


def _fill_cap(options: dict[str, Any], cap: int | None) -> None:
    """Take the cap of rows per person from facts, where rows count and nobody stated one."""
    takes_rows = options.get("count_rows") or options.get("kind") in ("sum", "mean")
    stated = options.get("max_rows_per_user") is not None or options.get("one_row_per_user")
    if takes_rows and not stated and cap:
        options["max_rows_per_user"] = cap


def fill_stated_facts(options: dict[str, Any], path: str | Path) -> None:
    """Fill in the bounds, the groups and the cap that a request lacks from a file of facts."""
    _fill(options, read_facts(path))


def _fill(options: dict[str, Any], stated: StatedFacts) -> None:
    """Fill in what a request lacks and facts state."""
    bounds, keys = _lacks(options)
    if bounds and (pair := stated.bounds(str(options.get("column")))) is not None:
        options["bounds"] = pair
    by = _by(options)
    lists = [stated.names(column) or [] for column in by]
    if keys and math.prod(map(len, lists)) in range(1, _MOST_GROUPS + 1):
        combined = list(product(*lists))
        options["keys"] = combined if len(by) > 1 else [key[0] for key in combined]
    if stated.head.get("user") in (None, options.get("user")):
        _fill_cap(options, stated.head.get("max_rows_per_user"))


def learn_missing_bounds(
    data: Any, options: dict[str, Any], epsilon: float, account: Account, source: Randomness
) -> Facts | None:
    """Buy the bounds and the groups that a request lacks, out of its ε and δ; None if it has them.

    The price is part of ``epsilon``, and a tenth of ``delta``; without a δ it is 1e-7. The request
    is checked with made-up facts first, so that nothing is charged for one that is refused.
    """
    by, (bounds, keys) = _by(options), _lacks(options)
    columns = ([str(options.get("column"))] if bounds else []) + (by if keys else [])
    if not columns:
        return None
    total = options.get("epsilon")
    if total is None or not 0 < float(epsilon) < float(total):
        raise InvalidInput("learn_facts", epsilon, f"give less than epsilon = {total}, its total")
    if options.get("user") is None:
        raise InvalidInput("by, user", (by, None), "name the column of the person: user")
    delta = options.get("delta")
    rest = {"epsilon": float(total) - float(epsilon)}
    rest |= {} if delta is None else {"delta": delta * (1 - _DELTA_OF_FACTS)}
    like = {"bounds": (0, 1)} if bounds else {}
    group: Any = ("0",) * len(by) if len(by) > 1 else "0"
    made_up = {"keys": [group]} if keys else {}
    check_request(data, {**options, **rest, **like, **made_up})
    facts = describe(
        data,
        epsilon=epsilon,
        delta=facts_delta(delta),
        user=options["user"],
        columns=list(dict.fromkeys(columns)),
        table=options.get("table"),
        delimiter=options.get("delimiter"),
        ledger=account.ledger,
        budget=account.budget,
        analyst=account.analyst,
        memo="facts for " + account.memo,
        randomness=source if source.simulated else None,
        simulation=source.simulated,
    )
    _fill(options, facts.stated())
    if any(_lacks(options)):
        raise InvalidInput(
            "learn_facts",
            epsilon,
            "the facts were bought, but bounds or groups could not be learned: state them, or pay "
            "more",
        )
    options |= rest
    return facts
