"""What each outcome of a selection costs: a table that is made before any data is read.

A job that may stop at any amount up to its worst case uses a rule instead of a table:
:meth:`Charges.shares`. :func:`weaknesses` names guarantees that are valid but protect little, from
public numbers. Tests: ``tests/privacy/test_guarantees.py``, ``tests/privacy/test_advice.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import groupby
from typing import Any

from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee, RenyiDP, guarantee_from_dict
from expost.rationals import Number, count_of, exact, round_up

_SCALED = ("epsilon", "rho", "epsilons")  # δ covers all outcomes together and is never scaled


@dataclass(frozen=True)
class Charges:
    """One charge per candidate, and one for the outcome "nothing".

    All charges have the same kind and the same neighbouring relation. ``charges[i]`` is the charge
    of candidate i, and ``len(charges)`` is the number of candidates.

    Parameters
    ----------
    levels : tuple of Guarantee
        Each distinct charge once.
    level_of : tuple of int
        ``level_of[i]`` is the position in ``levels`` of the charge of candidate i.
    nothing : Guarantee
        The charge of the outcome "nothing".

    Raises
    ------
    InvalidInput
        If there is no charge, if a position is out of range, or if the charges differ in kind,
        relation or orders.
    """

    levels: tuple[Guarantee, ...]
    level_of: tuple[int, ...]
    nothing: Guarantee

    def __post_init__(self) -> None:
        if not self.levels or not self.level_of:
            raise InvalidInput("charges", self.levels, "give at least one charge and one candidate")
        if not all(0 <= level < len(self.levels) for level in set(self.level_of)):
            raise InvalidInput(
                "level_of",
                "…",
                f"give whole numbers from 0 to {len(self.levels) - 1}, positions in the levels",
            )
        for level in (*self.levels, self.nothing):
            self.levels[0].require_same_terms(level)
        # A charge is added up; the profile of a candidate is not that of the selection.
        object.__setattr__(self, "levels", tuple(map(_without_profile, self.levels)))
        object.__setattr__(self, "nothing", _without_profile(self.nothing))

    def __repr__(self) -> str:
        return (
            f"Charges({len(self)} candidates, {len(self.levels)} levels, "
            f"worst_case={self.worst_case!r})"
        )

    def __len__(self) -> int:
        return len(self.level_of)

    def __getitem__(self, candidate: int) -> Guarantee:
        return self.levels[self.level_of[candidate]]

    @property
    def worst_case(self) -> Guarantee:
        """The smallest guarantee that covers every outcome."""
        return reduce(lambda a, b: a.at_worst(b), self.levels, self.nothing)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; runs of equal levels are written as [level, length]."""
        return {
            "levels": [level.as_dict() for level in self.levels],
            "level_of": [[level, len(list(run))] for level, run in groupby(self.level_of)],
            "nothing": self.nothing.as_dict(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Charges:
        """Read a table or a rule that :meth:`as_dict` wrote."""
        if "shares" in record:
            return ShareCharges(guarantee_from_dict(record["worst"]), record["shares"])
        return cls(
            tuple(guarantee_from_dict(level) for level in record["levels"]),
            tuple(level for level, length in record["level_of"] for _ in range(length)),
            guarantee_from_dict(record["nothing"]),
        )

    @classmethod
    def from_list(cls, charges: Iterable[Guarantee], nothing: Guarantee) -> Charges:
        """Make a table from one charge per candidate; equal charges are stored once."""
        levels: dict[Guarantee, int] = {}
        level_of = tuple(levels.setdefault(charge, len(levels)) for charge in charges)
        return cls(tuple(levels), level_of, nothing)

    @staticmethod
    def shares(worst: Guarantee, parts: int = 1_000_000) -> ShareCharges:
        """Return the rule "outcome i costs i/parts of the worst case, rounded up".

        It is for jobs that may stop at any amount, such as counts, and needs the same few bytes for
        any number of parts. :meth:`ShareCharges.outcome_for` finds the outcome of an amount.
        """
        return ShareCharges(worst, parts)


class ShareCharges(Charges):
    """The rule "outcome i costs i/parts of the worst case, rounded up", for i from 0 to parts.

    The outcome "nothing" costs the worst case: it means that the amount is not known.
    ``levels`` holds the smallest and the largest charge only.
    """

    parts: int

    def __init__(self, worst: Guarantee, parts: int) -> None:
        object.__setattr__(self, "parts", count_of(parts, "parts", at_least=1))
        super().__init__((_scaled(worst, Fraction(0)), worst), (0, 1), worst)

    def __len__(self) -> int:
        return self.parts + 1

    def __getitem__(self, candidate: int) -> Guarantee:
        index = candidate + len(self) if candidate < 0 else candidate
        if not 0 <= index <= self.parts:
            raise IndexError(candidate)
        return _scaled(self.nothing, Fraction(index, self.parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShareCharges) and (self.nothing, self.parts) == (
            other.nothing,
            other.parts,
        )

    def __hash__(self) -> int:
        return hash((self.nothing, self.parts))

    def outcome_for(self, spent: Number) -> int:
        """Return the smallest i such that i/parts of the worst case is at least ``spent``."""
        whole = self.nothing.as_dict().get("epsilon", self.nothing.as_dict().get("rho"))
        if whole is None:
            raise InvalidInput("spent", spent, "a Rényi curve has no single amount")
        amount, most = exact(spent, "spent"), Fraction(whole)
        if not 0 <= amount <= most:
            raise InvalidInput("spent", spent, "give an amount from 0 to the worst case")
        # The ceiling: an amount between two parts is charged as the larger one.
        return 0 if most == 0 else -int(-amount * self.parts // most)

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold."""
        return {"worst": self.nothing.as_dict(), "shares": self.parts}


def _without_profile(charge: Guarantee) -> Guarantee:
    """The charge as a ledger adds it up."""
    if isinstance(charge, RenyiDP) and charge.profile is not None:
        return replace(charge, profile=None)
    return charge


def _scaled(charge: Guarantee, share: Fraction) -> Guarantee:
    """A share of a charge, rounded up; δ stays."""

    def part(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [part(item) for item in value]
        return round_up(Fraction(value) * share)

    record = charge.as_dict()
    return guarantee_from_dict(
        {key: part(value) if key in _SCALED else value for key, value in record.items()}
    )


LARGE_EPSILON = 20.0


def weaknesses(guarantee: Guarantee, rows: int | None = None) -> list[str]:
    """Return what is weak about a guarantee: ε above 20, or δ of at least 1/rows."""
    pair = guarantee.as_approx()
    warnings_: list[str] = []
    if pair is None:
        return warnings_
    if pair.epsilon > LARGE_EPSILON:
        warnings_.append(
            f"epsilon = {pair.epsilon:.3g} is very large: above {LARGE_EPSILON:g} the output may "
            "reveal almost everything about a person. Use a smaller epsilon."
        )
    if rows and pair.delta * rows >= 1:
        warnings_.append(
            f"delta = {pair.delta:.3g} is at least 1/{rows}, one over the number of rows: this "
            "allows a method that publishes a random person's row. Use a delta far below "
            f"1/{rows}."
        )
    return warnings_


def warn_if_weak(guarantee: Guarantee, rows: int | None = None, *, stacklevel: int = 2) -> None:
    """Warn about what is weak (:func:`weaknesses`); ``stacklevel`` 2 names the caller."""
    for text in weaknesses(guarantee, rows):
        warnings.warn(text, stacklevel=stacklevel + 1)
