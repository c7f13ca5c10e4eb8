"""What ``expost.query`` is asked, checked and split into shares before anything is charged.

:class:`SqlRequest` is the one definition of the options. :func:`check_query` finds everything that
can be wrong: clauses, columns, types, bounds, groups, the query in the engine's dialect, the noise
levels of every part. :func:`query_question` says what makes two queries the same question: public
facts of the request, and what public tables hold, by a digest; two spellings of one SELECT are the
same where :func:`.normal_form` says so. :func:`plan_query` says what a query would cost. None of
them reads a private row.
Tests: ``tests/analytics/test_sql_run.py``, ``test_queries_asked_before.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import Annotated, Any, TypedDict, Unpack

from expost.analytics import cap_ladder, contribution
from expost.analytics.asked_before import plain_settings, source_identity, without_errors
from expost.analytics.count_plan import SIZES, SizePlan, size_plan, smallest_size
from expost.analytics.pricing import AUTO, CAP_SHARE, CheckedCount, KeptPath
from expost.analytics.quantile_request import (
    CheckedQuantile,
    cell_grid,
    check_sure,
    count_cells,
    kept_rows,
    rank_error,
)
from expost.analytics.quantile_run import QuantileJob, plan_attempt
from expost.analytics.request import (
    KEYS_CAP,
    AccountOptions,
    RequestSetting,
    check_request,
    typed_keys,
)
from expost.analytics.sql_ibis import text_of_expression
from expost.analytics.sql_parser import normal_form, parse_question
from expost.analytics.sql_question import (
    PERSON,
    VALUE,
    CompiledQuestion,
    SqlPart,
    checked_caps,
    compile_question,
)
from expost.analytics.sql_released import marks_of
from expost.analytics.sql_tables import Tables, mentioned_columns, public_digest
from expost.errors import InvalidInput
from expost.privacy.guarantees import Guarantee, PureDP
from expost.rationals import round_up
from expost.tables.typed_columns import check_once

_USUAL = {"confidence": 0.9, "max_groups_per_user": "auto"}  # settings of a query
_ASSUMED_ROWS = 4  # rows per person and group, for the shares, where they are chosen privately
_FINER = 4  # a variance needs its two means this much finer
_LARGE = 10_000  # persons of a group for which quantiles are weighed against counts
_MOST_PARTS = 20
_LEAST_NEW = Fraction(1, 5)  # of the total, or of a share of it, that a continued question may cost


class SqlRequest(TypedDict, total=False):
    """How a SELECT is to be answered. A key that is absent or None has its default."""

    source: Annotated[
        Any,
        RequestSetting(
            "Where the tables are: a URL or a file; repeat it for several. A file is the table of "
            "its name (orders.csv: orders), or NAME=FILE."
        ),
    ]
    delimiter: Annotated[str | None, RequestSetting("Delimiter of a private text file.")]
    user: Annotated[str | None, RequestSetting("Column of the person in the private table.")]
    public: Annotated[
        Sequence[str], RequestSetting("A joined table that is public; repeat it for several.")
    ]
    private: Annotated[
        Mapping[str, int] | None,
        RequestSetting(
            "For a JOIN of two private tables on the person: the most rows of a person that enter "
            "it, of each table: TABLE=ROWS, or TABLE.COLUMN=ROWS if the person is called COLUMN "
            "there."
        ),
    ]
    epsilon: Annotated[float, RequestSetting("Total privacy budget ε.")]
    delta: Annotated[
        float | None, RequestSetting("Total δ. The noise is then Gaussian, charged in zCDP.")
    ]
    within: Annotated[float | None, RequestSetting("Wanted relative error (default 0.1).")]
    plus_minus: Annotated[float | None, RequestSetting("Wanted absolute error instead.")]
    within_rank: Annotated[
        float | None, RequestSetting("Wanted error of the ranks of quantiles (default 0.02).")
    ]
    confidence: Annotated[float, RequestSetting("Coverage of the intervals (default 0.9).")]
    bounds: Annotated[
        Mapping[str, Any] | None,
        RequestSetting("Public bounds of a column, COLUMN=LOW:HIGH; values are clipped to them."),
    ]
    keys: Annotated[
        Any,
        RequestSetting(
            "File with the groups, one per line (CSV for several columns); NAME=FILE for one."
        ),
    ]
    private_keys: Annotated[
        bool, RequestSetting("Find the groups privately, for a tenth of ε and half of δ.")
    ]
    max_groups_per_user: Annotated[
        int | str | None,
        RequestSetting("In how many groups a person counts: a number, none, or auto (default)."),
    ]
    max_rows_per_user: Annotated[
        int | str | None,
        RequestSetting(
            "Rows of a person that count in one group: a number, or auto. Default: 1 for averages, "
            "auto for COUNT; in a SUM all rows count, up to an amount that is chosen privately."
        ),
    ]
    one_row_per_user: Annotated[
        bool, RequestSetting("Declare that the table has one row per person.")
    ]


class SqlOptions(SqlRequest, AccountOptions, total=False):
    """The keywords of :func:`query`."""


@dataclass(frozen=True)
class CheckedQuery:
    """A question with its tables, the requests of its parts at their shares, and the total.

    ``base`` is the request of the persons in the groups, with the whole total.
    """

    compiled: CompiledQuestion
    base: CheckedCount
    requests: tuple[CheckedCount, ...]
    weights: tuple[Fraction, ...]
    confidence: float
    within: float | None
    plus_minus: float | None
    within_rank: float | None

    @staticmethod
    def persons_of(compiled: CompiledQuestion) -> SqlPart:
        """Return the part that counts the persons of all groups."""
        return SqlPart("persons", "users", compiled.rows)

    @property
    def persons(self) -> SqlPart:
        """The part that counts the persons of all groups."""
        return self.persons_of(self.compiled)

    def choices(self) -> list[list[int]]:
        """Return parts by what is chosen privately: rows once, and an amount for every sum.

        Without those whose cap is on all groups together: they choose it with their own share.
        """
        parts = [(part, asked) for part, asked in enumerate(self.requests) if not asked.caps_in_all]
        rows = [part for part, asked in parts if asked.chooses_rows and not asked.caps_amount]
        return [[part] for part, asked in parts if asked.caps_amount] + ([rows] if rows else [])

    def shares(self) -> dict[str, Fraction]:
        """Return what the caps and the groups cost."""
        base = self.base
        return {
            "max_groups_per_user": base.cost_of_cap(),
            "max_rows_per_user": base.total * CAP_SHARE * len(self.choices()),
            "keys": base.cost_of_keys(),
        }

    def for_parts(self) -> Fraction:
        """Return what is left for the parts."""
        return self.base.total - sum(self.shares().values(), Fraction(0))

    @property
    def paid_before(self) -> Fraction:
        """What an earlier question paid for the paths that are continued."""
        return sum((request.paid_before for request in self.requests), Fraction(0))

    @property
    def guarantee(self) -> Guarantee:
        """What everything released keeps, with what earlier questions of the paths released."""
        if all(request.kept is None for request in self.requests):
            return self.base.guarantee
        side = sum((request.side_before for request in self.requests), Fraction(0))
        return PureDP(round_up(self.base.total + self.paid_before + side))

    @property
    def keeps_path(self) -> bool:
        """Whether a later question may continue the noise of the parts."""
        return self.base.keeps_path

    def on_path(self, *kept: KeptPath) -> CheckedQuery:
        """Return the query with the caps and the paths of an earlier question, one per part.

        The total is what it may cost beyond that. A part has what its share of the whole leaves of
        what was paid for it, in proportion; quantiles, whose draws have no path, their share.
        """
        total = self.base.total
        paid = sum((path.paid + path.side for path in kept), Fraction(0))
        new = max(total - paid, total * _LEAST_NEW)
        shares = [total * weight / sum(self.weights) for weight in self.weights]
        needs = [
            max(share - path.paid, share * _LEAST_NEW)
            for share, path in zip(shares, kept, strict=True)
        ]
        requests = [
            request.on_path(path, new * need / sum(needs))
            for request, path, need in zip(self.requests, kept, needs, strict=True)
        ]
        # More of a part that was looked at without a cap; none of a cap on all groups together.
        mosts = [path.most for path in kept if not path.caps["in_all"]] or [None]
        most = None if None in mosts else min(most for most in mosts if most is not None)
        base = replace(self.base, total=new, cap=most)
        return replace(self, base=base, requests=tuple(requests), weights=tuple(needs))

    def quantile(self, part: int, request: CheckedCount) -> CheckedQuantile:
        """Return the request of a part of quantiles, which are looked at from both sides."""
        ranks = self.compiled.parts[part].ranks
        return CheckedQuantile(request, ranks, self.within_rank, (), True)

    def counted(self) -> list[int]:
        """Return the parts that are not quantiles."""
        return [number for number, part in enumerate(self.compiled.parts) if not part.ranks]

    def order(self) -> list[int]:
        """Return the parts in their order: the smallest share first."""
        return sorted(range(len(self.weights)), key=lambda part: (self.weights[part], part))


def check_query(question: Any, options: Mapping[str, Any]) -> CheckedQuery:
    """Parse, open, translate and price a query; reads no private row."""
    unknown = sorted(set(options) - set(SqlRequest.__annotations__))
    if unknown:
        raise TypeError(f"unexpected option {unknown[0]!r}")
    asked = {name: value for name, value in options.items() if value is not None}
    if "epsilon" not in asked:
        raise InvalidInput("epsilon", None, "it is required: pass a positive number")
    text = question if isinstance(question, str) else text_of_expression(question, asked)
    parsed = parse_question(text)
    compiled = compile_question(parsed, asked)
    if len(compiled.parts) > _MOST_PARTS:
        raise InvalidInput(
            "query", len(compiled.parts), f"ask for at most {_MOST_PARTS} aggregates"
        )
    together = _together(compiled)
    confidence = float(asked.get("confidence", 0.9))
    if not 0 < confidence < 1:
        raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")
    inner = asked | {"confidence": 1 - (1 - confidence) / max(together, default=1)}
    base = _opened(compiled, CheckedQuery.persons_of(compiled), inner)
    if compiled.keys is not None and base.cap == AUTO and len(compiled.keys) == 1:
        base = replace(base, cap=1)
    requests = [
        _opened(compiled, part, inner, _FINER if part.finer else size)
        for part, size in zip(compiled.parts, together, strict=True)
    ]
    checked = CheckedQuery(
        compiled,
        base,
        tuple(requests),
        (),
        confidence,
        base.wanted.within,
        asked.get("plus_minus"),
        _rank_error(compiled, asked.get("within_rank"), base),
    )
    weights = [_weight(checked, part) for part in range(len(requests))]
    if not base.private and all(request.caps_in_all for request in requests):
        checked = replace(checked, base=replace(base, cap=None))  # nothing needs m
    checked = replace(checked, weights=tuple(weights))
    planned = [
        replace(request, total=checked.for_parts() * weight / sum(weights))
        for request, weight in zip(requests, weights, strict=True)
    ]
    checked = replace(checked, requests=tuple(planned))
    _check_fits(checked)
    return checked


def _together(compiled: CompiledQuestion) -> list[int]:
    """For each part, how many intervals make one column of the answer together with its own.

    Every quantile of a part has an interval of its own.
    """
    most = [1] * len(compiled.parts)
    texts = [text for _, text in compiled.question.columns]
    for text in texts:
        used = {
            (part, compiled.question.aggregates[mark].at)
            for mark in marks_of(text)
            for part in compiled.sources[mark]
        }
        for part, _ in used:
            most[part] = max(most[part], len(used))
    return most


def _rank_error(compiled: CompiledQuestion, within: Any, base: CheckedCount) -> float | None:
    """The wanted error of ranks; None if no quantile is asked for."""
    if not any(part.ranks for part in compiled.parts):
        if within is not None:
            raise InvalidInput("within_rank", within, "it belongs to MEDIAN, QUANTILE, MIN and MAX")
        return None
    check_sure(base.wanted.confidence)
    error = rank_error(within)
    if error is None:
        raise InvalidInput("within_rank", within, "a query needs a wanted error of ranks")
    return error


def _opened(
    compiled: CompiledQuestion, part: SqlPart, asked: Mapping[str, Any], finer: int = 1
) -> CheckedCount:
    """The request of one part on its rows, with the whole total."""
    valued, ranked = part.bounds is not None, part.kind == "quantile"
    one_row = bool(asked.get("one_row_per_user"))
    rows = None if one_row or valued else AUTO
    rows = asked.get("max_rows_per_user", rows)
    within, plus_minus = asked.get("within"), asked.get("plus_minus")
    if plus_minus is None:
        within = (0.1 if within is None else within) / finer
    if ranked:  # the wanted error is one of ranks
        within, plus_minus = None, None
    request: dict[str, Any] = {
        "kind": "mean" if ranked else part.kind if valued else "count",
        "column": VALUE if valued else None,
        "bounds": part.bounds,
        "grid": _cells(part, compiled.data) if ranked else None,
        "count_rows": part.kind in ("rows", "distinct"),
        "by": [f"k{index}" for index in range(len(compiled.kinds))],
        "user": PERSON,
        "keys": compiled.keys,
        "private_keys": compiled.keys is None and bool(compiled.kinds),
        "max_groups_per_user": None if one_row else asked.get("max_groups_per_user", AUTO),
        "max_rows_per_user": None if part.kind == "users" else rows,
        "one_row_per_user": one_row,
        "epsilon": asked["epsilon"],
        "delta": asked.get("delta"),
        "within": within,
        "plus_minus": plus_minus,
        "confidence": asked["confidence"],
    }
    checked = check_request(None, request, open_table=False)
    checked = replace(checked, table=part.rows, data=compiled.data, source=compiled.source)
    checked = replace(checked, distinct=part.kind == "distinct")
    keys = typed_keys(checked, part.rows, compiled.keys or ())
    checked = replace(checked, keys=keys)
    trial = checked.with_rows(1) if checked.chooses_rows else checked
    known = (compiled.question, asked["user"], *compiled.joined_rows.items(), part, trial.shape)
    check_once(part.rows, known, lambda: part_query(trial, part, 2, "0", 2))
    return checked


def _cells(part: SqlPart, data: Any) -> Fraction | None:
    """The grid of quantiles; whole numbers need no finer one.

    One gap makes floats of a column of whole numbers in pandas, so there the type says nothing.
    """
    grid = cell_grid(part.bounds)
    whole = part.whole and type(data).__module__.partition(".")[0] != "pandas"
    return max(grid, Fraction(1)) if whole and grid is not None else grid


def part_query(
    request: CheckedCount, part: SqlPart, most: int | None, salt: str, limit: int | None
) -> Any:
    """Return the query for the values of a part, and what its caps remove; of quantiles cells."""
    collated, measure = request.collated, request.measure
    if part.kind == "quantile":
        rows = request.rows()
        return count_cells(kept_rows(rows, measure, request.keys, most, salt, collated=collated))
    if part.kind == "distinct":
        assert request.user is not None
        rows = contribution.select(
            request.table, request.by, request.user, collated=collated, text=VALUE
        )
        return contribution.distinct_totals(
            rows, measure, request.keys, most, salt, limit=limit, collated=collated
        )
    if measure.in_all:
        pairs = contribution.pair_sums(request.rows(), measure, request.keys, collated=collated)
        users = cap_ladder.user_amounts(pairs)
        return cap_ladder.capped_totals(pairs, users, measure, salt, request.keys)
    pairs = contribution.measured(request.rows(), measure, request.keys, salt, collated=collated)
    return contribution.totals(pairs, most, salt, limit)


def _weight(checked: CheckedQuery, number: int) -> Fraction:
    """What a part needs to reach its error in a group of the same size, see :mod:`.sql_run`."""
    part, request = checked.compiled.parts[number], checked.requests[number]
    if part.kind == "quantile":
        return _quantile_weight(checked, number)
    weight = _noise_weight(part, request)
    return weight if request.delta is None else weight**2  # ρ falls with the square of the noise


def _quantile_weight(checked: CheckedQuery, number: int) -> Fraction:
    """What an attempt at all ranks costs, in units of what a count of persons needs."""
    asked = checked.requests[number]
    capped = replace(asked, keys=("all",), cap=1, chooses_rows=False)
    capped = capped.with_rows(asked.measure.rows or _ASSUMED_ROWS)
    job = checked.quantile(number, capped).job(capped, 1, 1)
    miss = 1 - job.confidence
    error = checked.plus_minus or (checked.within or 0.1) * _LARGE
    scale = error / (-math.log(miss) if job.law == "laplace" else _deviations(miss))
    unit = 1 / scale if job.law == "laplace" else 0.5 / scale**2
    return plan_attempt(job, job.ranks, _LARGE, miss).cost / Fraction(unit)


def _deviations(miss: float) -> float:
    """Standard deviations that a normal variable exceeds with this chance, on both sides."""
    return -NormalDist().inv_cdf(miss / 2)


def _noise_weight(part: SqlPart, request: CheckedCount) -> Fraction:
    """The noise that a person calls for, relative to the value of a group."""
    if part.kind == "users":
        return Fraction(1)
    rows = Fraction(1 if request.caps_amount else request.measure.rows or _ASSUMED_ROWS)
    if part.bounds is None:
        return rows
    low, high = part.bounds
    spread, middle = high - low, abs(low + high) / 2
    if part.kind == "sum":
        spread, middle = max(abs(low), abs(high)), max(middle, max(abs(low), abs(high)) / 4)
    ratio = spread / max(middle, spread / 4)
    return rows * Fraction(max(ratio, 0.1))


def _check_fits(checked: CheckedQuery) -> None:
    """Refuse a total that does not pay for a first look at every part, for the smallest caps."""
    for request in (checked.requests[part] for part in checked.counted()):
        most = 1 if request.cap == AUTO else request.cap
        assert not isinstance(most, str)
        tried = request.with_rows(1) if request.chooses_rows else request
        tried.check_levels(most)
    if checked.base.private:
        most = 1 if checked.base.cap == AUTO else checked.base.cap
        assert isinstance(most, int)
        checked.base.selection(most)


def query_question(text: str, asked: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what makes two queries the same, and what makes two of them have one path."""
    question = parse_question(text)
    given = {name: value for name, value in asked.items() if value is not None}
    if "plus_minus" not in given:
        given.setdefault("within", 0.1)
    tables, wanted = Tables(given.pop("source", None)), mentioned_columns(question)
    caps = checked_caps(question, given)
    sources = []
    for name in (question.table, *(join.name for join in question.joins)):
        data, table = tables.find(name)
        sources.append([source_identity(data), table])
    public = [
        public_digest(join, tables, question.table, wanted)
        for join in question.joins
        if join.name.lower() not in caps
    ]
    settings = plain_settings(_USUAL | given)
    document = {
        "kind": "query",
        "asked": normal_form(question),
        "settings": settings,
        "sources": sources,
        "public": public,
    }
    return document, document | {"settings": without_errors(settings)}


@dataclass(frozen=True)
class PartPlan:
    """One aggregate: its share of the total, and what groups of some sizes would need.

    ``smallest`` is the size from which on all are answered; None for quantiles.
    """

    label: str
    share: float
    sizes: tuple[SizePlan, ...]
    smallest: float | None = None


@dataclass(frozen=True)
class SqlPlan:
    """The plan of a query; ``unit`` is ``epsilon`` or ``rho``."""

    unit: str
    total: float
    shares: dict[str, float]
    parts: tuple[PartPlan, ...]
    groups: int | None
    max_groups_per_user: int
    assumed: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {
            "unit": self.unit,
            "total": self.total,
            "shares": dict(self.shares),
            "parts": [
                {
                    "of": part.label,
                    "share": part.share,
                    "sizes": [vars(size) for size in part.sizes],
                }
                for part in self.parts
            ],
            "groups": self.groups,
            "max_groups_per_user": self.max_groups_per_user,
            "max_groups_per_user_assumed": self.assumed,
        }


def _quantile_plan(size: int, job: QuantileJob) -> SizePlan:
    """What an attempt at all ranks of a group of this size costs."""
    cost = plan_attempt(job, job.ranks, size, 1 - job.confidence).cost
    if cost * job.most_groups <= job.total:
        return SizePlan(size, float(cost), None)
    return SizePlan(size, float(cost) if cost <= job.total else None, int(job.total / cost))


def plan_query(
    question: Any,
    /,
    *,
    sizes: Sequence[int] = SIZES,
    draft: bool = False,
    **request: Unpack[SqlRequest],
) -> SqlPlan:
    """Plan a query: the share of every aggregate, and what groups of some sizes would need.

    Caps that will be chosen privately are assumed: 10 groups per person and 10 rows per person and
    group. A ``draft`` is made at once; what it says cannot be answered cannot be.
    """
    checked = check_query(question, request)
    base = checked.base
    known = base.most_known or 10**6
    assumed = base.cap == AUTO
    most = min(known, KEYS_CAP if assumed else known if base.cap is None else int(base.cap))
    parts = []
    for number, part in enumerate(checked.compiled.parts):
        asked = checked.requests[number]
        share: Fraction = asked.total
        asked = asked.assumed().drafted() if draft else asked.assumed()
        if part.ranks:
            capped = replace(asked, cap=most, keys=asked.keys or ("all",), chooses_rows=False)
            attempt = checked.quantile(number, capped).job(capped, known, most)
            planned, smallest = tuple(_quantile_plan(size, attempt) for size in sizes), None
        else:
            charged = 1 if asked.measure.in_all else most
            job, whole = asked.job(known, charged), asked.counting_total(charged)
            planned = tuple(size_plan(size, asked, job, whole) for size in sizes)
            smallest = smallest_size(asked, job, whole)
        parts.append(PartPlan(part.label, float(share), planned, smallest))
    return SqlPlan(
        "epsilon" if base.delta is None else "rho",
        float(base.total),
        {name: float(cost) for name, cost in checked.shares().items()},
        tuple(parts),
        base.most_known,
        most,
        assumed,
    )
