"""What may be asked of a ledger: names, memos, caps and outcomes, checked alike for every database."""

from __future__ import annotations

from typing import Any

from expost.budget.budgets import Budget
from expost.errors import InvalidInput
from expost.mechanisms.outcome import NOTHING
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

LONGEST_NAME, LONGEST_IDENTITY, LONGEST_MEMO = 200, 64, 10_000


def outcome_text(outcome: Any) -> str:
    """An outcome (a candidate's index, a Release, or NOTHING) as the ledger writes it down."""
    index = outcome.index if _is_release(outcome) else outcome
    if index is None or index is NOTHING:
        return "nothing"
    if isinstance(index, int) and not isinstance(index, bool):
        return str(index)
    raise InvalidInput("outcome", outcome, "give a candidate's index, a Release, or NOTHING")


def charge_of(charges: Charges, outcome: Any) -> Guarantee:
    """What an outcome costs by the recorded table; a Release must say the same."""
    text = outcome_text(outcome)
    if text != "nothing" and not 0 <= int(text) < len(charges):
        raise InvalidInput(
            "outcome", int(text), f"the reservation has outcomes 0 … {len(charges) - 1}"
        )
    charge = charges.nothing if text == "nothing" else charges[int(text)]
    if _is_release(outcome) and outcome.spent != charge:
        raise InvalidInput(
            "outcome",
            "a Release",
            "it says another charge than the reservation: it is of another selection",
        )
    return charge


def _is_release(outcome: Any) -> bool:
    """Whether an outcome is a Release: it carries its own index and charge."""
    return hasattr(outcome, "spent") and hasattr(outcome, "index")


def check_name(name: object, field: str, longest: int = LONGEST_NAME) -> None:
    """Refuse a name that some database could not hold."""
    if not _is_text(name, longest) or not name:
        raise InvalidInput(field, name, f"give a text of 1 to {longest} characters")


def check_memo(memo: object) -> None:
    """Refuse a memo that some database could not hold."""
    if not _is_text(memo, LONGEST_MEMO):
        raise InvalidInput("memo", memo, f"give a text of at most {LONGEST_MEMO} characters")


def check_cap(terms: Budget, analyst: str, cap: Budget) -> None:
    """Refuse a cap whose charges would not be those of its budget."""
    check_name(analyst, "analyst")
    same_orders = getattr(terms, "orders", None) == getattr(cap, "orders", None)
    if (cap.kind, cap.neighbours, cap.rule) != (
        terms.kind,
        terms.neighbours,
        terms.rule,
    ) or not same_orders:
        raise InvalidInput(
            f"caps[{analyst!r}]", cap, "a cap has the kind, relation and orders of its budget"
        )


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        return False
    return not any(
        "\ud800" <= letter <= "\udfff" for letter in value
    )  # halves of a letter: no database takes them
