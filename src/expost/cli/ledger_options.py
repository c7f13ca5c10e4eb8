"""Options of ``expost ledger`` that describe budgets. Amounts are exact decimals.

Tests: ``tests/cli/test_ledger_cli.py``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.limits import Budget, amount_from, float_below
from expost.errors import InvalidInput


class BudgetKind(StrEnum):
    """The kinds of budget."""

    pure = "pure"
    approx = "approx"
    zcdp = "zcdp"
    renyi = "renyi"


class OrderRule(StrEnum):
    """Whether all orders of a Rényi budget must stay within their limits, or any of them."""

    all = "all"
    any = "any"


def budget_from_options(
    epsilon: str,
    delta: str | None,
    kind: BudgetKind | None,
    orders: str | None,
    rule: str,
    neighbours: str,
) -> Budget:
    """Return the budget that the options describe."""
    chosen = kind or (BudgetKind.pure if delta is None else BudgetKind.approx)
    if chosen is BudgetKind.pure:
        if delta is not None and amount_from(delta, "delta") != 0:
            raise InvalidInput(
                "delta", delta, "a pure budget has no δ; omit --delta, or choose another --kind"
            )
        return PureBudget(_exact(epsilon), neighbours)
    if delta is None:
        raise InvalidInput(
            "delta", None, f"pass --delta, which a budget of kind {chosen.value} needs"
        )
    if chosen is BudgetKind.approx:
        return ApproxBudget(_exact(epsilon), _exact(delta), neighbours)
    pair = _floats(epsilon, delta)
    if chosen is BudgetKind.zcdp:
        return ZCDPBudget.for_approx(*pair, neighbours)
    if orders is None:
        raise InvalidInput(
            "orders", None, "pass --orders for a Rényi budget, for example 2,4,8,16,32"
        )
    try:
        listed = [float(part) for part in orders.split(",")]
    except ValueError:
        raise InvalidInput(
            "orders", orders, "give numbers above 1, separated by commas, for example 2,4,8"
        ) from None
    return RenyiBudget.for_approx(*pair, listed, rule, neighbours)


def parse_caps(texts: list[str]) -> list[tuple[str, str]]:
    """Parse texts of the form ANALYST=EPSILON; refuse an analyst who is named twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        who, sign, limit = text.rpartition("=")
        try:
            amount_from(limit, "cap")
        except InvalidInput:
            sign = ""
        if not sign or not who:
            raise InvalidInput("cap", text, "give ANALYST=EPSILON, for example ann=1.5")
        if who in pairs:
            raise InvalidInput("cap", text, "this analyst has a cap already; give one per analyst")
        pairs[who] = limit
    return list(pairs.items())


def changed(present: Budget, epsilon: str, delta: str | None) -> Budget:
    """Return a budget of the same kind with another ε, and another δ if it is given."""
    kind = BudgetKind(present.kind)
    target = getattr(present, "target", None)
    known = getattr(present, "delta", None) if target is None else target[1]
    orders = getattr(present, "orders", None)
    return budget_from_options(
        epsilon,
        delta if delta is not None or known is None else repr(known),
        kind,
        None if orders is None else ",".join(map(repr, orders)),
        present.rule,
        present.neighbours,
    )


def _exact(text: str) -> Any:
    """A decimal text, for a budget that reads it exactly."""
    return text


def _floats(epsilon: str, delta: str) -> tuple[float, float]:
    """Two decimals as floats that are not above them, for budgets computed from (ε, δ)."""
    return (
        float_below(amount_from(epsilon, "epsilon")),
        float_below(amount_from(delta, "delta")),
    )
