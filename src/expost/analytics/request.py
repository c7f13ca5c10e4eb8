"""A checked request: what is asked, how the budget is split, and the opened table.

Everything that can be wrong with a request is found here, before anything is charged: settings,
columns and their types, the query in the engine's dialect, the noise levels. No row is read.
Tests: ``tests/analytics/test_query.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from expost.analytics import columns, contribution
from expost.analytics.columns import MOST_UNITS, SEPARATOR, TOTAL, Measure
from expost.analytics.contribution import MOST_CAP, cap_candidates
from expost.analytics.engine import check_compiles
from expost.analytics.intervals import check_confidence, check_within
from expost.analytics.means import mean_rule
from expost.analytics.private_keys import KeySelection, best_selection, check
from expost.analytics.refinement import GIVEN, RACE, Job, Wanted, make_job, make_levels
from expost.analytics.sources import as_table, may_collate, open_source
from expost.errors import InvalidInput
from expost.privacy.conversions import gaussian_for
from expost.privacy.guarantees import ApproxDP, Guarantee, PureDP
from expost.rationals import count_of, exact, exact_positive

AUTO = "auto"
KEYS_CAP = 10  # groups per user for finding groups privately, unless the caller says otherwise
KEYS_SHARE = Fraction(1, 10)  # of the total goes to finding groups privately
CAP_SHARE = Fraction(3, 100)  # of the total goes to choosing each cap privately
DROPPED_SHARE = Fraction(1, 200)  # of the total goes to the share of dropped pairs
REMOVED_SHARE = Fraction(1, 20)  # of the total goes to what caps remove from rows, sums and means
SPREAD = 10  # a user counts with so many rows in the share, or with what the caps allow if more
FINER = 8  # counts are made in eighths where noise is Laplace: less is lost to rounding
_TOO_MANY = 2**53  # beyond, a float would no longer hold a count
_MOST_GROUPS = 10**6
_LARGEST_ERROR = 2**63  # in grid units; no value is as large


@dataclass(frozen=True)
class Request:
    """The public settings of a request; :func:`make_request` checks them."""

    measure: Measure
    wanted: Wanted
    by: tuple[str, ...]
    user: str | None
    where: tuple[str, ...]
    keys: tuple[str, ...] | None
    cap: int | str | None
    epsilon: Fraction
    delta: float | None
    order: str
    max_group_epsilon: Fraction | None
    ratio: float | None
    total: Fraction
    data: Any = field(repr=False)
    table: Any = field(repr=False, default=None)
    source: str = ""
    one_row: bool = False
    chooses_rows: bool = False

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
        """The price of the share that caps remove; nothing if nothing should be removed."""
        if self.one_row:
            return Fraction(0)
        if self.measure.kind != "users":
            return self.total * REMOVED_SHARE
        capped = most is not None and (self.most_known is None or most < self.most_known)
        return self.total * DROPPED_SHARE if capped and not self.from_counts else Fraction(0)

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

    def with_rows(self, rows: int) -> Request:
        """Return the request with this cap of rows per user and group."""
        return replace(self, measure=replace(self.measure, rows=rows))

    def _fits(self, most: int | None) -> bool:
        """Whether the total pays for a first look, by public numbers alone."""
        try:
            make_levels(self._groups(most), self._wanted(), **self._level_options(most))
        except InvalidInput:
            return False
        return True

    def _groups(self, most: int | None) -> int:
        """The number of groups, or m where it is not known."""
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
            "order": self.order,
            "max_group": self.max_group_epsilon and _in_unit(self.max_group_epsilon, self.delta),
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
        collated = self.collated
        return columns.select(
            self.table, self.by, self.user, self.measure, self.where, collated=collated
        )


def make_request(
    data: Any,
    measure: Measure,
    *,
    by: str | Sequence[str] | None,
    user: str | None,
    where: Sequence[str] = (),
    within: float | None = None,
    plus_minus: float | None = None,
    confidence: float = 0.9,
    rule: str = "confidence",
    epsilon: float,
    delta: float | None = None,
    keys: Sequence[Any] | None = None,
    private_keys: bool = False,
    max_groups_per_user: int | str | None = None,
    one_row_per_user: bool = False,
    order: str | None = None,
    prior: Mapping[str, float] | None = None,
    max_group_epsilon: float | None = None,
    ratio: float | None = None,
    table: str | None = None,
    delimiter: str | None = None,
    opened: bool = True,
) -> Request:
    """Check all settings, open the table and compile the query; reads no rows.

    With ``opened=False`` nothing is opened (plans).
    """
    names = (by,) if isinstance(by, str) else tuple(by or ())
    if len(set(names)) != len(names):
        raise InvalidInput("by", names, "name each column once")
    exact_positive(epsilon, "epsilon")
    listed = _checked_keys(data, names, keys, private_keys, delta)
    if prior is not None:
        sizes = {str(group): float(exact(size, "prior")) for group, size in prior.items()}
        listed = listed and tuple(sorted(listed, key=lambda group: -sizes.get(group, 0.0)))
    cap = _checked_cap(data, max_groups_per_user, private_keys)
    if one_row_per_user:
        cap = _one_row(measure, max_groups_per_user)
        measure = replace(measure, rows=1)
    wanted = _wanted(measure, within, plus_minus, confidence, rule)
    total = _total(epsilon, delta, private_keys)
    request = Request(
        measure=measure,
        wanted=wanted,
        by=names,
        user=user,
        where=(where,) if isinstance(where, str) else tuple(where),
        keys=listed,
        cap=cap,
        epsilon=exact_positive(epsilon, "epsilon"),
        delta=None if delta is None else float(delta),
        order=order or (GIVEN if prior is not None else RACE),
        max_group_epsilon=None
        if max_group_epsilon is None
        else exact_positive(max_group_epsilon, "max_group_epsilon"),
        ratio=ratio,
        total=total,
        data=_checked_counts(data) if isinstance(data, Mapping) else data,
        source=_source_name(data, table),
        one_row=bool(one_row_per_user),
        chooses_rows=measure.rows is None,
    )
    _try_jobs(request)
    if isinstance(data, Mapping):
        if measure.kind != "users" or names or request.where:
            raise InvalidInput("data", "counts", "rows, sums, groups and conditions need a table")
        return request
    return _opened(request, table, delimiter, keys or ()) if opened else request


def _opened(
    request: Request, table: str | None, delimiter: str | None, keys: Sequence[Any]
) -> Request:
    if request.user is None:
        raise InvalidInput("by, user", (request.by, None), "name the column of the person: user")
    if request.by == () and request.keys != (TOTAL,):
        raise InvalidInput("by, user", (None, request.user), "name the column of the group: by")
    data = request.data
    used = [*request.by, request.user, request.measure.column or ""]
    used += [name.strip() for name in map(_condition_column, request.where)]
    used = list(dict.fromkeys(name for name in used if name))
    if isinstance(data, (str, Path)):
        opened = open_source(data, table, delimiter=delimiter, columns=used)
    else:
        opened = as_table(data, used)
    made = replace(request, table=opened, keys=_typed_keys(request, opened, keys))
    trial = made.with_rows(1) if made.chooses_rows else made
    pairs = contribution.measured(made.rows(), trial.measure, made.keys, "0")
    check_compiles(contribution.totals(pairs, 2, "0", 2, collated=made.collated))
    return made


def _condition_column(text: str) -> str:
    found = columns._CONDITION.fullmatch(str(text))
    return found[1] if found else ""


def _wanted(
    measure: Measure,
    within: float | None,
    plus_minus: float | None,
    confidence: float,
    rule: str,
) -> Wanted:
    if within is not None and plus_minus is not None:
        raise InvalidInput("plus_minus", plus_minus, "give within or plus_minus, not both")
    check_confidence(confidence)
    if plus_minus is not None:
        units = exact_positive(plus_minus, "plus_minus") / measure.grid
        if units > _LARGEST_ERROR:
            raise InvalidInput("plus_minus", plus_minus, "no sum is that large: give less")
        return Wanted(None, units, confidence, rule, measure.signed)
    relative = 0.1 if within is None else within
    check_within(relative)
    if measure.kind == "mean" and rule != "confidence":
        raise InvalidInput("rule", rule, "means know only 'confidence'")
    return Wanted(float(relative), None, float(confidence), rule, measure.signed)


def _total(epsilon: float, delta: float | None, private_keys: bool) -> Fraction:
    """The total in the unit of the noise: ε, or the ρ that (ε, δ) allows."""
    if delta is None:
        return exact_positive(epsilon, "epsilon")
    if not 0 < float(delta) < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")
    return _in_unit(exact_positive(epsilon, "epsilon"), delta / 2 if private_keys else delta)


def _in_unit(epsilon: Fraction, delta: float | None) -> Fraction:
    return epsilon if delta is None else Fraction(gaussian_for(float(epsilon), delta).rho)


def _try_jobs(request: Request) -> None:
    """Build the job for the smallest caps; larger ones are chosen only if their job fits."""
    tried = request.with_rows(1) if request.chooses_rows else request
    most = 1 if request.cap == AUTO else request.cap
    assert not isinstance(most, str)
    tried.job(tried._groups(most), most)
    if request.private:
        for cap in {most, max(request.caps_that_fit())} if request.cap == AUTO else {most}:
            assert cap is not None
            request.selection(cap)


def _checked_cap(data: Any, cap: int | str | None, private_keys: bool) -> int | str | None:
    if cap is None or cap == "none":
        return KEYS_CAP if private_keys else None
    if cap == AUTO:
        if isinstance(data, Mapping):
            raise InvalidInput(
                "max_groups_per_user", cap, "counts do not say who is in which group: give a number"
            )
        return AUTO
    if isinstance(cap, str):
        raise InvalidInput("max_groups_per_user", cap, "give a whole number, 'auto' or 'none'")
    if count_of(cap, "max_groups_per_user", at_least=1) > _MOST_GROUPS:
        raise InvalidInput("max_groups_per_user", cap, f"give at most {_MOST_GROUPS}")
    return int(cap)


def _one_row(measure: Measure, cap: int | str | None) -> int:
    """m = 1 where the caller declares one row per user; the caps still hold for other tables."""
    if cap not in (None, "none", 1):
        raise InvalidInput(
            "max_groups_per_user", cap, "with one row per user it is 1: leave it out"
        )
    if measure.kind != "users" and measure.rows not in (1, None):
        raise InvalidInput(
            "max_rows_per_user", measure.rows, "with one row per user it is 1: leave it out"
        )
    return 1


def _checked_keys(
    data: Any,
    by: tuple[str, ...],
    keys: Sequence[Any] | None,
    private_keys: bool,
    delta: float | None,
) -> tuple[str, ...] | None:
    """The groups as text, in order; several columns are joined by the separator."""
    if keys is not None and private_keys:
        raise InvalidInput("keys", "a list and private_keys", "give one of the two")
    if private_keys:
        if delta is None:
            raise InvalidInput("delta", None, "finding groups privately needs a δ > 0")
        if isinstance(data, Mapping):
            raise InvalidInput(
                "private_keys", True, "counts do not say who is in which group; give the table"
            )
        check(float(delta) / 2 if 0 < float(delta) < 1 else float(delta), 1)
        if not by:
            raise InvalidInput("by", None, "name the column of the groups to be found")
        return None
    if keys is None:
        if not by and not isinstance(data, Mapping):
            return (TOTAL,)
        raise InvalidInput(
            "keys",
            None,
            "which groups exist is private too: list them (keys, --keys FILE), or find them "
            "privately (private_keys, --private-keys, with a delta)",
        )
    if isinstance(keys, str) or not len(keys):
        raise InvalidInput("keys", keys, "give a non-empty list of group names")
    if not by and not isinstance(data, Mapping):
        raise InvalidInput("by, user", None, "name the column of the groups that are listed: by")
    listed = tuple(_key_text(key, len(by)) for key in keys)
    if len(set(listed)) != len(listed):
        raise InvalidInput("keys", "with repeats", "name each group once")
    return listed


def _typed_keys(request: Request, table: Any, keys: Sequence[Any]) -> tuple[str, ...] | None:
    """The groups as the engine writes them, in the order of the request."""
    engine = columns.engine_of(table)
    for name in request.by:
        columns.check_column(table, "by", name, engine)
    objects = not isinstance(request.data, (str, Path)) and not may_collate(request.data)
    written = {
        _key_text(key, len(request.by)): columns.key_text(table, request.by, key, objects=objects)
        for key in (keys if request.by else ())
    }
    if len(set(written.values())) != len(written):
        raise InvalidInput("keys", "with repeats", "name each group once")
    return request.keys and tuple(written.get(key, key) for key in request.keys)


def _key_text(key: Any, names: int) -> str:
    if names <= 1:
        return str(key)
    parts = list(key) if isinstance(key, (tuple, list)) else []
    if len(parts) != names or any(SEPARATOR in str(part) for part in parts):
        raise InvalidInput("keys", key, f"give {names} names per group, one for each column")
    return SEPARATOR.join(str(part) for part in parts)


def _checked_counts(data: Mapping[Any, Any]) -> dict[str, int]:
    for group, number in data.items():
        whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
        if not whole or not 0 <= number < _TOO_MANY:
            raise InvalidInput(
                f"counts[{group!r}]", type(number).__name__, "give whole numbers ≥ 0 and < 2^53"
            )
    return {str(group): int(number) for group, number in data.items()}


def _source_name(data: Any, table: str | None) -> str:
    """What a certificate says about the source; a URL without its password."""
    from expost.analytics.sources import _without_password

    if isinstance(data, (str, Path)):
        text = str(data)
        shown = _without_password(text) if "://" in text else Path(text).name
        return shown if table is None else f"{shown}, table {table}"
    return "counts" if isinstance(data, Mapping) else f"{type(data).__module__.split('.')[0]} table"
