"""The exact audit of the filter: every transcript of an adaptive analyst, its chances on both data sets, and what the budget promised.

An analyst is a function from what was seen so far to the next request (or None to stop). The library's own ``Filter`` decides: an
admitted request is held at its worst case, its outcome drawn (here: all outcomes, with their exact chances) and settled; a refused one
is seen as refused.
What is checked (``theorem:rdp-filter`` and its pure, approximate and zCDP forms):

* *against the budget*: the law of whole transcripts keeps the promise that the budget makes;
* *against what was settled*: charging each transcript the sum of its realised charges is ex-post valid (pure and Rényi budgets).

Requests run one after another; that reservations held side by side are covered too is argued in :mod:`expost.budget.filter`. Brackets and
rounding: as in :mod:`expost.audit.exact.audit`, with the brackets of the requests multiplied. Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from expost.arrays import Floats
from expost.audit.exact.audit import (
    ClaimAudit,
    audit_claim,
    candidates_of,
    measures_of,
    require_promises,
)
from expost.audit.exact.dropping_laws import OutputLaw
from expost.audit.exact.finite_mechanism import FiniteMechanism
from expost.audit.exact.selector_laws import exact_laws
from expost.audit.exact.smallest_charges import LawPair, Measure, PureMeasure, RenyiMeasure
from expost.budget.budgets import Budget, Coordinates, PureBudget, RenyiBudget, as_budget
from expost.budget.filter import Filter
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.candidate import Candidate
from expost.selection.selector import Selector

_LONGEST = 100  # turns of a transcript


@dataclass(frozen=True, eq=False)
class Request:
    """What an analyst asks for; the same object asked again is not worked out again."""

    selector: Selector
    mechanisms: Sequence[FiniteMechanism | Candidate]


@dataclass(frozen=True)
class Seen:
    """What an analyst sees of a request: the winner's index and output, nothing (None, None), or a refusal."""

    index: int | None
    output: float | None
    refused: bool = False


Analyst = Callable[[tuple[Seen, ...]], Request | None]


@dataclass(frozen=True)
class FilterReport:
    """All transcripts of an analyst: the budget's promise (``claims``) and the settled charges (``realised``) against their laws."""

    transcripts: int
    budget: dict[str, object]
    claims: tuple[ClaimAudit, ...]
    realised: tuple[ClaimAudit, ...]

    @property
    def consistent(self) -> bool:
        return all(claim.consistent for claim in (*self.claims, *self.realised))

    @property
    def violated(self) -> bool:
        return any(claim.violated for claim in (*self.claims, *self.realised))

    @property
    def tightness(self) -> float:
        """How much of the budget's promise is used, at most."""
        return max(claim.tightness for claim in self.claims)


def filter_audit(
    budget: Budget | Guarantee, analyst: Analyst, *, most: int = 20_000
) -> FilterReport:
    """Enumerate an adaptive analyst's transcripts under a budget; refused if there are more than ``most``, or any of 100 turns."""
    terms = as_budget(budget)
    if not callable(analyst):
        raise InvalidInput(
            "analyst",
            type(analyst).__name__,
            "give a function from what was seen to the next Request, or None",
        )
    walk = _Walk(terms, analyst, most)
    leaves = list(walk.leaves((), Filter.empty(terms), (1.0, 1.0, 1.0, 1.0)))
    chances = np.array([leaf.chances for leaf in leaves])
    claims = tuple(
        audit_claim(measure, numbers, measure.pair)
        for measure, numbers in measures_of(
            _table(terms.guarantee()), _pair(chances, one_class=True)
        )
    )
    realised = tuple(
        audit_claim(measure, numbers, measure.pair, rows=False)
        for measure, numbers in _realised(
            terms, _pair(chances, one_class=False), [leaf.settled for leaf in leaves]
        )
    )
    return FilterReport(len(leaves), terms.as_dict(), claims, realised)


@dataclass(frozen=True)
class _Leaf:
    chances: tuple[
        float, float, float, float
    ]  # low and high on one data set, low and high on the other
    settled: Coordinates


class _Walk:
    """The tree of transcripts."""

    def __init__(self, budget: Budget, analyst: Analyst, most: int) -> None:
        self.budget, self.analyst, self.most = budget, analyst, most
        self.known: dict[int, tuple[Request, Charges, LawPair]] = {}
        self.found = 0

    def leaves(
        self, seen: tuple[Seen, ...], state: Filter, chances: tuple[float, float, float, float]
    ) -> Iterator[_Leaf]:
        request = self.analyst(seen)
        if request is None:
            self.found += 1
            yield _Leaf(chances, state.settled)
            return
        if self.found >= self.most or len(seen) >= _LONGEST:
            raise InvalidInput(
                "analyst",
                f"more than {self.most} transcripts, or {_LONGEST} turns",
                "let it stop earlier (return None)",
            )
        _, charges, pair = self._worked_out(request)
        worst = self.budget.worst(charges)
        if not state.admits(worst):
            yield from self.leaves((*seen, Seen(None, None, refused=True)), state, chances)
            return
        held = state.reserve(worst)
        for event, chance in _outcomes(pair):
            charge = charges.nothing if event.index is None else charges[event.index]
            after = held.settle(worst, self.budget.coordinates(charge))
            product = tuple(a * b for a, b in zip(chances, chance, strict=True))
            yield from self.leaves(
                (*seen, event), after, (product[0], product[1], product[2], product[3])
            )

    def _worked_out(self, request: Request) -> tuple[Request, Charges, LawPair]:
        if id(request) not in self.known:
            candidates = candidates_of(request.mechanisms)
            require_promises(candidates)
            charges = request.selector.charges(candidates)
            self.known[id(request)] = (
                request,
                charges,
                exact_laws(request.selector, candidates, None, None),
            )
        return self.known[id(request)]


def _outcomes(pair: LawPair) -> Iterator[tuple[Seen, tuple[float, float, float, float]]]:
    """Every outcome that can happen, with the brackets of its chances."""
    here, there = pair.here, pair.there
    for index, output in np.argwhere((here.high > 0) | (there.high > 0)):
        sides = (law[index, output] for law in (here.low, here.high, there.low, there.high))
        low, high, other_low, other_high = (float(side) for side in sides)
        yield Seen(int(index), pair.outputs[output]), (low, high, other_low, other_high)
    if here.nothing_high > 0 or there.nothing_high > 0:
        low, high = float(here.nothing_low), float(here.nothing_high)
        if pair.public_nothing:
            yield Seen(None, None), (high, high, high, high)
        else:
            yield Seen(None, None), (low, high, float(there.nothing_low), float(there.nothing_high))


def _pair(chances: Floats, *, one_class: bool) -> LawPair:
    """Transcripts as the outputs of one class, or as classes of their own."""
    shape = (1, -1) if one_class else (-1, 1)
    low, high, other_low, other_high = (column.reshape(shape) for column in chances.T)
    zero = np.asarray(0.0)
    here, there = OutputLaw(low, high, zero, zero), OutputLaw(other_low, other_high, zero, zero)
    return LawPair(here, there, tuple(range(len(chances))), public_nothing=True)


def _table(promise: Guarantee) -> Charges:
    return Charges((promise,), (0,), promise * 0 if promise.kind != "approx" else promise)


def _realised(
    terms: Budget, pair: LawPair, settled: Sequence[Coordinates]
) -> list[tuple[Measure, Floats]]:
    def numbers(place: int) -> Floats:
        return np.array([float(each[place]) for each in settled] + [float(Fraction(0))])

    if isinstance(terms, PureBudget):
        return [(PureMeasure(pair), numbers(0))]
    if isinstance(terms, RenyiBudget):
        return [
            (RenyiMeasure(pair, order), numbers(place)) for place, order in enumerate(terms.orders)
        ]
    return []
