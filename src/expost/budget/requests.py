"""Checks of what callers pass to a ledger: names, memos, caps and outcomes.

The checks are the same for every database, so that a request does not depend on the backend.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from expost.budget.budgets import Budget
from expost.budget.hash_chain import digest
from expost.errors import InvalidInput
from expost.mechanisms.outcome import NOTHING
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

LONGEST_NAME, LONGEST_IDENTITY, LONGEST_MEMO = 200, 64, 10_000
_DIGEST = re.compile("[0-9a-f]{64}")


def outcome_text(outcome: Any) -> str:
    """Return an outcome (the index of a candidate, a Release, or NOTHING) as text."""
    index = outcome.index if _is_release(outcome) else outcome
    if index is None or index is NOTHING:
        return "nothing"
    if isinstance(index, int) and not isinstance(index, bool):
        return str(index)
    raise InvalidInput("outcome", outcome, "give the index of a candidate, a Release, or NOTHING")


def charge_of(charges: Charges, outcome: Any, text: str) -> Guarantee:
    """Return the recorded charge of an outcome; a Release must state the same charge.

    ``text`` is what :func:`outcome_text` returned; the outcome is read once, because the entry
    records the text.
    """
    if text != "nothing" and not 0 <= int(text) < len(charges):
        raise InvalidInput(
            "outcome", int(text), f"the reservation has outcomes 0 to {len(charges) - 1}"
        )
    charge = charges.nothing if text == "nothing" else charges[int(text)]
    if _is_release(outcome) and outcome.spent != charge:
        raise InvalidInput(
            "outcome",
            "a Release",
            "it states another charge than the reservation, so it belongs to another selection",
        )
    return charge


def _is_release(outcome: Any) -> bool:
    """Whether an outcome is a Release, which has its own index and charge."""
    return hasattr(outcome, "spent") and hasattr(outcome, "index")


def check_name(name: object, field: str, longest: int = LONGEST_NAME) -> None:
    """Refuse a name that some database cannot store."""
    if not _is_text(name, longest) or not name:
        raise InvalidInput(field, name, f"give a text of 1 to {longest} characters")


def check_memo(memo: object) -> None:
    """Refuse a memo that some database cannot store."""
    if not _is_text(memo, LONGEST_MEMO):
        raise InvalidInput("memo", memo, f"give a text of at most {LONGEST_MEMO} characters")


def check_cap(terms: Budget, analyst: str, cap: Budget) -> None:
    """Refuse a cap that does not measure charges as its budget does."""
    check_name(analyst, "analyst")
    same_orders = getattr(terms, "orders", None) == getattr(cap, "orders", None)
    if (cap.kind, cap.neighbours, cap.rule) != (
        terms.kind,
        terms.neighbours,
        terms.rule,
    ) or not same_orders:
        raise InvalidInput(
            f"caps[{analyst!r}]",
            cap,
            "a cap must have the same kind, neighbouring relation, rule and orders as its budget",
        )


def document_digest(document: object, field: str) -> str | None:
    """Return the digest of a JSON document; a digest in hexadecimal is returned as it is.

    The key ``"signature"`` of a document is left out: a signature is made after the digest.
    """
    if document is None or (isinstance(document, str) and _DIGEST.fullmatch(document)):
        return document
    if isinstance(document, Mapping):
        document = {key: value for key, value in document.items() if key != "signature"}
    try:
        return digest(document)
    except (TypeError, ValueError):
        raise InvalidInput(
            field, type(document).__name__, "give a JSON document, or the SHA-256 digest of one"
        ) from None


def _is_text(value: object, longest: int) -> bool:
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        return False
    # Databases reject lone surrogates.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)
