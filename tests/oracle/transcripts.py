"""The exact audit of the privacy filter: all transcripts of an adaptive analyst.

An analyst is a function from what was seen so far to the next request (or None to stop). The
library's own ``Filter`` decides. An admitted request is reserved at its worst case, its outcome is
drawn (here: all outcomes, with their exact probabilities) and settled. For a refused request, the
analyst sees the refusal. What is checked (``theorem:rdp-filter`` and its pure, approximate and zCDP
forms):

* *against the budget*: the law of whole transcripts keeps the guarantee of the budget;
* *against what was settled*: charging each transcript the sum of its actual charges is ex-post
  valid (pure and Rényi budgets).

Requests run one after another; :mod:`expost.budget.limits` argues that concurrent reservations are
covered too. Brackets and rounding are as in :mod:`tests.oracle.audit`, with the brackets of
the requests multiplied. Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from expost.arrays import Floats
from expost.budget.budgets import PureBudget, RenyiBudget, as_budget
from expost.budget.limits import Budget, Coordinates, Filter
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.candidate import Candidate
from expost.selection.selector import Selector
from tests.oracle.audit import (
    ClaimAudit,
    audit_claim,
    candidates_of,
    measures_of,
    require_promises,
)
from tests.oracle.dropping_laws import OutputLaw
from tests.oracle.finite_mechanism import FiniteMechanism
from tests.oracle.selector_laws import exact_laws
from tests.oracle.smallest_charges import LawPair, Measure, PureMeasure, RenyiMeasure

_LONGEST = 100  # largest number of turns in a transcript


@dataclass(frozen=True, eq=False)
class Request:
    """What an analyst asks for. A repeated request object is computed only once."""

    selector: Selector
    mechanisms: Sequence[FiniteMechanism | Candidate]


@dataclass(frozen=True)
class Seen:
    """What an analyst sees: the winner's index and output, nothing (None, None), or a refusal."""

    index: int | None
    output: float | None
    refused: bool = False


Analyst = Callable[[tuple[Seen, ...]], Request | None]


@dataclass(frozen=True)
class FilterReport:
    """The report of a filter audit.

    Parameters
    ----------
    transcripts : int
        Number of transcripts.
    budget : dict
        The budget.
    claims : tuple of ClaimAudit
        The guarantee of the budget, checked against the law of the transcripts.
    realised : tuple of ClaimAudit
        The settled charges, checked against the law of the transcripts.
    """

    transcripts: int
    budget: dict[str, object]
    claims: tuple[ClaimAudit, ...]
    realised: tuple[ClaimAudit, ...]

    @property
    def consistent(self) -> bool:
        """Whether every claim holds."""
        return all(claim.consistent for claim in (*self.claims, *self.realised))

    @property
    def violated(self) -> bool:
        """Whether a claim is false."""
        return any(claim.violated for claim in (*self.claims, *self.realised))

    @property
    def tightness(self) -> float:
        """The largest share of the budget's promise that is used."""
        return max(claim.tightness for claim in self.claims)


def filter_audit(
    budget: Budget | Guarantee, analyst: Analyst, *, most: int = 20_000
) -> FilterReport:
    """Enumerate the transcripts of an adaptive analyst under a budget, and check the claims.

    Parameters
    ----------
    budget : Budget or Guarantee
        The budget of the filter.
    analyst : callable
        A function from the tuple of what was seen to the next ``Request``, or None to stop.
    most : int, default=20000
        The largest number of transcripts. More of them, or one of more than 100 turns, raise an
        error.

    Returns
    -------
    FilterReport
    """
    terms = as_budget(budget)
    if not callable(analyst):
        raise InvalidInput(
            "analyst",
            type(analyst).__name__,
            "pass a function from what was seen to the next Request (or None to stop)",
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
    """A complete transcript: brackets of its probabilities, and the settled charges."""

    chances: tuple[float, float, float, float]  # low and high on the data set, on its neighbour
    settled: Coordinates


class _Walk:
    """A walk through the tree of transcripts."""

    def __init__(self, budget: Budget, analyst: Analyst, most: int) -> None:
        self.budget, self.analyst, self.most = budget, analyst, most
        self.known: dict[int, tuple[Request, Charges, LawPair]] = {}
        self.found = 0

    def leaves(
        self, seen: tuple[Seen, ...], state: Filter, chances: tuple[float, float, float, float]
    ) -> Iterator[_Leaf]:
        """Yield all complete transcripts that start with ``seen``."""
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
        """Return the charges and laws of a request, computed once."""
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
    """Yield every possible outcome with the brackets of its probabilities."""
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
    """Return the transcripts as the outputs of one class, or as one class each."""
    shape = (1, -1) if one_class else (-1, 1)
    low, high, other_low, other_high = (column.reshape(shape) for column in chances.T)
    zero = np.asarray(0.0)
    here, there = OutputLaw(low, high, zero, zero), OutputLaw(other_low, other_high, zero, zero)
    return LawPair(here, there, tuple(range(len(chances))), public_nothing=True)


def _table(promise: Guarantee) -> Charges:
    """Return a table with one charge, the guarantee of the budget."""
    return Charges((promise,), (0,), promise * 0 if promise.kind != "approx" else promise)


def _realised(
    terms: Budget, pair: LawPair, settled: Sequence[Coordinates]
) -> list[tuple[Measure, Floats]]:
    """Return the measures of the settled charges, for pure and Rényi budgets."""

    def numbers(place: int) -> Floats:
        return np.array([float(each[place]) for each in settled] + [float(Fraction(0))])

    if isinstance(terms, PureBudget):
        return [(PureMeasure(pair), numbers(0))]
    if isinstance(terms, RenyiBudget):
        return [
            (RenyiMeasure(pair, order), numbers(place)) for place, order in enumerate(terms.orders)
        ]
    return []
