"""What a quantile or a histogram asks for, checked and priced before anything is charged.

Caps, conditions, groups and the table are checked as for a mean, by the same code. What is private
are the rows per group and grid cell, counted in the engine: which rows a user keeps in a group, and
which groups, is chosen as for sums (``contribution``), by a hash of the user's own rows and a fresh
salt. So one user changes nobody else's rows, and the counts of at most m groups, by at most r rows
each.
Tests: ``tests/analytics/test_quantiles.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np

from expost.analytics.contribution import (
    GROUP,
    ROW_RANK,
    USER,
    VALUE,
    Measure,
    numbered_rows,
    salted_hash,
)
from expost.analytics.pricing import CheckedCount, CountPrice, price_request
from expost.analytics.quantile_run import QuantileJob, plan_attempt
from expost.analytics.quantile_search import MOST_CELLS, CellCounts
from expost.analytics.request import RequestSetting, check_request
from expost.errors import InvalidInput
from expost.rationals import Number, count_of, exact
from expost.tables.typed_columns import check_once, fetch, fetch_arrow, ibis_module

EXTREME = Fraction(1, 200)
"""MIN and MAX in a query are the quantiles at this rank and at 1 less it."""
_CELLS = 2**15  # cells of the default grid at least
MOST_RANKS, _MOST_BINS = 99, 1000
_MOST_CONFIDENCE = 0.999
_ORDER, _ROWS, _USERS = "expost_order", "expost_rows", "expost_users"
_OWN = ("at", "bins", "within_rank", "value_intervals")  # what a mean does not have
_USUAL_ERROR = 0.02


class QuantileRequest(TypedDict, total=False):
    """What is asked. A key that is absent or None has its default; only ``epsilon`` has none."""

    column: Annotated[str | None, RequestSetting("Column of the values.", True)]
    at: Annotated[
        float | Sequence[float] | None,
        RequestSetting("Ranks between 0 and 1: 0.25,0.5,0.75 (default 0.5).", True),
    ]
    bins: Annotated[
        int | Sequence[float] | None,
        RequestSetting("Histogram: a number of bins, or their edges 0,10,100.", True),
    ]
    within_rank: Annotated[
        float | None,
        RequestSetting(
            "Wanted error of ranks and shares (default 0.02); 0: the best that epsilon buys.",
            True,
        ),
    ]
    value_intervals: Annotated[
        bool,
        RequestSetting("Also look beside each quantile, for narrow intervals of values.", True),
    ]
    bounds: Annotated[
        tuple[Number, Number] | None,
        RequestSetting("Public bounds, LOW HIGH or LOW:HIGH; values are clipped to them."),
    ]
    grid: Annotated[
        Number | None,
        RequestSetting("Values are rounded to multiples of this; give 1 for whole numbers."),
    ]
    epsilon: Annotated[float, RequestSetting("Total privacy budget ε.", True)]
    delta: Annotated[
        float | None, RequestSetting("Total δ. The noise is then Gaussian, charged in zCDP.", True)
    ]
    user: Annotated[str | None, RequestSetting("Column of the person.")]
    by: Annotated[
        str | Sequence[str] | None,
        RequestSetting("Column of the group; repeat it for several.", True),
    ]
    where: Annotated[
        Sequence[str], RequestSetting("Condition on rows: status=active, age>=18. Repeat.", True)
    ]
    keys: Annotated[
        Sequence[Any] | None,
        RequestSetting("File with the groups, one per line (CSV for several columns).", True),
    ]
    private_keys: Annotated[
        bool, RequestSetting("Find the groups privately, for a tenth of ε and half of δ.", True)
    ]
    max_groups_per_user: Annotated[
        int | str | None,
        RequestSetting("In how many groups a person counts: a number, auto or none.", True),
    ]
    max_rows_per_user: Annotated[
        int | str | None,
        RequestSetting("Rows of a person that count in one group (default 1), or auto.", True),
    ]
    confidence: Annotated[float, RequestSetting("Coverage of each interval (default 0.9).", True)]
    table: Annotated[str | None, RequestSetting("Table of the database.")]
    delimiter: Annotated[str | None, RequestSetting("Delimiter of a text file.")]


@dataclass(frozen=True)
class CheckedQuantile:
    """A checked request: caps, groups and table as for a mean, and the wanted ranks and bins."""

    base: CheckedCount
    ranks: tuple[Fraction, ...]
    within: float | None
    edges: tuple[float, ...]
    value_intervals: bool

    def job(self, request: CheckedCount, groups: int, most: int | None) -> QuantileJob:
        """Return the public settings of the run, after the caps were chosen."""
        measure, paid = request.measure, request.cost_of_keys()
        paid += request.cost_of_cap() + request.cost_of_rows()
        assert measure.rows is not None
        return QuantileJob(
            request.law,
            request.total - paid,
            groups if most is None else most,
            measure.rows,
            self.ranks,
            self.within,
            request.wanted.confidence,
            measure.low,
            measure.high,
            self._units(),
            self.value_intervals,
        )

    def _units(self) -> tuple[int, ...]:
        """The edges of the bins in grid units; the outer ones are the bounds."""
        measure = self.base.measure
        inner = [math.ceil(exact(edge, "bins") / measure.grid) for edge in self.edges[1:-1]]
        return (measure.low, *inner, measure.high + 1) if self.edges else ()


def check_quantile(
    data: Any, request: Mapping[str, Any], *, open_table: bool = True
) -> CheckedQuantile:
    """Check all settings, open the table and compile the query; reads no rows."""
    if isinstance(data, Mapping):
        raise InvalidInput("data", "counts", "quantiles need a table of rows")
    given = {name: value for name, value in request.items() if value is not None}
    own = {name: given.pop(name, None) for name in _OWN}
    if "column" not in given:
        raise InvalidInput("column", None, "a quantile needs the column of the values")
    given.setdefault("max_rows_per_user", 1)
    if "grid" not in given and given.get("bounds") is not None:
        given["grid"] = cell_grid(given["bounds"])
    base = check_request(data, {**given, "kind": "mean"}, open_table=open_table, ruled=False)
    if base.measure.high - base.measure.low >= MOST_CELLS:
        raise InvalidInput("grid", float(base.measure.grid), "too fine: give at most 2^20 cells")
    check_sure(base.wanted.confidence)
    checked = CheckedQuantile(
        base,
        _checked_ranks(own["at"], own["bins"]),
        rank_error(own["within_rank"], own["bins"]),
        _checked_bins(own["bins"], base),
        bool(own["value_intervals"]),
    )
    trial = base.with_rows(1) if base.chooses_rows else base
    if open_table:

        def write() -> Any:
            kept = kept_rows(trial.rows(), trial.measure, base.keys, 2, "0", collated=base.collated)
            return count_cells(kept)

        check_once(base.table, ("quantile", trial.shape), write)
    return checked


def check_sure(confidence: float) -> None:
    """Refuse a confidence for which the law of the noise is not computed."""
    if confidence > _MOST_CONFIDENCE:
        raise InvalidInput("confidence", confidence, f"quantiles need one ≤ {_MOST_CONFIDENCE}")


def cell_grid(bounds: Any) -> Fraction | None:
    """1, 2 or 5 times a power of ten with at least 2^15 cells; None for bounds to be refused."""
    try:
        low, high = (exact(end, "bounds") for end in bounds)
        width = (high - low) / _CELLS
        power = Fraction(10) ** math.floor(math.log10(width))
    except (InvalidInput, TypeError, ValueError, OverflowError):
        return None
    return max((step * power for step in (1, 2, 5) if step * power <= width), default=power)


def _checked_ranks(at: Any, bins: Any) -> tuple[Fraction, ...]:
    """The wanted ranks as short exact numbers, ascending."""
    if at is None:
        return () if bins is not None else (Fraction(1, 2),)
    listed = [at] if isinstance(at, (int, float, Fraction, Decimal)) else list(at)
    ranks = [exact(rank, "at").limit_denominator(10**6) for rank in listed]
    if not ranks or len(ranks) > MOST_RANKS or len(set(ranks)) != len(ranks):
        raise InvalidInput("at", at, f"give 1 to {MOST_RANKS} different ranks")
    if not all(0 < rank < 1 for rank in ranks):
        raise InvalidInput(
            "at", at, "give ranks between 0 and 1; 0.001 and 0.999 come close to MIN and MAX"
        )
    return tuple(sorted(ranks))


def rank_error(within: Any, bins: Any = None) -> float | None:
    """The wanted error of ranks; None if there is no goal."""
    error = _USUAL_ERROR if within is None else float(exact(within, "within_rank"))
    if not 0 <= error < 0.5 or 0 < error < 1e-6:
        raise InvalidInput("within_rank", within, "give an error from 1e-6 to 0.5, or 0")
    if error == 0 and bins is not None:
        raise InvalidInput("within_rank", within, "bins need a wanted error of their shares")
    return error or None


def _checked_bins(bins: Any, base: CheckedCount) -> tuple[float, ...]:
    """The edges of the bins, in the unit of the data."""
    if bins is None:
        return ()
    measure = base.measure
    low, high = float(measure.low * measure.grid), float(measure.high * measure.grid)
    if isinstance(bins, (int, str)):
        number = count_of(bins, "bins", at_least=2)
        edges = [low + (high - low) * index / number for index in range(min(number, 10**6) + 1)]
    else:
        edges = [float(exact(edge, "bins")) for edge in bins]
    units = [math.ceil(exact(edge, "bins") / measure.grid) for edge in edges[1:-1]]
    inside = all(measure.low < unit <= measure.high for unit in units)
    if not 3 <= len(edges) <= _MOST_BINS + 1 or sorted(set(units)) != units or not inside:
        raise InvalidInput(
            "bins", bins, f"give 2 to {_MOST_BINS} bins inside the bounds, wider than the grid"
        )
    return tuple(edges)


def price_quantile(request: CheckedQuantile, budget_kind: str | None = None) -> CountPrice:
    """Return what a request may cost in a budget of this kind; reads no data."""
    priced = price_request(request.base, budget_kind)
    return CountPrice(priced.charges, describe_quantile(request), priced.source)


def describe_quantile(request: CheckedQuantile) -> dict[str, Any]:
    """Return what is asked in public words, for the ledger and the certificate."""
    base = request.base
    return {
        "kind": "quantile",
        "column": base.measure.column,
        "at": [float(rank) for rank in request.ranks],
        "bins": list(request.edges),
        "within_rank": request.within,
        "value_intervals": request.value_intervals,
        "bounds": [float(end * base.measure.grid) for end in (base.measure.low, base.measure.high)],
        "grid": float(base.measure.grid),
        "by": list(base.by),
        "user": base.user,
        "where": list(base.where),
        "confidence": base.wanted.confidence,
    }


def plan_quantile(
    *, sizes: Sequence[int] = (100, 1_000, 10_000, 100_000), **request: Unpack[QuantileRequest]
) -> dict[str, Any]:
    """Plan a request: what one attempt at a group of some size costs; reads no data."""
    asked: dict[str, Any] = {**request}
    asked |= {"by": "g", "user": "u", "keys": None if asked.get("private_keys") else ["1", "2"]}
    checked = check_quantile(None, asked, open_table=False)
    base = checked.base.with_rows(1) if checked.base.chooses_rows else checked.base
    job = checked.job(base, 2, 1)
    miss = 1 - job.confidence
    costs = []
    if job.within is not None and job.ranks:
        costs = [float(plan_attempt(job, job.ranks, size, miss).cost) for size in sizes]
    return {
        "unit": "epsilon" if base.delta is None else "rho",
        "total": float(base.total),
        "for_values": float(job.total),
        "sizes": [{"size": size, "cost": cost} for size, cost in zip(sizes, costs, strict=False)],
    }


def kept_rows(
    rows: Any,
    measure: Measure,
    keys: Sequence[str] | None,
    most: int | None,
    salt: str,
    *,
    collated: bool = True,
) -> Any:
    """Return the rows that count: at most ``measure.rows`` per user and group, ``most`` groups."""
    rows = numbered_rows(rows, measure, keys, salt, collated=collated)
    rows = rows.filter(rows[ROW_RANK] < measure.rows)
    if most is None:
        return rows
    order = [salted_hash(rows, [USER, GROUP], salt), rows[GROUP]]
    ibis = ibis_module()
    number = ibis.dense_rank().over(ibis.window(group_by=USER, order_by=order))
    return rows.mutate(**{_ORDER: number}).filter(ibis._[_ORDER] < most)


def count_cells(kept: Any) -> Any:
    """Return the query for the rows of each group and cell."""
    return kept.group_by([GROUP, VALUE]).aggregate(**{_ROWS: ibis_module()._.count()})


def run_cells(query: Any) -> dict[str, CellCounts]:
    """Run a query of :func:`count_cells`: group → its cells."""
    table = fetch_arrow(query).combine_chunks()
    names = table.column(GROUP).combine_chunks().dictionary_encode()
    if hasattr(names, "chunks"):
        names = names.combine_chunks()
    group = np.asarray(names.indices, dtype=np.int64)
    cells, counts = (
        np.asarray(table.column(name).to_numpy(), dtype=np.int64) for name in (VALUE, _ROWS)
    )
    order = np.lexsort((cells, group))
    ends = np.cumsum(np.bincount(group, minlength=len(names.dictionary)))
    parts = np.split(order, ends[:-1]) if len(ends) else []
    return {
        str(name): CellCounts(cells[part], counts[part])
        for name, part in zip(names.dictionary.to_pylist(), parts, strict=True)
    }


def run_users(kept: Any) -> dict[str, int]:
    """Return how many users each group has after the caps."""
    users = fetch(kept.group_by(GROUP).aggregate(**{_USERS: kept[USER].nunique()}))
    return {
        str(group): int(count) for group, count in zip(users[GROUP], users[_USERS], strict=True)
    }
