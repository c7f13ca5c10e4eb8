"""``expost.count``, ``expost.sum`` and ``expost.mean``: answers as accurate as you need them."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from expost.analytics.certificate import CountResult
from expost.analytics.columns import MOST_UNITS, Measure
from expost.analytics.execution import Released, run
from expost.analytics.request import AUTO, make_request
from expost.budget.charging import Account, LedgerOrPlace
from expost.errors import InvalidInput
from expost.randomness.source import Randomness, require_protection
from expost.rationals import Number, count_of, exact, exact_positive

_DEFAULT_ROWS = 10
_GRID_STEPS = 2**10  # grid units in the larger bound, unless the caller gives a grid
_LARGEST = Fraction(10) ** 280  # bounds and grids are between this and its inverse: sums are finite


def count(
    data: Any,
    *,
    by: str | Sequence[str] | None = None,
    user: str | None = None,
    within: float | None = None,
    plus_minus: float | None = None,
    epsilon: float,
    delta: float | None = None,
    keys: Sequence[Any] | None = None,
    private_keys: bool = False,
    max_groups_per_user: int | str | None = None,
    one_row_per_user: bool = False,
    rows: bool = False,
    max_rows_per_user: int | str | None = None,
    where: Sequence[str] = (),
    order: str | None = None,
    prior: Mapping[str, float] | None = None,
    max_group_epsilon: float | None = None,
    confidence: float = 0.9,
    rule: str = "confidence",
    ratio: float | None = None,
    table: str | None = None,
    delimiter: str | None = None,
    ledger: LedgerOrPlace = None,
    budget: str | None = None,
    analyst: str = "",
    memo: str = "expost count",
    released: Released | None = None,
    on_ignored: Callable[[bool], None] | None = None,
    randomness: Randomness | None = None,
    simulation: bool = False,
) -> CountResult:
    """Count distinct users (or rows) per group, each to the error you need.

    Parameters
    ----------
    data : str, Path, table or mapping
        A file, folder or glob, a connection URL (with ``table``), a pandas, polars, pyarrow, Ibis
        or Spark table, or a mapping from group to count.
    by : str or sequence of str, optional
        Columns of the group. Without them there is one total.
    user : str
        Column of the person. Privacy is per person, with all their rows.
    within : float, optional
        Wanted relative error (default 0.1).
    plus_minus : float, optional
        Wanted absolute error, instead of ``within``.
    epsilon, delta : float
        Total privacy budget. Without ``delta`` noise is Laplace, with it Gaussian (zCDP).
    keys : sequence, optional
        The groups, publicly known; absent ones count 0. One tuple per group if ``by`` names several
        columns.
    private_keys : bool
        Find the groups privately instead; needs ``delta``.
    max_groups_per_user : int, "auto" or None
        m: in how many groups a user counts at most; which ones is chosen by a salted hash. Only the
        m dearest groups are then charged. ``"auto"`` chooses m privately. None: all groups, and
        every group is charged (with ``private_keys``: 10). For a mapping, m is your promise.
    one_row_per_user : bool
        Declare that the table has one row per user. Then m is 1, a user has at most one row, and
        the share of pairs that the cap drops is not estimated, which saves 0.5 % of the budget. The
        caps hold all the same: if the declaration is wrong, values are too low, and the guarantee
        is unchanged.
    rows : bool
        Count rows instead of users, at most ``max_rows_per_user`` (default 10, ``"auto"``: chosen
        privately) per user and group.
    where : sequence of str
        Conditions on columns, such as ``"status=active"`` or ``"age>=18"``.
    order, prior, max_group_epsilon
        ``"race"`` (default) or ``"given"``; public expected sizes that sort the groups; the most
        that one group may cost.
    confidence, rule, ratio
        Coverage of the intervals, the stop rule, and the ratio of the noise levels.
    table, delimiter : str, optional
        Table of a database; delimiter of a text file.
    ledger, budget, analyst, memo
        The ledger to charge, or its file name or URL. The worst case is reserved first and
        settled at what was looked at.
    released : callable, optional
        Called with each answer and the charge so far, before the ledger is settled.
    on_ignored : callable, optional
        Called with whether rows without user or group were ignored. This is not private: one row
        decides it, and it is a query of its own. It is for the curator of the table only; keep it
        out of logs that others read. Not asked for by default, nor by the command line.

    Returns
    -------
    CountResult
        Answers with intervals, the other groups, what was spent and what it guarantees.

    Raises
    ------
    InvalidInput
        A setting, column or file is wrong. Nothing was charged.
    BudgetRefused
        The budget cannot pay the worst case. Nothing was charged.

    References
    ----------
    ``docs/counting.md`` states the guarantee and its proof.
    """
    if not rows and max_rows_per_user is not None:
        raise InvalidInput("max_rows_per_user", max_rows_per_user, "it belongs to rows=True")
    measure = Measure()
    if rows:
        usual = 1 if one_row_per_user else _DEFAULT_ROWS
        measure = Measure("rows", rows=rows_cap(max_rows_per_user or usual))
    options = {name: value for name, value in locals().items() if name in _REQUEST}
    return _ask(
        data,
        measure,
        options,
        ledger,
        budget,
        analyst,
        memo,
        released,
        on_ignored,
        randomness,
        simulation,
    )


def sum(
    data: Any,
    column: str,
    *,
    bounds: tuple[Number, Number],
    grid: Number | None = None,
    max_rows_per_user: int | str | None = None,
    memo: str = "expost sum",
    **options: Any,
) -> CountResult:
    """Sum a column per group, each to the error you need.

    Parameters
    ----------
    data : str, Path or table
        As in :func:`count`.
    column : str
        Column of the values. NULL, NaN, infinite and non-numeric values contribute nothing.
    bounds : (low, high)
        Public bounds; values are clipped to them.
    grid : float, optional
        Values are rounded to multiples of it, and noise is exact on them. Default: 1 for whole
        bounds of at most 1024, else the larger bound divided by about 1024 (a power of two).
    max_rows_per_user : int or "auto"
        How many rows of a user count in one group, a sample of their rows there. By default it is
        chosen privately (3 % of the budget). What the cap and the bounds remove is estimated (5 %
        of the budget; ``dropped_share``) and counts against ``within``.
    **options
        The other options of :func:`count`: ``by``, ``user``, ``within`` or ``plus_minus``,
        ``epsilon``, ``delta``, ``keys``, ``private_keys``, ``max_groups_per_user``, ``where``, ….

    Returns
    -------
    CountResult
        As in :func:`count`.
    """
    return _valued("sum", data, column, bounds, grid, max_rows_per_user, memo, options)


def mean(
    data: Any,
    column: str,
    *,
    bounds: tuple[Number, Number],
    grid: Number | None = None,
    max_rows_per_user: int | str | None = None,
    memo: str = "expost mean",
    **options: Any,
) -> CountResult:
    """Average a column per group, each to the error you need.

    Numerator and denominator share one noise path; the interval is for the ratio. Parameters and
    result are those of :func:`sum`.
    """
    return _valued("mean", data, column, bounds, grid, max_rows_per_user, memo, options)


_REQUEST = frozenset(
    (
        *("by", "user", "where", "within", "plus_minus", "confidence", "rule", "epsilon", "delta"),
        *("keys", "private_keys", "max_groups_per_user", "one_row_per_user", "order", "prior"),
        *("max_group_epsilon", "ratio", "table", "delimiter"),
    )
)
_RUN = ("ledger", "budget", "analyst", "memo", "released", "on_ignored", "randomness", "simulation")


def _valued(
    kind: str,
    data: Any,
    column: str,
    bounds: tuple[Number, Number],
    grid: Number | None,
    rows: int | str | None,
    memo: str,
    options: dict[str, Any],
) -> CountResult:
    unknown = builtins.sorted(set(options) - _REQUEST - set(_RUN))
    if unknown:
        raise TypeError(f"{kind}() got an unexpected option {unknown[0]!r}")
    if "epsilon" not in options:
        raise InvalidInput("epsilon", None, "it is required: pass a positive number")
    measure = value_measure(kind, column, bounds, grid, rows)
    asked = {"by": None, "user": None} | {k: v for k, v in options.items() if k in _REQUEST}
    rest: dict[str, Any] = dict.fromkeys(_RUN) | {"analyst": "", "simulation": False, "memo": memo}
    rest |= {name: value for name, value in options.items() if name in _RUN}
    return _ask(data, measure, asked, **rest)


def value_measure(
    kind: str,
    column: str,
    bounds: tuple[Number, Number],
    grid: Number | None,
    rows: int | str | None,
) -> Measure:
    """Return the measure of a sum or a mean: bounds in units of the grid, rounded outwards."""
    if isinstance(bounds, (str, bytes)) or len(tuple(bounds)) != 2:
        raise InvalidInput("bounds", bounds, "give a lower and an upper bound")
    low, high = (exact(each, "bounds") for each in bounds)
    if not low < high:
        raise InvalidInput("bounds", bounds, "the lower bound must be below the upper one")
    if max(abs(low), abs(high)) > _LARGEST or high - low < 1 / _LARGEST:
        raise InvalidInput("bounds", bounds, "give bounds of at most 1e280, at least 1e-280 apart")
    most = rows_cap(rows)
    step = _default_grid(low, high) if grid is None else exact_positive(grid, "grid")
    if not 1 / _LARGEST <= step <= _LARGEST:
        raise InvalidInput("grid", grid, "give a grid between 1e-280 and 1e280")
    first, last = math.floor(low / step), math.ceil(high / step)
    if max(abs(first), abs(last), last - first) * (most or 1) > MOST_UNITS:
        raise InvalidInput("grid", float(step), "too fine for these bounds: give a larger one")
    return Measure(kind, column, most, step, first, last)


def rows_cap(rows: int | str | None) -> int | None:
    """Return a cap of rows per user and group; None if it is to be chosen privately."""
    return None if rows in (None, AUTO) else count_of(rows, "max_rows_per_user", at_least=1)


def _default_grid(low: Fraction, high: Fraction) -> Fraction:
    """1 for whole bounds up to 1024, else a power of two near a 1024th of the larger bound."""
    largest = max(abs(low), abs(high))
    if low.denominator == high.denominator == 1 and largest <= _GRID_STEPS:
        return Fraction(1)
    return Fraction(2) ** math.floor(math.log2(largest / _GRID_STEPS))


def _ask(
    data: Any,
    measure: Measure,
    options: dict[str, Any],
    ledger: LedgerOrPlace,
    budget: str | None,
    analyst: str,
    memo: str,
    released: Released | None,
    on_ignored: Callable[[bool], None] | None,
    randomness: Randomness | None,
    simulation: bool,
) -> CountResult:
    """Check, open, run."""
    source = require_protection(randomness, simulation=simulation)
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput("ledger", None, "a budget and an analyst belong to a ledger: pass one")
    account = Account(ledger, budget, analyst, memo)
    account.check_simulation(source.simulated)
    request = make_request(data, measure, **options)
    return run(request, account, source, released, on_ignored)
