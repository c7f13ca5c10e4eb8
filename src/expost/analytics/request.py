"""What a count, a sum or a mean asks for, checked and split into shares before anything is charged.

:class:`CountRequest` is the one definition of a question. The keywords of :func:`expost.count`, the
options of ``expost count``, the body of the server's API, its stored questions and the remote
client are all derived from it. :func:`check_request` finds everything that can be wrong with a
request: settings, columns and their types, the query in the engine's dialect, the noise levels. It
reads no row. Tests: ``tests/analytics/test_query.py``, ``tests/analytics/test_request.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from expost.analytics import contribution
from expost.analytics.contribution import MOST_UNITS, TOTAL, Measure
from expost.analytics.pricing import AUTO, CheckedCount, in_unit
from expost.analytics.private_keys import check_delta_and_cap
from expost.analytics.refinement_goals import GIVEN, RACE, Wanted
from expost.analytics.refinement_noise import check_confidence, check_rule, check_within
from expost.budget.charging import LedgerOrPlace
from expost.errors import InvalidInput
from expost.randomness.source import Randomness
from expost.rationals import Number, count_of, exact, exact_positive
from expost.tables import typed_columns as columns
from expost.tables.sources import as_table, may_collate, open_source, without_password
from expost.tables.typed_columns import SEPARATOR, KnownQuery

KEYS_CAP = 10  # groups per user for finding groups privately, unless the caller says otherwise
MANY_LISTED = 20  # from here on the cap of a count of persons is chosen privately by default
_DEFAULT_ROWS = 10  # of a user in a group, where rows are counted
_GRID_STEPS = 2**10  # grid units in the larger bound, unless the caller gives a grid
_LARGEST = Fraction(10) ** 280  # bounds and grids are between this and its inverse: sums are finite
_TOO_MANY = 2**53  # beyond, a float would no longer hold a count
_MOST_GROUPS = 10**6
_LARGEST_ERROR = 2**63  # in grid units; no value is as large


class AccountOptions(TypedDict, total=False):
    """The ledger that is charged, the version of the table, and where noise comes from."""

    ledger: LedgerOrPlace
    budget: str | None
    analyst: str
    memo: str
    randomness: Randomness | None
    simulation: bool
    table_version: str | None


class RequestSetting(NamedTuple):
    """The help of a setting, whether analysts may set it at a server, and its limits there.

    ``limits`` are keywords of a pydantic field. What analysts may not set is the owner's to state.
    """

    help: str
    analysts: bool = False
    limits: Mapping[str, Any] = {}


_POSITIVE = {"gt": 0, "lt": 1e12, "allow_inf_nan": False}
_SHARE = {"gt": 0, "lt": 1, "allow_inf_nan": False}
_COUNT = {"ge": 1, "le": 10**9}


class CountRequest(TypedDict, total=False):
    """What is asked. A key that is absent or None has its default; only ``epsilon`` has none."""

    kind: Annotated[Literal["count", "sum", "mean"], RequestSetting("What is asked.", True)]
    column: Annotated[str | None, RequestSetting("Column that is summed or averaged.", True)]
    bounds: Annotated[
        tuple[Number, Number] | None,
        RequestSetting(
            "Public bounds of the values, LOW HIGH or LOW:HIGH; values are clipped to them."
        ),
    ]
    grid: Annotated[Number | None, RequestSetting("Values are rounded to multiples of this.")]
    epsilon: Annotated[float, RequestSetting("Total privacy budget ε.", True, _POSITIVE)]
    user: Annotated[str | None, RequestSetting("Column of the person.")]
    by: Annotated[
        str | Sequence[str] | None,
        RequestSetting("Column of the group; repeat it for several.", True, {"max_length": 8}),
    ]
    within: Annotated[
        float | None, RequestSetting("Wanted relative error (default 0.1).", True, _POSITIVE)
    ]
    plus_minus: Annotated[
        float | None, RequestSetting("Wanted absolute error instead.", True, _POSITIVE)
    ]
    answered: Annotated[
        int | None,
        RequestSetting("Stop when this many groups are within the error, and pay only that."),
    ]
    top: Annotated[
        int | None,
        RequestSetting("Stop when this many largest groups are known with --confidence."),
    ]
    delta: Annotated[
        float | None,
        RequestSetting("Total δ. The noise is then Gaussian, charged in zCDP.", True, _SHARE),
    ]
    count_rows: Annotated[bool, RequestSetting("Count rows, not users.", True)]
    max_groups_per_user: Annotated[
        int | str | None,
        RequestSetting(
            "In how many groups a person counts: a number, auto (chosen privately) or none. "
            "Only the most expensive groups of this number are charged. Default: auto for a count "
            "of persons in 20 listed groups or more, one cap on all groups together for sums, "
            "else none.",
            True,
            _COUNT,
        ),
    ]
    max_rows_per_user: Annotated[
        int | str | None,
        RequestSetting(
            "Rows of a person that count in one group: a number, or auto (chosen privately). "
            "Default: 10 for rows, 1 for means; in a sum all rows of a person count, up to an "
            "amount that is chosen privately.",
            True,
            _COUNT,
        ),
    ]
    one_row_per_user: Annotated[
        bool,
        RequestSetting(
            "Declare that the table has one row per person: each counts in one group, and "
            "nothing is paid to learn what the cap drops."
        ),
    ]
    where: Annotated[
        Sequence[str],
        RequestSetting(
            "Condition on rows: status=active, age>=18. Repeat.", True, {"max_length": 20}
        ),
    ]
    keys: Annotated[
        Sequence[Any] | None,
        RequestSetting(
            "File with the groups, one per line (CSV for several columns); publicly known.",
            True,
            {"max_length": 100_000},
        ),
    ]
    private_keys: Annotated[
        bool, RequestSetting("Find the groups privately, for a tenth of ε and half of δ.", True)
    ]
    group_order: Annotated[
        Literal["given", "race"] | None,
        RequestSetting("given: as in the keys file; race: the cheapest to finish next."),
    ]
    prior: Annotated[
        Mapping[str, float] | None,
        RequestSetting("CSV with group,size: public expectations; largest first."),
    ]
    max_group_epsilon: Annotated[float | None, RequestSetting("The most that one group may cost.")]
    confidence: Annotated[
        float,
        RequestSetting("Coverage of the intervals (default 0.9).", True, {"ge": 0.5, "lt": 1}),
    ]
    rule: Annotated[
        Literal["confidence", "paper"],
        RequestSetting("confidence: half-width within the error; paper: its σ-rule."),
    ]
    ratio: Annotated[float | None, RequestSetting("Constant ratio of the noise levels.")]
    table: Annotated[str | None, RequestSetting("Table of the database.")]
    delimiter: Annotated[
        str | None, RequestSetting("Delimiter of a text file; else that of its header.")
    ]


_DEFAULTS = {"kind": "count", "confidence": 0.9, "rule": "confidence", "where": ()}


def request_settings(request_type: type) -> dict[str, tuple[Any, RequestSetting]]:
    """Return the type and the :class:`Setting` of each key of a request."""
    hints = get_type_hints(request_type, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def count_schema() -> dict[str, Any]:
    """Return the JSON Schema of a request."""
    properties = {}
    for name, (hint, setting) in request_settings(CountRequest).items():
        limits = {_LIMITS[word]: end for word, end in setting.limits.items() if word in _LIMITS}
        properties[name] = {"description": setting.help} | _schema_of(hint) | limits
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Count, sum or mean of expost",
        "type": "object",
        "properties": properties,
        "required": ["epsilon"],
        "additionalProperties": False,
    }


_LIMITS = {
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
    "ge": "minimum",
    "le": "maximum",
    "max_length": "maxItems",
}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a type; what is absent is left out, so None is no type of its own."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin is Literal:
        return {"enum": parts}
    if Fraction in parts:  # an exact number of Python; JSON has one kind
        return {"type": "number"}
    if origin in (Union, UnionType):
        options = [_schema_of(part) for part in parts]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(parts[0]), "minItems": 2, "maxItems": 2}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(parts[1])}
    if origin is Sequence:
        return {"type": "array", "items": _schema_of(parts[0])}
    return {"type": _TYPES[hint]} if hint in _TYPES else {}


def completed(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with all its keys, absent ones at their defaults; refuse unknown keys."""
    names = CountRequest.__annotations__
    unknown = sorted(set(request) - set(names))
    if unknown:
        raise TypeError(f"unexpected option {unknown[0]!r}")
    given = {name: value for name, value in request.items() if value is not None}
    if "epsilon" not in given:
        raise InvalidInput("epsilon", None, "it is required: pass a positive number")
    return dict.fromkeys(names) | _DEFAULTS | given


def measure_of(asked: Mapping[str, Any]) -> Measure:
    """Return what a completed request measures."""
    kind, rows = asked["kind"], asked["max_rows_per_user"]
    if kind in ("sum", "mean"):
        if asked["count_rows"]:
            raise InvalidInput("count_rows", f"with a {kind}", "ask for one of them")
        if kind == "mean" and rows is None:
            rows = 1  # the noise is that of one row; the difference that this makes is estimated
        return _value_measure(kind, asked["column"], asked["bounds"], asked["grid"], rows)
    if kind != "count":
        raise InvalidInput("kind", kind, "give 'count', 'sum' or 'mean'")
    for name in ("column", "bounds", "grid"):
        if asked[name] is not None:
            raise InvalidInput(name, asked[name], "it belongs to sums and means")
    if asked["count_rows"]:
        usual = 1 if asked["one_row_per_user"] else _DEFAULT_ROWS
        return Measure("rows", rows=_rows_cap(rows or usual))
    if rows is not None:
        raise InvalidInput("max_rows_per_user", rows, "it belongs to count_rows, sums and means")
    return Measure()


def _value_measure(
    kind: str,
    column: str | None,
    bounds: tuple[Number, Number] | None,
    grid: Number | None,
    rows: int | str | None,
) -> Measure:
    """The measure of a sum or a mean: bounds in units of the grid, rounded outwards."""
    if column is None:
        raise InvalidInput("column", None, f"a {kind} needs the column of the values")
    if bounds is None or isinstance(bounds, (str, bytes)) or len(tuple(bounds)) != 2:
        raise InvalidInput(
            "bounds", bounds, "give public bounds, LOW:HIGH (--bounds 0:500, bounds=(0, 500))"
        )
    low, high = (exact(end, "bounds") for end in bounds)
    if not low < high:
        raise InvalidInput("bounds", bounds, "the lower bound must be below the upper one")
    if max(abs(low), abs(high)) > _LARGEST or high - low < 1 / _LARGEST:
        raise InvalidInput("bounds", bounds, "give bounds of at most 1e280, at least 1e-280 apart")
    most = _rows_cap(rows)
    step = _default_grid(low, high) if grid is None else exact_positive(grid, "grid")
    if not 1 / _LARGEST <= step <= _LARGEST:
        raise InvalidInput("grid", grid, "give a grid between 1e-280 and 1e280")
    first, last = math.floor(low / step), math.ceil(high / step)
    if max(abs(first), abs(last), last - first) * (most or 1) > MOST_UNITS:
        raise InvalidInput("grid", float(step), "too fine for these bounds: give a larger one")
    return Measure(kind, column, most, step, first, last)


def _rows_cap(rows: int | str | None) -> int | None:
    """A cap of rows per user and group; None if it is to be chosen privately."""
    return None if rows in (None, AUTO) else count_of(rows, "max_rows_per_user", at_least=1)


def _default_grid(low: Fraction, high: Fraction) -> Fraction:
    """1 for whole bounds up to 1024, else a power of two near a 1024th of the larger bound."""
    largest = max(abs(low), abs(high))
    if low.denominator == high.denominator == 1 and largest <= _GRID_STEPS:
        return Fraction(1)
    return Fraction(2) ** math.floor(math.log2(largest / _GRID_STEPS))


def check_request(
    data: Any, request: Mapping[str, Any], *, open_table: bool = True, ruled: bool = True
) -> CheckedCount:
    """Check all settings, open the table and compile the query; reads no rows.

    With ``open_table=False`` nothing is opened (plans and prices). Quantiles, which are not
    ``ruled``, have no stop rule.
    """
    asked = completed(request)
    delta, keys, cap = asked["delta"], asked["keys"], asked["max_groups_per_user"]
    by = (asked["by"],) if isinstance(asked["by"], str) else tuple(asked["by"] or ())
    if len(set(by)) != len(by):
        raise InvalidInput("by", by, "name each column once")
    epsilon = exact_positive(asked["epsilon"], "epsilon")
    private_keys = bool(asked["private_keys"])
    listed = _checked_keys(data, by, keys, private_keys, delta)
    if (prior := asked["prior"]) is not None:
        sizes = {str(group): float(exact(size, "prior")) for group, size in prior.items()}
        listed = listed and tuple(sorted(listed, key=lambda group: -sizes.get(group, 0.0)))
    measure = measure_of(asked)
    most = _checked_cap(data, cap, private_keys)
    if asked["one_row_per_user"]:
        most = _one_row(measure, cap)
        measure = replace(measure, rows=1)
    limit, where = asked["max_group_epsilon"], asked["where"]
    checked = CheckedCount(
        measure=measure,
        wanted=_wanted(measure, asked),
        by=by,
        user=asked["user"],
        where=(where,) if isinstance(where, str) else tuple(where),
        keys=listed,
        cap=most,
        epsilon=epsilon,
        delta=None if delta is None else float(delta),
        group_order=asked["group_order"] or (RACE if prior is None else GIVEN),
        max_group_epsilon=None if limit is None else exact_positive(limit, "max_group_epsilon"),
        ratio=asked["ratio"],
        total=_total(epsilon, delta, private_keys),
        data=_checked_counts(data) if isinstance(data, Mapping) else data,
        source=_source_name(data, asked["table"]),
        one_row=bool(asked["one_row_per_user"]),
        chooses_rows=measure.rows is None,
        stated=_caps_stated(measure, asked),
        may_raise_rows=measure.kind == "mean"
        and asked["max_rows_per_user"] is None
        and not asked["one_row_per_user"],
    )
    _check_top(checked)
    _try_jobs(checked, whole=open_table and ruled)
    if isinstance(data, Mapping):
        if measure.kind != "users" or by or checked.where:
            raise InvalidInput("data", "counts", "rows, sums, groups and conditions need a table")
        return checked
    return _opened(checked, asked) if open_table else checked


def with_usual_cap(request: CheckedCount, asked: Mapping[str, Any]) -> CheckedCount:
    """Return a count of persons in many listed groups with a cap, if its caller says nothing of it.

    A person is mostly in few of many groups, and without a cap all of them are charged. Sums whose
    amount is chosen privately have one cap on all groups together instead, which costs no more.
    """
    counts = request.measure.kind == "users" and not request.from_counts
    relative = request.wanted.within is not None and request.wanted.top is None
    many = (request.most_known or 0) >= MANY_LISTED and request.cap is None
    if asked.get("max_groups_per_user") is None:
        summed = replace(request, cap=AUTO)
        if summed.caps_in_all or (counts and relative and many):
            return replace(summed, stated=False)
    return request


def _caps_stated(measure: Measure, asked: Mapping[str, Any]) -> bool:
    """Whether the caller gave every cap that applies; caps that we choose must be harmless."""
    rows = asked["max_rows_per_user"]
    groups = asked["max_groups_per_user"] if asked["by"] else None  # a total is one group
    by_default = groups is None and bool(asked["private_keys"])
    chosen = rows in (None, AUTO) and measure.kind != "users"
    return groups != AUTO and not by_default and not chosen


def _opened(request: CheckedCount, asked: Mapping[str, Any]) -> CheckedCount:
    """The request with its table, whose columns fit it, in an engine that can run its query."""
    if request.user is None:
        raise InvalidInput("by, user", (request.by, None), "name the column of the person: user")
    if request.by == () and request.keys != (TOTAL,):
        raise InvalidInput("by, user", (None, request.user), "name the column of the group: by")
    data = request.data
    used = [*request.by, request.user, request.measure.column or ""]
    used += [columns.split_condition(text)[0].strip() for text in request.where]
    used = list(dict.fromkeys(name for name in used if name))
    if isinstance(data, (str, Path)):
        table = open_source(
            data, asked["table"], delimiter=asked["delimiter"], columns=used, natively=True
        )
    else:
        table = as_table(data, used)
    opened = replace(request, table=table, keys=typed_keys(request, table, asked["keys"] or ()))
    _check_top(opened)
    trial = opened.with_rows(1) if opened.chooses_rows else opened

    def write() -> Any:
        pairs = contribution.measured(opened.rows(), trial.measure, opened.keys, "0")
        return contribution.totals(pairs, 2, "0", 2)

    KnownQuery(table, trial.shape, "0", write).check()
    return opened


def _wanted(measure: Measure, asked: Mapping[str, Any]) -> Wanted:
    """How accurate answers must be; an absolute error in grid units."""
    within, plus_minus, confidence = asked["within"], asked["plus_minus"], asked["confidence"]
    if within is not None and plus_minus is not None:
        raise InvalidInput("plus_minus", plus_minus, "give within or plus_minus, not both")
    check_confidence(confidence)
    answered, top = _goals(measure, asked)
    if top is not None:
        return Wanted(0.1, None, float(confidence), "confidence", measure.signed, top=top)
    if plus_minus is not None:
        units = exact_positive(plus_minus, "plus_minus") / measure.grid
        if units > _LARGEST_ERROR:
            raise InvalidInput("plus_minus", plus_minus, "no sum is that large: give less")
        return Wanted(None, units, confidence, asked["rule"], measure.signed)
    relative = 0.1 if within is None else within
    check_within(relative)
    if measure.kind == "mean" and asked["rule"] != "confidence":
        raise InvalidInput("rule", asked["rule"], "means know only 'confidence'")
    rule = asked["rule"]
    check_rule(rule)
    return Wanted(float(relative), None, float(confidence), rule, measure.signed, answered)


def _check_top(request: CheckedCount) -> None:
    """Refuse a top list that would hold all groups."""
    if request.wanted.top is not None and request.wanted.top >= len(request.keys or ()):
        raise InvalidInput("top", request.wanted.top, "name fewer than there are groups")


def _goals(measure: Measure, asked: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The goals of the whole job: how many groups must be answered, or how many are the top."""
    given = {
        name: None if asked[name] is None else count_of(asked[name], name, at_least=1)
        for name in ("answered", "top")
    }
    others = ("within", "plus_minus", "answered")
    clash = [name for name in others if asked[name] is not None]
    if given["top"] is not None and (clash or measure.kind == "mean" or asked["private_keys"]):
        what = f"with {clash[0]}" if clash else "with a mean or with private_keys"
        raise InvalidInput("top", what, "a top list has a confidence only, of counts and sums")
    if given["answered"] is not None and (asked["plus_minus"] is not None or asked["ratio"]):
        raise InvalidInput("answered", given["answered"], "it belongs to within, without a ratio")
    return given["answered"], given["top"]


def _total(epsilon: Fraction, delta: float | None, private_keys: bool) -> Fraction:
    """The total in the unit of the noise; half of δ is for finding groups privately."""
    if delta is None:
        return epsilon
    if not 0 < float(delta) < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")
    return in_unit(epsilon, delta / 2 if private_keys else delta)


def _try_jobs(request: CheckedCount, *, whole: bool) -> None:
    """Build the job for the smallest caps; larger ones are chosen only if their job fits.

    If not ``whole``, its levels only: a rule may take long.
    """
    tried = request.with_rows(1) if request.chooses_rows else request
    most = 1 if request.cap == AUTO else request.cap
    assert not isinstance(most, str)
    if whole:
        tried.job(tried.groups_or_cap(most), most)
    else:
        tried.check_levels(most)
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
            raise InvalidInput(
                "delta", None, "finding groups privately needs a δ > 0, for example 1e-6"
            )
        if isinstance(data, Mapping):
            raise InvalidInput(
                "private_keys", True, "counts do not say who is in which group; give the table"
            )
        check_delta_and_cap(float(delta) / 2 if 0 < float(delta) < 1 else float(delta), 1)
        if not by:
            raise InvalidInput("by", None, "name the column of the groups to be found")
        return None
    if keys is None:
        if not by and not isinstance(data, Mapping):
            return (TOTAL,)
        raise InvalidInput(
            "keys",
            None,
            "which groups exist is protected, too: list them from public knowledge (keys, --keys "
            "FILE), or find them privately (--private-keys with a --delta, or --learn-facts 0.2)",
        )
    if isinstance(keys, str) or not len(keys):
        raise InvalidInput("keys", keys, "give a non-empty list of group names")
    if not by and not isinstance(data, Mapping):
        raise InvalidInput("by, user", None, "name the column of the groups that are listed: by")
    listed = tuple(_key_text(key, len(by)) for key in keys)
    if len(set(listed)) != len(listed):
        raise InvalidInput("keys", "with repeats", "name each group once")
    return listed


def typed_keys(request: CheckedCount, table: Any, keys: Sequence[Any]) -> tuple[str, ...] | None:
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
    if isinstance(data, (str, Path)):
        text = str(data)
        shown = without_password(text) if "://" in text else Path(text).name
        return shown if table is None else f"{shown}, table {table}"
    return "counts" if isinstance(data, Mapping) else f"{type(data).__module__.split('.')[0]} table"
