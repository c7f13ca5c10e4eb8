"""The cap on what a person adds to all groups together, chosen privately by what it would remove.

**The ladder.** t_u is what person u has in all groups together (:func:`user_amounts`), and 0 = c_0
< c_1 < … are public steps, each twice the one before. The amount of step j is

    T_j = Σ_u min(max(t_u − c_{j−1}, 0), c_j − c_{j−1}).

A person changes it by at most c_j − c_{j−1}, so a look at T_j with exact noise of scale b costs
(c_j − c_{j−1})/b in ε, and (c_j − c_{j−1})²/(2σ²) in ρ. The looks are composed adaptively: which
one is next, with how much noise, and when to stop depends on released values only. **What was
looked at is charged, one cost added to the other.** (With one scale for all steps up to C this is
C/b, what one look at Σ min(t_u, C) would cost.) Test: ``tests/analytics/test_cap_ladder.py``, by
enumeration of the joint law, both directions.

**What it tells.** Σ_u min(t_u, c_k) is T_1 + … + T_k, and a cap of c_k removes T_{k+1} + …. What is
above the last step is taken from the last two of them: each further step has at most 2^{−1/2} times
the one before (a Pareto tail of index 1.5), and less where the last one had. Between two steps a
cap of √2·c_k removes at most the part of T_{k+1} that an even distribution would have, because the
number of users above x falls with x. For each cap this gives the removed part r of what is kept,
and how far r may be wrong: the deviation of the noise (:data:`_SURE` times at confidence 90 %),
half of what is assumed above the last step, half of r where there are several groups (they may
differ; a tenth for one), and what bounds of a value clip. Answers are multiplied by 1 + r, and only
the rest of the wanted error is left for noise (``bias``). Sums of values of either sign are not
multiplied; all of r counts then. This is an estimate: nobody can know privately whether one person
has a million rows.

**Which cap.** An average group needs an ε in proportion to cap/(within − bias): the least of that
is chosen. A further step is looked at as long as it costs less than it can save. Before a cap is
accepted one wide look, at everything from the last step to 16 times that (:data:`_WIDE` of the
total), must not show much more than was assumed. It finds a few persons with far more than all
others; if it does, the ladder goes on.

**The cap.** Let x_g ≥ 0 be what a person has in group g (rows, or the sum without its sign) and t =
Σ x_g. A person with t ≤ C keeps everything. Others keep the part C/t of every group, in whole
units: their groups are put in the order of a salted hash, and of a group that raises the running
sum from a to a + x_g they keep ⌊(a + x_g)·C/t⌋ − ⌊a·C/t⌋, which is x_g·C/t to within one unit.

*Sensitivity.* What is kept depends on the person's own rows and the salt only. The differences
telescope: with f = C/t in floating point and ⌊fl(a·f)⌋, which never falls as a grows, they are at
least 0 and add up to ⌊fl(t·f)⌋ ≤ C (C ≤ 2³¹, so that rounding cannot lead to C + 1). So one person
changes the values of all groups by k_g with **Σ|k_g| ≤ C**.

*Charge.* The noise path of a group has noise for a change of C (``Measure.sensitivity``). A path at
cost ε_g is a function of its finest look and of coins, and discrete Laplace noise of scale C/ε_g
hides a change of k_g at a loss of |k_g|·ε_g/C; in ρ, of independent discrete Gaussian releases, it
is k_g²·ρ_g/C². Both sums are at most **the largest cost of a group**, because Σ|k_g| ≤ C and Σk_g²
≤ C². So the refinement charges as if a person were in one group (m = 1), wherever their rows are.

Compared with caps of m groups and r rows in each, C = m·r keeps at least as much with the same
noise, and a person with all rows in one group needs no cap for m such groups.
Test: ``tests/analytics/test_total_cap.py`` (both neighbours, enumeration of the loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from typing import Any

from expost.analytics.contribution import (
    FIRST_SUM,
    GROUP,
    USER,
    USERS_COUNTED,
    WHOLE_SUM,
    Measure,
    between,
    group_totals,
    integer_sum,
    literal64,
    ordered_by_hash,
)
from expost.randomness import coins
from expost.randomness.source import Randomness
from expost.rationals import round_up
from expost.tables.typed_columns import fetch, ibis_module

LADDER_SHARE = Fraction(3, 10)  # of the total that the steps may cost
_WIDE = Fraction(1, 20)  # of the total for a wide look, which may be repeated
_CLIPPED = Fraction(2, 25)  # of the total for what bounds clip
MOST_SHARE = LADDER_SHARE + 2 * _WIDE + _CLIPPED
FURTHER = 4  # steps of the wide look
_FIRST = Fraction(1, 250)  # of the total for the first step
_DECAY = 2**-0.5  # of steps in a Pareto tail of index 1.5
_EVEN = 0.77  # of what an even distribution has above √2·c, the rest may not be there
_SURE = 0.8  # deviations, at confidence 90 %
_ASSUMED = 0.5  # of what is assumed above the last step may be wrong
_DIFFER = 0.5  # of the removed part may be missing from, or more in, one of several groups
_ALONE = 0.1  # likewise of one group: a cap that removes much is not the best one
_LEVER = 6.0  # by how much an error of one step is enlarged in the estimate (for its noise)
_COARSE = 20  # noise of a step may be this part of the step before
_CLIPPED_NOISE = 2  # times that of a step
_ALARM, _CALM = 2.0, 0.7  # deviations of the wide look
_USABLE = 0.9  # of the wanted error may go to the bias


@dataclass(frozen=True)
class StepAmounts:
    """Amounts of all users together: of the ``steps``, and of what bounds clip per cap. Secret."""

    steps: tuple[int, ...]
    amounts: tuple[int, ...] = field(repr=False)
    clipped: tuple[int, ...] = field(repr=False)

    def clipped_at(self, cap: int) -> int:
        """What bounds clip, at most ``cap`` a user."""
        return self.clipped[caps_between(self.steps).index(cap)]


def doubling_steps(first: int, last: int) -> tuple[int, ...]:
    """Return first, 2·first, … up to ``last``, and at least three of them."""
    steps = [first, 2 * first, 4 * first]
    while 2 * steps[-1] <= last:
        steps.append(2 * steps[-1])
    return tuple(steps)


def caps_between(steps: Sequence[int]) -> list[int]:
    """Return the caps that may be chosen: the steps, and √2 times each."""
    return sorted({*steps, *(math.floor(step * math.sqrt(2)) for step in steps)})


@dataclass(frozen=True)
class LadderTerms:
    """What a choice depends on besides the table; all of it public.

    ``total`` is that of the request, ``largest`` the largest cap for which its values can be
    released, ``clips`` whether bounds clip values, ``corrected`` whether answers are corrected for
    what is removed.
    """

    law: str
    total: Fraction
    within: float
    confidence: float
    groups: int
    corrected: bool
    clips: bool
    largest: int

    def need(self, cap_over_error: float, amount: float) -> float:
        """What an average group needs, for cap/(within − bias) and an amount of all groups."""
        folds = -math.log(1 - self.confidence) * 1.06
        if self.law == "laplace":
            return folds * self.groups * cap_over_error / amount
        deviations = 1.1 * NormalDist().inv_cdf((1 + self.confidence) / 2)
        return (deviations * self.groups * cap_over_error / amount) ** 2 / 2

    @property
    def part(self) -> float:
        """The noise of a step, as a part of the amount, that costs least in all.

        Looks cost in proportion to 1/noise, values to 1/(what is left of the error).
        """
        looks, values = math.sqrt(2 * _LEVER), math.sqrt(2.5 * self.groups)
        # Where more deviations count as error (a higher confidence), they are smaller.
        return 0.8 * self.within / _LEVER * looks / (looks + values) * _SURE / self.sure

    @property
    def sure(self) -> float:
        """Deviations of the noise that count as its error."""
        return _SURE * math.log(1 - self.confidence) / math.log(0.1)


@dataclass(frozen=True)
class ChosenCap:
    """A cap, the part of what it keeps that it removes, and how much of that may be wrong.

    ``bias`` counts against the wanted error; ``error`` is that of ``removed`` itself.
    """

    cap: int
    removed: float
    error: float
    bias: float
    clear: bool  # the bias leaves room for noise

    def share(self, confidence: float) -> dict[str, float]:
        """Return what is released: the removed share, an interval for it, and the bias."""
        ends = (self.removed, max(0.0, self.removed - self.error), self.removed + self.error)
        shares = [end / (1 + end) for end in ends]
        told = dict(zip(("estimate", "low", "high"), shares, strict=True))
        return told | {"confidence": confidence, "bias": self.bias}


@dataclass
class _Seen:
    """Released values: noisy amounts of steps and their deviations; the other looks."""

    steps: tuple[int, ...]
    amounts: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    wide: tuple[float, float, int] | None = None  # amount, deviation, steps before it
    alarmed: bool = False
    clipped: tuple[float, float, int] | None = None  # amount, deviation, cap

    @property
    def amount(self) -> float:
        """What was seen of all users together, at least 1."""
        return max(1.0, sum(self.amounts))

    def beyond(self, sure: float) -> tuple[float, float]:
        """What is assumed above the last step, and how much more it may be."""
        last, before = max(0.0, self.amounts[-1]), self.amounts[-2]
        high = last + sure * self.deviations[-1]

        def tail(amount: float) -> float:
            decay = min(_DECAY, amount / before) if before > 0 else _DECAY
            return amount * decay / (1 - decay)

        return tail(last), tail(high) - tail(last)

    def unseen(self, beyond: float) -> float:
        """What the wide look shows beyond what steps and tail explain; 0 if that is little."""
        if self.wide is None:
            return 0.0
        amount, deviation, before = self.wide
        more = amount - sum(self.amounts[before:]) - beyond
        self.alarmed = more > (_CALM if self.alarmed else _ALARM) * deviation
        return max(0.0, more) if self.alarmed else 0.0


class CapSearch:
    """One run of the ladder. ``pay`` is called with the cost of each look, before it is made."""

    def __init__(
        self,
        ladder: StepAmounts,
        terms: LadderTerms,
        pay: Callable[[Fraction], None],
        randomness: Randomness,
    ) -> None:
        self._ladder, self._terms, self._pay, self._randomness = ladder, terms, pay, randomness
        self._paid = Fraction(0)
        self._seen = _Seen(ladder.steps)

    def run(self) -> ChosenCap:
        """Return the cap; everything that decides on it is released and paid for."""
        terms, seen = self._terms, self._seen
        steps = seen.steps[: len(seen.steps) - FURTHER]
        chosen = None
        for number, step in enumerate(steps):
            price = self._price_of_step(number)
            if chosen is not None and chosen.clear and price >= self._saving(chosen, step):
                if seen.wide is not None:
                    break
                self._look_wide()
                chosen = self._best()
                if chosen.clear and price >= self._saving(chosen, step):
                    break
            left = terms.total * LADDER_SHARE - self._paid
            if seen.alarmed and left < price * (3 if terms.law == "laplace" else 5):
                break  # fewer than two further steps do not reach those few persons
            if price > left:
                if left < price / (2 if terms.law == "laplace" else 4):
                    break
                price = left
            width = step - (seen.steps[number - 1] if number else 0)
            amount, deviation = self._look(self._ladder.amounts[number], width, price)
            seen.amounts.append(amount)
            seen.deviations.append(deviation)
            chosen = self._best() if number >= 2 else None
        if chosen is None:
            return ChosenCap(steps[0], 1.0, 1e9, 1e9, clear=False)
        if chosen.clear and seen.wide is None:
            self._look_wide()
            chosen = self._best()
        if chosen.clear and self._terms.clips:
            self._look_at_clipped(chosen.cap)
            chosen = self._best()
        return chosen

    def _price_of_step(self, number: int) -> Fraction:
        """The cost of the next step with the noise that it should have."""
        if number == 0:
            return self._terms.total * _FIRST
        seen, width = self._seen, self._seen.steps[number] - self._seen.steps[number - 1]
        noise = max(self._terms.part * seen.amount, seen.amounts[-1] / _COARSE)
        return self._cost(width, math.sqrt(2) * noise)

    def _cost(self, sensitivity: int, deviation: float) -> Fraction:
        """What noise of this deviation costs."""
        if self._terms.law == "laplace":
            return Fraction(round_up(Fraction(math.sqrt(2) * sensitivity / deviation)))
        return Fraction(round_up(Fraction((sensitivity / deviation) ** 2 / 2)))

    def _look(self, value: int, sensitivity: int, cost: Fraction) -> tuple[float, float]:
        """Pay for a look at a value, and return it with noise, and the deviation of that."""
        self._pay(cost)
        self._paid += cost
        if self._terms.law == "laplace":
            noise = coins.discrete_laplace(sensitivity / cost, self._randomness)
        else:
            noise = coins.discrete_gaussian(sensitivity**2 / (2 * cost), self._randomness)
        return float(value + noise), self._deviation(sensitivity, cost)

    def _deviation(self, sensitivity: int, cost: Fraction) -> float:
        """The deviation of noise for this sensitivity that costs so much."""
        if self._terms.law == "laplace":
            return math.sqrt(2) * sensitivity / float(cost)
        return sensitivity / math.sqrt(2 * cost)

    def _look_wide(self) -> None:
        """Look at everything between the last step and further ones at once, twice if needed."""
        seen, before, paid = self._seen, len(self._seen.amounts), self._paid
        amount = sum(self._ladder.amounts[before : before + FURTHER])
        width = seen.steps[before + FURTHER - 1] - seen.steps[before - 1]
        price = self._terms.total * _WIDE
        told, deviation = self._look(amount, width, price)
        seen.wide = told, deviation, before
        if seen.unseen(seen.beyond(self._terms.sure)[0]):  # once more, it may be noise
            again, _ = self._look(amount, width, price)
            seen.wide, seen.alarmed = ((told + again) / 2, deviation / math.sqrt(2), before), False
        self._paid = paid  # not part of what the steps may cost

    def _look_at_clipped(self, cap: int) -> None:
        """Look at what bounds clip, with at most the cap a user."""
        cost = self._price_of_clipped(cap)
        self._seen.clipped = (*self._look(self._ladder.clipped_at(cap), cap, cost), cap)

    def _price_of_clipped(self, cap: int) -> Fraction:
        """The cost of that look."""
        noise = _CLIPPED_NOISE * self._terms.part * self._seen.amount
        return min(self._cost(cap, math.sqrt(2) * noise), self._terms.total * _CLIPPED)

    def _saving(self, chosen: ChosenCap, step: int) -> Fraction:
        """What looks at further steps can save at most, for an average group."""
        terms, amount = self._terms, self._seen.amount
        least = min(step / terms.within, *(self._known(cap) for cap in self._caps()))
        now = chosen.cap / (terms.within - chosen.bias)
        return Fraction(max(0.0, terms.need(now, amount) - terms.need(least, amount)))

    def _known(self, cap: int) -> float:
        """cap/(within − bias) if nothing were unsure."""
        removed, kept, _, _ = self._removed(cap)
        left = self._terms.within - self._of_groups(removed / kept)
        return cap / left if left > 0 else math.inf

    def _of_groups(self, removed: float) -> float:
        """How much of a removed part counts in a group though it is known."""
        if not self._terms.corrected:
            return removed
        return (_DIFFER if self._terms.groups > 1 else _ALONE) * removed

    def _caps(self) -> list[int]:
        """The caps of which something is known, and for which values can be released."""
        last = self._seen.steps[len(self._seen.amounts) - 1]
        most = min(last - 1, self._terms.largest)
        if self._seen.clipped is not None:
            most = min(most, self._seen.clipped[2])
        return [cap for cap in caps_between(self._seen.steps) if cap <= most] or [
            self._seen.steps[0]
        ]

    def _removed(self, cap: int) -> tuple[float, float, float, float]:
        """What a cap removes below the last step, and keeps; their deviation, and other error."""
        seen = self._seen
        index = max(n for n, step in enumerate(seen.steps) if step <= cap)  # of the step below
        part = (seen.steps[index + 1] - cap) / (seen.steps[index + 1] - seen.steps[index])
        unsure = 0.0
        if part < 1:
            unsure = (1 - _EVEN) * part * max(0.0, seen.amounts[index + 1])
            part *= _EVEN
        above = part * seen.amounts[index + 1] + sum(seen.amounts[index + 2 :])
        variances = [deviation**2 for deviation in seen.deviations[index + 1 :]]
        variances[0] *= part**2
        kept = max(1.0, seen.amount - above)
        return max(0.0, above), kept, math.sqrt(sum(variances)), unsure

    def _best(self) -> ChosenCap:
        """The cap with which an average group needs least; if none will do, the least bias."""
        judged = [self._judged(cap) for cap in self._caps()]
        clear = [one for one in judged if one.clear]
        if clear:
            return min(clear, key=lambda one: one.cap / (self._terms.within - one.bias))
        return min(judged, key=lambda one: one.bias)

    def _judged(self, cap: int) -> ChosenCap:
        """What is known of a cap."""
        terms, seen = self._terms, self._seen
        below, kept, deviation, unsure = self._removed(cap)
        tail, more = seen.beyond(terms.sure)
        error = unsure + max(_ASSUMED * tail, more) + seen.unseen(tail)
        clipped = 0.0
        if seen.clipped is not None:
            clipped = max(0.0, seen.clipped[0])
            deviation = math.hypot(deviation, seen.clipped[1])
        elif terms.clips:  # what the look at it will add
            deviation = math.hypot(deviation, self._deviation(cap, self._price_of_clipped(cap)))
        removed = (below + tail + clipped) / kept
        error = (error + terms.sure * deviation + _ASSUMED * clipped) / kept
        bias = error + self._of_groups(removed)
        return ChosenCap(cap, removed, error, bias, clear=bias < _USABLE * terms.within)


_TOTAL, _BEYOND, _SUM, _PART = "expost_total", "expost_beyond", "expost_sum", "expost_factor"


def user_amounts(pairs: Any) -> Any:
    """Return one row per user of the pairs of ``pair_sums``: what is in all groups together.

    And by how much the bounds of a value changed the sums: Σ |sum without bounds − sum|.
    """
    whole = pairs[WHOLE_SUM]
    if FIRST_SUM not in pairs.columns:  # rows
        amounts = {_TOTAL: integer_sum(whole), _BEYOND: literal64(0)}
    else:
        first = pairs[FIRST_SUM]
        amounts = {
            _TOTAL: integer_sum(first.abs()),
            _BEYOND: integer_sum((whole - first).abs()),
        }
    return pairs.group_by(USER).aggregate(**amounts)


def ladder_amounts(
    users: Any, steps: Sequence[int], caps: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the amount of all users between each step and the one before, and what bounds clip.

    The latter with at most each of ``caps`` a user. Both are private.
    """
    total, beyond = users[_TOTAL], users[_BEYOND]
    sums = {
        f"step_{number}": integer_sum(between(total - low, 0, high - low))
        for number, (low, high) in enumerate(zip([0, *steps], steps, strict=False))
    }
    sums |= {
        f"clipped_{number}": integer_sum(between(beyond, 0, cap)) for number, cap in enumerate(caps)
    }
    told = {name: int(column[0]) for name, column in fetch(users.aggregate(**sums)).items()}
    return (
        tuple(told[f"step_{number}"] for number in range(len(steps))),
        tuple(told[f"clipped_{number}"] for number in range(len(caps))),
    )


def capped_totals(
    pairs: Any, users: Any, measure: Measure, salt: str, keys: Sequence[str] | None
) -> Any:
    """Return the query for one row per group: what is kept of pairs of ``pair_sums``.

    Sums are those of all pairs less what is cut, so that only users above the cap are hashed.
    """
    cap = measure.sensitivity
    if measure.kind == "rows":
        pairs = pairs.mutate(**{FIRST_SUM: pairs[WHOLE_SUM]})
    above = users.filter(users[_TOTAL] > cap).select(USER, _TOTAL)
    above = above.mutate(**{_PART: cap / above[_TOTAL].cast("float64")})
    above = above.select(USER, _PART)
    cut = pairs.select(USER, GROUP, FIRST_SUM).join(above, USER)
    cut, order = ordered_by_hash(cut, salt, keys)
    ibis = ibis_module()
    size = cut[FIRST_SUM].abs()
    window = ibis.window(group_by=USER, order_by=order, preceding=None, following=0)
    cut = cut.mutate(**{_SUM: size.sum().over(window).cast("int64")})

    def floor(amount: Any) -> Any:
        return (amount.cast("float64") * cut[_PART]).floor().cast("int64")

    size = cut[FIRST_SUM].abs()
    kept = floor(cut[_SUM]) - floor(cut[_SUM] - size)
    signed = (cut[FIRST_SUM] < 0).ifelse(-kept, kept)
    cut = cut.select(GROUP, **{FIRST_SUM: cut[FIRST_SUM] - signed, USERS_COUNTED: literal64(0)})
    return group_totals(pairs.select(USER, GROUP, FIRST_SUM), cut, keys)
