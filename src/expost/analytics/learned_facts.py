"""Bounds and groups that a count, a sum or a mean buys because nobody stated them.

The facts and the answers read the same rows, so their charges add up: the ε of the facts is part of
the request's, and so is a tenth of its δ. Tests: ``tests/analytics/test_learned_facts.py``.
"""

from __future__ import annotations

from typing import Any

from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.facts.describe import DELTA, Facts, describe
from expost.randomness.source import Randomness

_DELTA_OF_FACTS = 0.1  # of the δ of a request


def facts_delta(delta: float | None) -> float:
    """Return the δ of facts that a request buys, which is part of its own."""
    return DELTA if delta is None else delta * _DELTA_OF_FACTS


def learn_missing_bounds(
    data: Any, options: dict[str, Any], epsilon: float, account: Account, source: Randomness
) -> Facts | None:
    """Buy the bounds and the groups that a request lacks, out of its ε and δ; None if it has them.

    The price is part of ``epsilon``, and a tenth of ``delta``; without a δ it is 1e-7.
    """
    by = [options["by"]] if isinstance(options.get("by"), str) else list(options.get("by") or ())
    bounds = options.get("kind") in ("sum", "mean") and options.get("bounds") is None
    keys = bool(by) and options.get("keys") is None and not options.get("private_keys")
    if keys and len(by) > 1:
        raise InvalidInput("keys", None, "the groups of several columns are not learned: list them")
    columns = ([str(options.get("column"))] if bounds else []) + (by if keys else [])
    if not columns:
        return None
    total = options.get("epsilon")
    if total is None or not 0 < float(epsilon) < float(total):
        raise InvalidInput("learn_facts", epsilon, f"give less than epsilon = {total}, its total")
    if options.get("user") is None:
        raise InvalidInput("by, user", (by, None), "name the column of the person: user")
    delta = options.get("delta")
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
    if bounds:
        options["bounds"] = facts[columns[0]].bounds
    if keys:
        options["keys"] = facts[by[0]].names
    if options.get("bounds", ()) is None or (keys and not options["keys"]):
        raise InvalidInput(
            "learn_facts", epsilon, "bounds or groups could not be learned: state them, or pay more"
        )
    takes_rows = options.get("count_rows") or options.get("kind") in ("sum", "mean")
    stated = options.get("max_rows_per_user") is not None or options.get("one_row_per_user")
    if takes_rows and not stated and facts.max_rows_per_user:
        options["max_rows_per_user"] = facts.max_rows_per_user
    options["epsilon"] = float(total) - float(epsilon)
    if delta is not None:
        options["delta"] = delta * (1 - _DELTA_OF_FACTS)
    return facts
