"""From two exact laws to the smallest valid charges, under each definition of ex-post privacy.

Definitions: docs/theory.md. Outcomes are grouped in classes: one per candidate, and "nothing". With
laws A and A′ on neighbouring data, charges c and class i:

* pure: c_i ≥ |ln A(o)/A′(o)| for each outcome o of the class; classes do not interact.
* Rényi at order α: Σ_i M_i·e^{−(α−1)c_i} ≤ 1 with the moments M_i = Σ_{o in i} A(o)^α·A′(o)^{1−α}.
* (ε̃, δ): Σ_i Σ_{o in i} (A(o) − e^{c_i}·A′(o))₊ ≤ δ.

The last two conditions couple all classes. For a class, the report states the smallest charge that
it could have *with the others charged as claimed*; for the whole table, the smallest common factor
on all charges. Both directions are checked. ``smallest`` uses the worse ends of the brackets and
``at_least`` the better ends: the true value lies between them, whatever the rounding of the laws.
Floats end at probabilities of about 1e-290 (:data:`TINY`). A smaller probability counts as 0 from
below and as 1e-290 from above; an outcome that is rarer than this on both data sets is ignored.
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats
from tests.oracle.dropping_laws import OutputLaw
from tests.oracle.finite_mechanism import log_moment

TINY = 1e-290
_LARGEST = 1e6


@dataclass(frozen=True, eq=False)
class LawPair:
    """The laws on two neighbouring data sets.

    ``public_nothing``: "nothing" has the same probability on all data sets, by construction.
    """

    here: OutputLaw
    there: OutputLaw
    outputs: tuple[float, ...]
    public_nothing: bool
    unseen: float = 0.0

    def directions(self) -> tuple[tuple[OutputLaw, OutputLaw], tuple[OutputLaw, OutputLaw]]:
        """Return the pair in both directions."""
        return (self.here, self.there), (self.there, self.here)

    @property
    def classes(self) -> int:
        """The number of classes: the candidates, and "nothing"."""
        return len(self.here.low) + 1


class Measure(ABC):
    """One kind of claim about a pair of laws.

    Charges are arrays with one number per class; that of "nothing" comes last.
    """

    def __init__(self, pair: LawPair) -> None:
        self.pair = pair

    @abstractmethod
    def used(self, charges: Floats, *, worse: bool) -> float:
        """Return the quantity that the claim bounds, in the worse direction.

        The charges are valid if it is at most :attr:`allowed`.
        """

    @property
    @abstractmethod
    def allowed(self) -> float:
        """The largest valid value of :meth:`used`."""

    def smallest(self, charges: Floats, place: int, *, worse: bool) -> float:
        """Return the smallest valid charge of one class, given the others; ∞ if none is valid."""

        def used(charge: float) -> float:
            changed = charges.copy()
            changed[place] = charge
            return self.used(changed, worse=worse)

        return _least(used, self.allowed, float(charges[place]))

    def factor(self, charges: Floats, *, worse: bool) -> float:
        """Return the smallest valid common factor on all charges; ∞ if none is valid."""
        return _least(lambda factor: self.used(factor * charges, worse=worse), self.allowed, 1.0)


class PureMeasure(Measure):
    """Pure DP, A(o) ≤ e^{c_i}·A′(o): bounds the largest excess of a log ratio over its charge."""

    def __init__(self, pair: LawPair) -> None:
        super().__init__(pair)
        self.losses = {worse: _pure_losses(pair, worse=worse) for worse in (True, False)}
        both = [_log_ratio(*compared(law, other, worse=True)) for law, other in pair.directions()]
        # The output of each candidate with the largest loss.
        self.worst: list[int] = np.maximum(*both).argmax(-1).tolist()

    @property
    def allowed(self) -> float:
        return 0.0

    def used(self, charges: Floats, *, worse: bool) -> float:
        return float(np.max(self.losses[worse] - charges))

    def smallest(self, charges: Floats, place: int, *, worse: bool) -> float:
        return max(0.0, float(self.losses[worse][place]))

    def factor(self, charges: Floats, *, worse: bool) -> float:
        """Return the smallest common factor; outcomes of charge 0 are left out."""
        paid = charges > 0
        return (
            float(np.max(np.maximum(self.losses[worse][paid], 0.0) / charges[paid]))
            if paid.any()
            else 0.0
        )


class RenyiMeasure(Measure):
    """Rényi DP at one order: Σ A^α·(e^c·A′)^{1−α} ≤ 1."""

    def __init__(self, pair: LawPair, order: float) -> None:
        super().__init__(pair)
        self.order = order
        self.log_moments = {
            worse: _log_moments(pair, order, worse=worse) for worse in (True, False)
        }

    @property
    def allowed(self) -> float:
        return 1.0

    def used(self, charges: Floats, *, worse: bool) -> float:
        with np.errstate(over="ignore"):
            return max(
                float(np.exp(each - (self.order - 1) * charges).sum())
                for each in self.log_moments[worse]
            )


class ApproxMeasure(Measure):
    """Approximate DP: Σ (A − e^c·A′)₊ ≤ δ."""

    def __init__(self, pair: LawPair, delta: float) -> None:
        super().__init__(pair)
        self.delta = delta

    @property
    def allowed(self) -> float:
        return self.delta

    def used(self, charges: Floats, *, worse: bool) -> float:
        return max(self._hockey(*each, charges, worse=worse) for each in self.pair.directions())

    def _hockey(self, law: OutputLaw, other: OutputLaw, charges: Floats, *, worse: bool) -> float:
        """Return Σ (A − e^c·A′)₊ in one direction."""
        factors = np.exp(np.minimum(charges, 700.0))
        above, below = compared(law, other, worse=worse)
        total = float(np.maximum(above - factors[:-1, None] * below, 0.0).sum())
        if self.pair.public_nothing:
            return total  # A = A′ there, and charges are not negative
        first, second = compared_nothing(law, other, worse=worse)
        return total + max(0.0, float(first - factors[-1] * second))


def compared(law: OutputLaw, other: OutputLaw, *, worse: bool) -> tuple[Floats, Floats]:
    """Return the ends of two laws that make their ratio largest (``worse``) or smallest."""
    return _ends(law.high, other.low) if worse else _ends(law.low, np.maximum(other.high, TINY))


def compared_nothing(law: OutputLaw, other: OutputLaw, *, worse: bool) -> tuple[Floats, Floats]:
    """Do the same as :func:`compared` for "nothing"."""
    if worse:
        return _ends(law.nothing_high, other.nothing_low)
    return _ends(law.nothing_low, np.maximum(other.nothing_high, TINY))


def _ends(above: Floats, below: Floats) -> tuple[Floats, Floats]:
    """Replace probabilities below TINY."""
    kept = above >= TINY
    return np.where(kept, above, 0.0), np.where(kept & (below < TINY), 0.0, below)


def _pure_losses(pair: LawPair, *, worse: bool) -> Floats:
    """Return the largest |ln A/A′| of each class; −∞ for a class that never occurs."""
    best = np.full(pair.classes, -np.inf)
    for law, other in pair.directions():
        nothing = (
            0.0
            if pair.public_nothing
            else float(_log_ratio(*compared_nothing(law, other, worse=worse)))
        )
        losses = _log_ratio(*compared(law, other, worse=worse)).max(-1)
        best = np.maximum(best, np.append(losses, nothing))
    return best


def _log_ratio(above: Floats, below: Floats) -> Floats:
    """Return ln(above/below); −∞ where above is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above > 0, np.log(above) - np.log(below), -np.inf)


def _log_moments(pair: LawPair, order: float, *, worse: bool) -> tuple[Floats, Floats]:
    """Return ln M_i of each class, in both directions."""
    moments = []
    for law, other in pair.directions():
        first, second = compared_nothing(law, other, worse=worse)
        nothing = log_moment(
            first[None], first[None] if pair.public_nothing else second[None], order
        )
        moments.append(np.append(log_moment(*compared(law, other, worse=worse), order), nothing))
    return moments[0], moments[1]


def _least(used: Callable[[float], float], allowed: float, guess: float) -> float:
    """Return the least x ≥ 0 with used(x) ≤ allowed, for a decreasing function.

    Rounded up, by at most a relative 1e-13.
    """
    if used(0.0) <= allowed:
        return 0.0
    low, high = 0.0, max(guess, 1e-6)
    while used(high) > allowed:
        low, high = high, 2 * high
        if high > _LARGEST:
            return math.inf
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if used(middle) <= allowed else (middle, high)
    return high
