"""A checked request, how its total is split, and what it may cost.

Everything here is computed from public settings. The ledger stores a rule (a share of the total, in
parts of 10⁻¹²), not a table.
Tests: ``tests/analytics/test_shares.py``, ``tests/analytics/test_count_prices.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from expost.analytics import contribution
from expost.analytics.cap_choice import MOST_CAP, amount_candidates, cap_candidates
from expost.analytics.cap_ladder import FURTHER, MOST_SHARE, LadderTerms, doubling_steps
from expost.analytics.contribution import MOST_UNITS, GroupValues, Measure
from expost.analytics.means import mean_rule
from expost.analytics.private_keys import KeySelection, best_selection
from expost.analytics.refinement import LEAST_PART, Charge, Job, make_job, make_levels
from expost.analytics.refinement_goals import LEAST_COST, LevelOptions, Wanted
from expost.analytics.refinement_noise import (
    GaussianLevels,
    GroupPaths,
    LaplaceLevels,
    half_widths_at,
)
from expost.errors import InvalidInput
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ZCDP, ApproxDP, Guarantee, PureDP
from expost.randomness import coins
from expost.randomness.source import Randomness
from expost.rationals import round_down, round_up
from expost.tables.sources import may_collate

AUTO = "auto"
KEYS_SHARE = Fraction(1, 10)  # of the total goes to finding groups privately
CAP_SHARE = Fraction(3, 100)  # of the total goes to choosing each cap privately
DROPPED_SHARES = tuple(Fraction(part, 200) for part in (1, 2, 6, 16, 40))
"""Parts of the total that the share of dropped pairs may cost: 0.5 % to 20 %, as far as needed."""
REMOVED_SHARES = (Fraction(1, 100), Fraction(3, 100), Fraction(2, 25), Fraction(1, 5))
"""Likewise for what caps remove from rows and sums: 1 % to 20 %, as far as needed."""
REMOVED_VALUES_SHARE = Fraction(1, 2)  # at most, where different values are counted: they are few
REMOVED_SHARE = Fraction(1, 20)  # of the total, for means and where nothing depends on it
_TAIL = 1 / (1 - 2**-0.5)  # what a tail of index 1.5 has above a cap, over the part up to two caps
_FEW = 4  # caps of the amount with which a user counts in the share, where nothing depends on it
_NEARLY_ALL = Fraction(4, 5)  # of the listed groups: a cap from here on is no cap at all
_FOR_REMOVED = Fraction(4, 5)  # of the price of the share, the rest is for what is kept
SPREAD = 10  # a user counts with so many rows in the share, or with what the caps allow if more
_TOLD = 4  # times the wanted error that a value may be wrong by what a cap removed, to be told
_MOST_ROWS = 2**15  # of a person in all groups together that a cap chosen privately may allow
ASSUMED_ROWS = 10  # a cap of rows that is chosen privately, in a plan
FINER = 32  # counts are made in such parts where noise is Laplace: less is lost to rounding
_PARTS = 10**12  # of the worst case; a request is settled at a whole number of them
THEOREM = (
    "noise reduction per group; a user is in at most m groups, so the charge is the sum of the m "
    "largest group costs, of which a cap on all groups together needs one (docs/counting.md, What "
    "it costs)"
)


@dataclass(frozen=True)
class KeptPath:
    """What a later question continues: caps, private values, their noise, and what was paid.

    Of quantiles, whose draws have no path, the caps only.
    """

    most: int | None
    caps: dict[str, int | None]  # of rows and of the amount, per user and group
    values: GroupValues | None = None
    path: GroupPaths | None = None
    limit: int | None = None  # of what one user adds to ``values.kept`` and ``values.removed``
    share: dict[str, float] | None = None  # that the caps removed, as it was released
    side: Fraction = Fraction(0)  # what was paid for the caps and that share, by all questions

    @property
    def paid(self) -> Fraction:
        """What was paid for the looks so far."""
        if self.values is None or self.path is None:
            return Fraction(0)
        groups = len(self.values.groups)
        most = max(1, min(groups, groups if self.most is None else self.most))
        return Charge(self.path.costs, groups, most, path=self.path).spent


@dataclass(frozen=True)
class CheckedCount:
    """A checked request: what is measured, how the total is split, and the opened table."""

    measure: Measure
    wanted: Wanted
    by: tuple[str, ...]
    user: str | None
    where: tuple[str, ...]
    keys: tuple[str, ...] | None
    cap: int | str | None
    epsilon: Fraction
    delta: float | None
    group_order: str
    max_group_epsilon: Fraction | None
    ratio: float | None
    total: Fraction
    data: Any = field(repr=False)
    table: Any = field(repr=False, default=None)
    source: str = ""
    one_row: bool = False
    chooses_rows: bool = False
    dropped_price: Fraction | None = None
    kept: KeptPath | None = field(repr=False, default=None)
    may_raise_rows: bool = False  # a mean of one row per user, as long as that moves it little
    stated: bool = False  # the caller gave every cap: answers may be about the capped table
    distinct: bool = False  # different values are counted, not rows
    cap_price: Fraction | None = None  # of a cap on all groups together, once it is known

    @property
    def law(self) -> str:
        """The noise: Laplace without δ, Gaussian with one."""
        return "laplace" if self.delta is None else "gaussian"

    @property
    def guarantee(self) -> Guarantee:
        """What everything released keeps."""
        epsilon = float(self.epsilon)
        if self.kept is not None:  # with what the earlier questions of its path released
            epsilon = round_up(self.total + self.paid_before + self.side_before)
        return PureDP(epsilon) if self.delta is None else ApproxDP(epsilon, self.delta)

    @property
    def finer(self) -> int:
        """Noise steps per grid unit."""
        counts = self.measure.kind in ("users", "rows")
        return FINER if counts and self.law == "laplace" else 1

    @property
    def private(self) -> bool:
        """Whether groups are found privately."""
        return self.keys is None

    @property
    def from_counts(self) -> bool:
        """Whether the data are counts, not rows."""
        return isinstance(self.data, Mapping)

    @property
    def most_known(self) -> int | None:
        """How many groups a user can be in at most, before m is applied."""
        return None if self.keys is None else len(self.keys)

    @property
    def caps_amount(self) -> bool:
        """Whether what is chosen privately is the amount that a user adds to a group."""
        return self.chooses_rows and self.measure.kind == "sum"

    @property
    def caps_in_all(self) -> bool:
        """Whether what is chosen is a cap on all groups together: no m, and one choice."""
        free = self.cap == AUTO or self.most_known == 1
        return self.chooses_rows and self.counts_removed and free and not self.special

    @property
    def special(self) -> bool:
        """Whether a cap per group is needed: to find groups, or for different values."""
        return self.private or self.distinct

    @property
    def chooses_cap(self) -> bool:
        """Whether m is chosen privately, and paid for."""
        return self.cap == AUTO and self.most_known != 1 and not self.caps_in_all

    @property
    def counts_removed(self) -> bool:
        """Whether what caps remove from rows or sums counts against a relative error."""
        relative = self.wanted.within is not None and self.wanted.top is None
        return relative and self.measure.kind in ("rows", "sum")

    @property
    def removed_shares(self) -> tuple[Fraction, ...]:
        """The parts of the total that the share of what caps remove may cost, ascending."""
        if not self.counts_removed:
            return DROPPED_SHARES if self.measure.kind == "users" else (REMOVED_SHARE,)
        return (*REMOVED_SHARES, REMOVED_VALUES_SHARE) if self.distinct else REMOVED_SHARES

    def cost_of_cap(self) -> Fraction:
        """The price of choosing m."""
        return self.total * CAP_SHARE if self.chooses_cap else Fraction(0)

    def cost_of_rows(self) -> Fraction:
        """The price of choosing the rows or the amount per user and group.

        Of a cap on all groups together the most that it may be, until it is known (``cap_price``).
        """
        if self.caps_in_all:
            return self.total * MOST_SHARE if self.cap_price is None else self.cap_price
        return self.total * CAP_SHARE if self.chooses_rows else Fraction(0)

    def cost_of_keys(self) -> Fraction:
        """The price of finding groups."""
        return self.total * KEYS_SHARE if self.private else Fraction(0)

    def cost_of_dropped(self, most: int | None) -> Fraction:
        """The price of the share that caps remove; nothing if nothing should be removed.

        For pairs the most that it may be, until it is known (``dropped_price``).
        """
        if self.dropped_price is not None:
            return self.dropped_price
        if self.one_row or self.caps_in_all or self.measure.in_all:
            return Fraction(0)  # what a cap on all groups removes is known from its choice
        capped = most is not None and (self.most_known is None or most < self.most_known)
        if self.measure.kind == "users" and (self.from_counts or not capped):
            return Fraction(0)
        return self.total * self.removed_shares[-1]

    def limit(self, most: int | None) -> int:
        """How much one user counts in the share that caps remove, in units of the measure."""
        groups = most if most is not None else min(SPREAD, self.most_known or SPREAD)
        if self.measure.kind == "users":
            return groups
        if self.measure.amount is not None:
            return max(groups, 1 if self.counts_removed else _FEW) * self.measure.amount
        rows = self.measure.rows or 1
        return max(groups * rows, 1 if self.distinct else SPREAD) * (
            self.measure.sensitivity // rows
        )

    def counting_total(self, most: int | None) -> Fraction:
        """What is left for the values themselves, with what an earlier question paid for them."""
        caps = self.cost_of_cap() + self.cost_of_rows()
        left = self.total - caps - self.cost_of_keys() - self.cost_of_dropped(most)
        return left + self.paid_before

    @property
    def paid_before(self) -> Fraction:
        """What an earlier question paid for the path that is continued."""
        return Fraction(0) if self.kept is None else self.kept.paid

    @property
    def side_before(self) -> Fraction:
        """What earlier questions paid for the caps and the share that are told again."""
        return Fraction(0) if self.kept is None else self.kept.side

    def on_path(self, kept: KeptPath, total: Fraction | None = None) -> CheckedCount:
        """Return the request with the caps and the path of an earlier question.

        Its total is what it may cost beyond that: by default what the earlier question left of it.
        Raises InvalidInput if the path ends before the wanted error.
        """
        caps = kept.caps
        measure = replace(self.measure, rows=caps["rows"], amount=caps["amount"])
        measure = replace(measure, in_all=bool(caps["in_all"]))
        whole = replace(self, measure=measure, chooses_rows=False, cap=kept.most, kept=kept)
        left = max(self.total - kept.paid - kept.side, whole.cost_of_dropped(kept.most))
        request = replace(whole, total=left if total is None else total)
        if kept.path is not None:
            request.check_levels(kept.most)
        return request

    @property
    def above(self) -> Fraction:
        """The share of users, or of their rows and amounts, that a chosen cap may remove."""
        share = Fraction(self.wanted.within or Fraction(1, 10))
        return share / (6 if self.counts_removed else 4)

    @property
    def span(self) -> int | None:
        """The part above a cap of rows, or of the amount, with which a user counts at least."""
        if not self.counts_removed:
            return None
        return 1 if self.caps_amount else SPREAD

    def cap_rate(self) -> Fraction:
        """η of the exponential mechanism that chooses a cap."""
        price = self.total * CAP_SHARE
        if self.delta is None:
            return price
        return Fraction(math.sqrt(8 * float(price)) * (1 - 1e-12))

    def selection(self, most: int) -> KeySelection:
        """How groups are found privately when users keep ``most`` groups."""
        assert self.delta is not None
        return best_selection(float(self.cost_of_keys()) * (1 - 1e-12), self.delta / 2, most)

    def job(self, groups: int, most: int | None, *, bias: float = 0.0, shift: float = 0.0) -> Job:
        """The refinement of this many groups with this cap, whose caps have this bias or shift."""
        rule, error = None, self.wanted.plus_minus
        if self.measure.kind == "mean":
            rule = partial(
                mean_rule,
                confidence=self.wanted.confidence,
                low=self.measure.low,
                high=self.measure.high,
                within=self.wanted.within,
                plus_minus=None if error is None else float(error),
                shift=shift,
                draft=self.wanted.draft,
            )
        options = self._level_options(most)
        return make_job(groups, self._wanted(), bias=bias, rule_of=rule, **options)

    def caps_that_fit(self) -> list[int]:
        """The values of m that may be chosen: those for which a job can be made."""
        rows = self.with_rows(1) if self.chooses_rows else self
        return list(
            takewhile(rows._fits, cap_candidates(min(self.most_known or MOST_CAP, MOST_CAP)))
        )

    def widened(self, cap: int, fit: Sequence[int]) -> int:
        """Return all listed groups in place of a released cap that keeps nearly all of them.

        Noise grows by a quarter at most. In return nothing is removed, and no share is bought.
        """
        every = self.most_known
        counts = self.measure.kind == "users" and not self.from_counts
        if every is None or every not in fit or not counts:
            return cap
        return every if cap >= _NEARLY_ALL * every else cap

    def fits_all_groups(self) -> bool:
        """Return whether the groups are listed, and a job without a cap can be made."""
        return self.most_known is not None and self._fits(self.most_known)

    def rows_that_fit(self, most: int | None) -> list[int]:
        """The caps of rows (or amounts) that may be chosen: those for which a job can be made."""
        units = max(1, self.measure.largest, self.measure.high - self.measure.low)
        caps = self.amounts or cap_candidates(max(1, min(MOST_CAP, MOST_UNITS // units)))
        return list(takewhile(lambda cap: self.with_rows(cap)._fits(most), caps))

    def ladder(self) -> tuple[tuple[int, ...], LadderTerms]:
        """Return the steps and the terms by which a cap on all groups together is chosen."""
        unit = max(1, self.measure.largest // 1024) if self.caps_amount else 1
        last = min(MOST_UNITS, 1024 * self.measure.largest) if self.caps_amount else _MOST_ROWS
        fit = [step for step in doubling_steps(unit, last) if self.with_rows(step)._fits(1)]
        terms = LadderTerms(
            law=self.law,
            total=self.total,
            within=float(self.wanted.within or 0),
            confidence=self.wanted.confidence,
            groups=self.most_known or 1,
            corrected=not self.measure.signed,
            clips=self.caps_amount,
            largest=max(fit, default=1),
        )
        first = min(unit, terms.largest)
        return doubling_steps(first, max(terms.largest, 4 * first) << FURTHER), terms

    def with_rows(self, cap: int) -> CheckedCount:
        """Return the request with this cap of rows (or of the amount) per user and group."""
        measure = replace(self.measure, in_all=self.caps_in_all)
        capped = replace(measure, amount=cap) if self.caps_amount else replace(measure, rows=cap)
        return replace(self, measure=capped)

    def drafted(self) -> CheckedCount:
        """Return the request with rules that are made at once, for a first plan."""
        return replace(self, wanted=replace(self.wanted, draft=True))

    def assumed(self) -> CheckedCount:
        """Return the request of a plan: with assumed caps in place of those chosen privately."""
        if not self.chooses_rows:
            return self
        return self.with_rows(self.measure.largest if self.caps_amount else ASSUMED_ROWS)

    @property
    def amounts(self) -> tuple[int, ...]:
        """The caps of the amount among which one is chosen privately; empty for caps of rows."""
        return tuple(amount_candidates(self.measure.largest)) if self.caps_amount else ()

    def _fits(self, most: int | None) -> bool:
        """Whether the total pays for a first look, by public numbers alone."""
        try:
            self.check_levels(most)
        except InvalidInput:
            return False
        return True

    def check_levels(self, most: int | None) -> None:
        """Refuse a total that does not pay for a first look, by public numbers alone."""
        make_levels(
            self.groups_or_cap(most), self._wanted(), LevelOptions(**self._level_options(most))
        )

    def groups_or_cap(self, most: int | None) -> int:
        """Return the number of groups, or m where it is not known."""
        return self.most_known or most or MOST_CAP

    def _wanted(self) -> Wanted:
        """What is wanted, in units of the noise."""
        wanted = self.wanted
        error = wanted.plus_minus
        if error is not None and self.measure.kind == "mean":  # its level depends on the group
            return replace(wanted, plus_minus=None, within=0.5)
        return wanted if error is None else replace(wanted, plus_minus=error * self.finer)

    def _level_options(self, most: int | None) -> dict[str, Any]:
        return {
            "law": self.law,
            "total": self.counting_total(most),
            "sensitivity": self.measure.sensitivity * self.finer,
            "most_groups": most,
            "order": self.group_order,
            "max_group": self.max_group_epsilon and in_unit(self.max_group_epsilon, self.delta),
            "ratio": self.ratio,
            "spaced": self.measure.kind == "mean",
            "path": None if self.kept is None or self.kept.path is None else self.kept.path.costs,
        }

    @property
    def keeps_path(self) -> bool:
        """Whether a later question may continue the noise: that of given groups, without δ."""
        goal = self.wanted.answered is not None or self.wanted.top is not None
        return self.delta is None and not self.private and not goal

    @property
    def collated(self) -> bool:
        """Whether text columns may have a collation."""
        return may_collate(self.data)

    @property
    def shape(self) -> Hashable:
        """What a query for the values depends on, beside the table, the caps of groups and salt."""
        return self.by, self.user, self.where, self.measure, self.keys, self.collated

    def rows(self) -> Any:
        """The columns that matter, in the engine."""
        assert self.user is not None
        return contribution.select(
            self.table, self.by, self.user, self.measure, self.where, collated=self.collated
        )


@dataclass(frozen=True)
class CountPrice:
    """What a request may cost, and the public descriptions that its ledger entry refers to."""

    charges: Charges
    request: dict[str, Any]
    source: dict[str, Any]


def price_request(request: CheckedCount, budget_kind: str | None = None) -> CountPrice:
    """Return what a request may cost in a budget of this kind; reads no data.

    Pure: ε. With δ and known groups: ρ in a zCDP (or Rényi) budget, which gives back what was not
    used, and where there is no budget; in an (ε, δ) budget the whole (ε, δ), because converting a
    realised ρ would need one order for all outcomes. With private groups: the whole (ε, δ).
    """
    asked = describe_request(request)
    return CountPrice(
        _charges(request, budget_kind), asked, source_description(request.source, asked)
    )


def _charges(request: CheckedCount, budget_kind: str | None) -> Charges:
    if request.delta is None:
        return Charges.shares(PureDP(round_up(request.total)), _PARTS)
    if budget_kind in (None, "zcdp", "renyi") and not request.private:
        return Charges.shares(ZCDP(round_up(request.total)), _PARTS)
    whole = request.guarantee
    # One δ covers all outcomes, so "nothing" has it, too.
    return Charges((whole,), (0,), ApproxDP(0.0, request.delta, whole.neighbours))


def outcome_of(spent: Fraction, charges: Charges) -> int | None:
    """Return the cheapest outcome that covers what was spent; None for nothing, if it is priced."""
    if isinstance(charges, ShareCharges):
        return charges.outcome_for(spent)
    return 0 if spent else None


def settled_at(spent: Fraction, charges: Charges) -> tuple[int | None, Fraction]:
    """Return the outcome that covers what was spent, and its charge in the unit of the noise.

    A whole (ε, δ) that is charged has none; then it is what was spent.
    """
    outcome = outcome_of(spent, charges)
    if not isinstance(charges, ShareCharges):
        return outcome, spent
    charged: Any = charges.nothing if outcome is None else charges[outcome]
    return outcome, Fraction(charged.size)


def in_unit(epsilon: Fraction, delta: float | None) -> Fraction:
    """Return an ε in the unit of the noise: ε itself, or the ρ that (ε, δ) allows."""
    return epsilon if delta is None else Fraction(gaussian_for(float(epsilon), delta).rho)


def describe_request(request: CheckedCount) -> dict[str, Any]:
    """Return what is asked in public words, for the ledger and the certificate."""
    measure = request.measure
    bounds = [float(measure.low * measure.grid), float(measure.high * measure.grid)]
    valued = measure.column is not None
    return {
        "kind": {"users": "count"}.get(measure.kind, measure.kind),
        "column": measure.column,
        "bounds": bounds if valued else None,
        "grid": float(measure.grid) if valued else None,
        "by": list(request.by),
        "user": request.user,
        "where": list(request.where),
        "within": request.wanted.within,
        "plus_minus": None
        if request.wanted.plus_minus is None
        else float(request.wanted.plus_minus * measure.grid),
        "confidence": request.wanted.confidence,
        **goal_of(request.wanted),
    }


def goal_of(wanted: Wanted) -> dict[str, Any]:
    """Return the goal of the whole job, if there is one, for a description."""
    if wanted.top is not None:
        return {"within": None, "top": wanted.top}
    return {} if wanted.answered is None else {"answered": wanted.answered}


def source_description(name: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public description of the source whose digest a ledger stores."""
    columns = [*query["by"], query["user"], query["column"]]
    return {"name": name, "columns": [column for column in columns if column is not None]}


def known_share(share: Mapping[str, float], within: float) -> bool:
    """Whether the share of dropped pairs is known to half of the wanted error."""
    return share["high"] - share["low"] <= within


def too_much_removed(share: Mapping[str, float], within: float) -> bool:
    """Whether a released share is clearly above half of the wanted error.

    An interval that is wider than its estimate says nothing. Where nothing is removed, noise must
    then exceed about twice the half-width of a 90 % interval: once in hundreds of requests.
    """
    return share["low"] > within / 2 and share["high"] - share["low"] <= share["estimate"]


def removed_is_clear(share: Mapping[str, float], within: float) -> bool:
    """Whether a better estimate of what caps removed would hardly answer more."""
    low, high = (_TAIL * _odds(share[name]) for name in ("low", "high"))
    wide = high - low > _TAIL * within / 2
    return high <= within / 4 or low >= within * (1 - LEAST_PART) or not wide


def prices_that_fit(prices: Sequence[Fraction], limit: int, law: str) -> list[Fraction]:
    """Return the prices whose noise for this limit the samplers of paths can draw."""
    least = LEAST_COST[law] * (limit if law == "laplace" else limit**2)
    return [price for price in prices if price * (1 - _FOR_REMOVED) / 2 >= least]


def removed_by_caps(request: CheckedCount, share: dict[str, Any]) -> dict[str, Any]:
    """The share that caps removed, and the bias that counts against the wanted relative error.

    ``bias`` of rows and sums, relative to the value, is the estimate, if that is known to the
    wanted error. Under caps that were chosen, it is enlarged for what users have beyond the part of
    their rows that is looked at (as much as a Pareto tail of index 1.5 has, from the part that is
    certain), and nothing is answered if it is not known. ``shift`` of a mean is the estimate if
    that is known to within the wanted error, else the part of it that is certain. Counts of users
    are divided by the share of pairs that the cap keeps (``corrected``), if that is known to half
    of the wanted error and at least 1 − within/2. If not, a cap may have moved a count by more than
    the wanted error, and none is answered. Only if all caps were given (``stated``) and a small
    budget cannot tell, the part that is certain counts, and the answers are those of the table with
    the caps.
    """
    measure, within = request.measure, request.wanted.within
    kinds = {"users": "pairs", "rows": "rows", "sum": "amount", "mean": "rows"}
    told = {"of": kinds[measure.kind]} | share
    if measure.in_all:
        cap = float(measure.sensitivity * measure.grid)
        return told | {"in_all_groups": cap, "corrected": not measure.signed}
    if measure.kind == "users":
        if within is None or request.wanted.top is not None:
            return told
        if known_share(share, within) and share["estimate"] <= within / 2:
            return told | {"corrected": True}
        unknown = not known_share(share, within) and not too_much_removed(share, within)
        return told | {"bias": share["low"] if unknown and request.stated else within}
    if measure.kind == "mean":
        spread, error = measure.high - measure.low, told.pop("shift_error")
        shift, centre = abs(told.pop("shift")), measure.low + spread * told.pop("centre")
        asked = request.wanted.plus_minus
        wanted = float(asked) if asked is not None else (within or 0.0) * abs(centre)
        counted = shift if spread * error <= wanted else max(0.0, shift - error)
        unit = float(measure.grid)
        return told | {"shift": counted * spread * unit, "kept_mean": centre * unit}
    low, middle, high = (_odds(share[name]) for name in ("low", "estimate", "high"))
    known = within is None or high - low <= 2 * within
    if within is None or not request.counts_removed or request.stated:
        return told | {"bias": middle if known else low}
    return told | {"bias": max(middle, low) + (_TAIL - 1) * low if high - low <= within else within}


def told_only(request: CheckedCount, removed: Mapping[str, Any]) -> bool:
    """Whether values are told though none is within the error: for what a cap removed alone.

    Of a cap on all groups together, if the error of that is at most four times the wanted one.
    """
    within, bias = request.wanted.within or 0.0, removed.get("bias", 0.0)
    return request.measure.in_all and (1 - LEAST_PART) * within < bias <= _TOLD * within


def _odds(share: float) -> float:
    """The removed part as a part of what is kept; a number for JSON even if nothing is kept."""
    return share / max(1e-9, 1 - share)


def removed_share(
    values: GroupValues,
    limit: int,
    price: Fraction,
    law: str,
    confidence: float,
    randomness: Randomness,
) -> dict[str, float]:
    """Return a private estimate of the share that the caps removed, with an interval.

    For a mean also ``centre``, the mean of the kept rows in parts of the range, ``shift``, by how
    much the mean of all rows lies above it, and ``shift_error``, a half-width for that.
    """
    parts = len(values.kept)
    noisy, widths = [], []
    for numbers, portion in ((values.removed, _FOR_REMOVED), (values.kept, 1 - _FOR_REMOVED)):
        cost = price * portion
        if law == "laplace":
            noise = [coins.discrete_laplace(limit / cost, randomness) for _ in numbers]
            levels: Any = LaplaceLevels((float(cost),), limit)
        else:
            noise = [coins.discrete_gaussian(limit**2 / (2 * cost), randomness) for _ in numbers]
            levels = GaussianLevels((float(cost),), limit)
        noisy.append([float(number + z) for number, z in zip(numbers, noise, strict=True)])
        miss = np.array([(1 - confidence) / (2 * parts)])  # of each of the numbers
        widths.append(parts * float(half_widths_at(levels, miss)[0]))
    removed, kept = (sum(numbers) for numbers in noisy)
    told = {
        "estimate": _ratio(removed, kept),
        "low": _ratio(removed - widths[0], kept + widths[1]),
        "high": _ratio(removed + widths[0], kept - widths[1]),
        "confidence": confidence,
    }
    if parts == 2:
        whole = max(1.0, removed + kept)
        here = told["centre"] = min(1.0, max(0.0, noisy[1][0] / max(1.0, kept)))
        told["shift"] = min(1.0, max(0.0, (noisy[0][0] + noisy[1][0]) / whole)) - here
        told["shift_error"] = min(1.0, widths[0] / whole + widths[1] / max(1.0, kept))
    return told


def dropped_pairs(
    values: GroupValues,
    limit: int,
    prices: Sequence[Fraction],
    law: str,
    confidence: float,
    enough: Callable[[dict[str, float]], bool],
    randomness: Randomness,
) -> tuple[dict[str, float], Fraction]:
    """Return a private estimate of the share of dropped pairs (rows, amount), and its price.

    One user changes what is removed, and what is kept, by at most ``limit`` each. Both have one
    noise path each; the first price that is ``enough`` is paid, by released values only. The
    interval holds at all prices at once (union bound; the first price, which mostly suffices, has
    the largest part of what may be missed).
    """
    shares = np.array([0.25**level for level in range(len(prices))])
    shares /= shares.sum()
    laws: dict[str, Any] = {"laplace": LaplaceLevels, "gaussian": GaussianLevels}
    parts = []
    for numbers, portion in ((values.removed, _FOR_REMOVED), (values.kept, 1 - _FOR_REMOVED)):
        levels = laws[law](tuple(round_down(price * portion) for price in prices), limit)
        misses = (1 - confidence) / 2 * shares
        noisy = levels.estimates(np.array([sum(numbers)], dtype=np.int64), randomness)[:, 0]
        parts.append((noisy, half_widths_at(levels, misses)))
    (removed, around), (kept, near) = parts
    for level, price in enumerate(prices):
        low, high = removed[level] - around[level], removed[level] + around[level]
        told = {
            "estimate": _ratio(removed[level], kept[level]),
            "low": _ratio(low, kept[level] + near[level]),
            "high": _ratio(high, kept[level] - near[level]),
            "confidence": confidence,
        }
        told = {name: float(value) for name, value in told.items()}
        if enough(told) or price == prices[-1]:
            return told, price
    raise AssertionError("there is a last price")


def _ratio(removed: float, kept: float) -> float:
    """removed/(removed + kept) for noisy numbers: between 0 and 1, 1 if nothing is known."""
    removed, kept = max(0.0, removed), max(0.0, kept)
    if removed == 0:
        return 0.0
    return removed / (removed + kept)
