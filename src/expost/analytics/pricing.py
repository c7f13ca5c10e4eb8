"""A checked request, how its total is split, and what it may cost.

Everything here is computed from public settings. The ledger stores a rule (a share of the total, in
parts of 10⁻¹²), not a table.
Tests: ``tests/analytics/test_shares.py``, ``tests/analytics/test_count_prices.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import takewhile
from typing import Any

from expost.analytics import contribution
from expost.analytics.contribution import MOST_CAP, MOST_UNITS, Measure, cap_candidates
from expost.analytics.means import mean_rule
from expost.analytics.private_keys import KeySelection, best_selection
from expost.analytics.refinement import Job, LevelOptions, Wanted, make_job, make_levels
from expost.errors import InvalidInput
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import ZCDP, ApproxDP, Guarantee, PureDP
from expost.rationals import round_up
from expost.tables.sources import may_collate

AUTO = "auto"
KEYS_SHARE = Fraction(1, 10)  # of the total goes to finding groups privately
CAP_SHARE = Fraction(3, 100)  # of the total goes to choosing each cap privately
DROPPED_SHARES = (Fraction(3, 500), Fraction(3, 100), Fraction(2, 25))
"""Parts of the total that the share of dropped pairs may cost: 0.6 % to 8 %, as far as needed."""
REMOVED_SHARE = Fraction(1, 20)  # of the total goes to what caps remove from rows, sums and means
SPREAD = 10  # a user counts with so many rows in the share, or with what the caps allow if more
FINER = 8  # counts are made in eighths where noise is Laplace: less is lost to rounding
_PARTS = 10**12  # of the worst case; a request is settled at a whole number of them
THEOREM = (
    "noise reduction per group; a user is in at most m groups, so the charge is the sum of the m "
    "largest group costs (docs/counting.md, What it costs)"
)


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

    @property
    def law(self) -> str:
        """The noise: Laplace without δ, Gaussian with one."""
        return "laplace" if self.delta is None else "gaussian"

    @property
    def guarantee(self) -> Guarantee:
        """What everything released keeps."""
        epsilon = float(self.epsilon)
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
    def chooses_cap(self) -> bool:
        """Whether m is chosen privately, and paid for."""
        return self.cap == AUTO and self.most_known != 1

    def cost_of_cap(self) -> Fraction:
        """The price of choosing m."""
        return self.total * CAP_SHARE if self.chooses_cap else Fraction(0)

    def cost_of_rows(self) -> Fraction:
        """The price of choosing the rows per user and group."""
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
        if self.one_row:
            return Fraction(0)
        if self.measure.kind != "users":
            return self.total * REMOVED_SHARE
        capped = most is not None and (self.most_known is None or most < self.most_known)
        return self.total * DROPPED_SHARES[-1] if capped and not self.from_counts else Fraction(0)

    def limit(self, most: int | None) -> int:
        """How much one user counts in the share that caps remove, in units of the measure."""
        groups = most if most is not None else min(SPREAD, self.most_known or SPREAD)
        if self.measure.kind == "users":
            return groups
        rows = self.measure.rows or 1
        return max(groups * rows, SPREAD) * (self.measure.sensitivity // rows)

    def counting_total(self, most: int | None) -> Fraction:
        """What is left for the values themselves."""
        caps = self.cost_of_cap() + self.cost_of_rows()
        return self.total - caps - self.cost_of_keys() - self.cost_of_dropped(most)

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
            )
        options = self._level_options(most)
        return make_job(groups, self._wanted(), bias=bias, rule_of=rule, **options)

    def caps_that_fit(self) -> list[int]:
        """The values of m that may be chosen: those for which a job can be made."""
        rows = self.with_rows(1) if self.chooses_rows else self
        return list(
            takewhile(rows._fits, cap_candidates(min(self.most_known or MOST_CAP, MOST_CAP)))
        )

    def rows_that_fit(self, most: int | None) -> list[int]:
        """The caps of rows that may be chosen: those for which a job can be made."""
        units = max(
            abs(self.measure.low), abs(self.measure.high), self.measure.high - self.measure.low
        )
        largest = max(1, min(MOST_CAP, MOST_UNITS // max(1, units)))
        return list(
            takewhile(lambda rows: self.with_rows(rows)._fits(most), cap_candidates(largest))
        )

    def with_rows(self, rows: int) -> CheckedCount:
        """Return the request with this cap of rows per user and group."""
        return replace(self, measure=replace(self.measure, rows=rows))

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
        }

    @property
    def collated(self) -> bool:
        """Whether text columns may have a collation."""
        return may_collate(self.data)

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
