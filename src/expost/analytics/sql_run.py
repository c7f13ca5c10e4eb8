"""``expost.query``: one SELECT, one reservation, one scan, one charge.

**Guarantee.** Each measurement (*part*) is a refinement of its own on rows in which a person is in
at most m groups, with at most r rows in each (:mod:`.refinement`), or adds at most one cap to all
groups together (:mod:`.cap_ladder`), chosen by the part with its own share first. Where released
numbers say that m moves counts of persons too much, these are looked at in all listed groups, and
each is charged. The caps, the groups and the parts are released one after another, each with what
is left of the total; how much a part may spend depends on released numbers only. By plain
composition (docs/theory.md, "Composition") the whole release is ex-post ε̃-DP with ε̃ = **the sum
of what the parts cost**, the private choice of caps and groups included; with δ the same sum of ρ
never exceeds the total, and finding groups privately has half of δ. The worst case is the total,
reserved before a row is read. HAVING, ORDER BY, LIMIT and arithmetic on answers are
post-processing.

**Shares.** A part's share of the total is in proportion to what it needs for the same relative
error in a group of the same size: 1 for persons, r for rows, r·max|v|/|v̄| for sums and r·R/|v̄|
for means, with the middle of the public bounds for v̄ (in ρ their squares), and what an attempt at
all ranks costs for quantiles. What the caps removed is estimated for all parts first. Then parts
run from the smallest share on, those of which the caps removed too much before all others; what one
does not use is for those after it.
Tests: ``tests/analytics/test_sql_run.py``, ``tests/analytics/test_sql_law.py`` (the joint law by
enumeration, mutants), ``tests/hostile/test_sql.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Unpack

from expost.analytics import cap_choice, cap_ladder, contribution
from expost.analytics import query as counting
from expost.analytics.asked_before import KeptAnswer, ask_once, run_charged
from expost.analytics.contribution import GroupValues
from expost.analytics.count_result import warnings_of_caps
from expost.analytics.pricing import (
    AUTO,
    CheckedCount,
    CountPrice,
    KeptPath,
    price_request,
    settled_at,
    told_only,
)
from expost.analytics.quantile_request import run_cells
from expost.analytics.quantile_search import CellCounts
from expost.analytics.quantiles import QuantileProgress, quantile_run_of
from expost.analytics.query import Progress, open_account
from expost.analytics.refinement import LEAST_PART
from expost.analytics.request import AccountOptions
from expost.analytics.shared_pairs import sizes_per_user
from expost.analytics.sql_ibis import text_of_expression
from expost.analytics.sql_question import rank_of
from expost.analytics.sql_request import (
    CheckedQuery,
    SqlOptions,
    check_query,
    part_query,
    query_question,
)
from expost.analytics.sql_result import PartResult, QueryResult, query_of_release, released_rows
from expost.privacy.charges import Charges
from expost.randomness.source import Randomness
from expost.rationals import round_down, round_up

PartValues = GroupValues | Mapping[str, CellCounts]
"""The private values of a part: those of groups, or the cells of quantiles."""


def query(question: Any, /, **options: Unpack[SqlOptions]) -> QueryResult:
    """Answer one SELECT on private rows, each number to the error you need.

    Parameters
    ----------
    question : str or ibis.Expr
        A SELECT with aggregates, in DuckDB's dialect, or an Ibis expression that means one.
        ``docs/query.md`` lists what is answered; everything else is refused before it is priced,
        and the clause is named.
    source : str, Path, table, sequence or mapping
        Where the tables are: files (``orders.csv`` is the table ``orders``), URLs of databases,
        tables in memory, several of them, or a mapping from names to them. An Ibis expression on
        tables that hold data needs none.
    user : str
        Column of the person. Privacy is per person, with all their rows.
    public : sequence of str or ibis.Table
        Joined tables that are public.
    private : mapping from str to int
        Both tables of a JOIN of private tables on the person, and the most rows of a person that
        enter it: ``{"orders": 20, "visits": 5}``, or ``"visits.client"`` if the person is called
        ``client`` there.
    within, plus_minus, confidence : float
        Wanted relative error (default 0.1) or absolute error, and the coverage of the intervals.
    within_rank : float
        Wanted error of the ranks of MEDIAN, QUANTILE, MIN and MAX (default 0.02).
    epsilon, delta : float
        Total privacy budget of all aggregates together. With ``delta`` noise is Gaussian (zCDP).
    bounds : mapping from str to (low, high)
        Public bounds of columns that are summed or averaged; values are clipped to them.
    keys : sequence or mapping, optional
        The groups, publicly known: a list (of tuples, for several columns), or lists by column.
        Groups that the query implies need none: CASE with constants, parts of dates, conditions,
        ``WHERE x IN (…)``, columns of public tables.
    private_keys : bool
        Find the groups privately instead; needs ``delta``.
    max_groups_per_user, max_rows_per_user : int, "auto" or "none"
        The caps of groups per person, and of rows per person and group (default: chosen privately,
        3 % of the total each; COUNT of rows and SUM of listed groups then have one cap on all
        groups together instead). ``one_row_per_user`` declares that both are 1.
    ledger, budget, analyst, memo
        The ledger to charge: one reservation for the whole query.
    table_version : str, optional
        A name that you give to the present state of the private tables. With a ledger in a file,
        the same question on the same version returns the paid answer (``asked_before``), at no
        charge; one with a smaller error continues the same noise and pays the difference (of
        quantiles, and with ``delta``: all). What public tables hold is part of the question.

    Returns
    -------
    QueryResult
        Rows with intervals, what was spent, and the certificate.

    Raises
    ------
    InvalidInput
        A clause, a column or a setting is not answered. Nothing was charged.
    BudgetRefused
        The budget cannot pay the worst case. Nothing was charged.
    """
    asked: dict[str, Any] = dict(options)
    how = {name: asked.pop(name, None) for name in AccountOptions.__annotations__}
    account, source = open_account(how, "expost query")
    text = question if isinstance(question, str) else text_of_expression(question, asked)

    def ask(kept: KeptAnswer | None) -> QueryResult:
        checked = check_query(text, asked)
        if kept is not None:
            checked = kept.continued(checked)
        kind = None if account.ledger is None else account.ledger.kind_of(account.budget)
        keep_path = kept is not None and checked.keeps_path
        priced, run = price_query(checked, kind), QueryRun(checked, source, keep_path=keep_path)
        measure = partial(run_query, run, priced)
        result = run_charged(account, priced, measure, lambda: run.spent, kept)
        if kept is not None:
            kept.keep(result, run.kept_paths(), reached=result.reached())
        return result

    question_of = partial(query_question, text, asked)
    return ask_once(account, how["table_version"], question_of, query_of_release, ask)


def price_query(checked: CheckedQuery, budget_kind: str | None = None) -> CountPrice:
    """Return what a query may cost in a budget of this kind, and its public descriptions."""
    asked = checked.compiled.question.as_dict() | {
        "within": checked.within,
        "plus_minus": checked.plus_minus,
        "confidence": checked.confidence,
        "within_rank": checked.within_rank,
    }
    compiled = checked.compiled
    tables = sorted(compiled.joined_rows) or [compiled.question.table]
    about = {"name": compiled.source, "tables": tables}
    return CountPrice(price_request(checked.base, budget_kind).charges, asked, about)


def run_query(run: QueryRun, priced: CountPrice, evidence: Mapping[str, Any] | None) -> QueryResult:
    """Run a query whose worst case is reserved; ``run`` holds what was bought, at any time."""
    run.measure()
    ledger = None if evidence is None else {**evidence, "source": priced.source}
    return _result(run, priced.charges, ledger)


class QueryRun:
    """A query whose worst case is reserved; ``spent`` is what has been bought, at any time."""

    def __init__(
        self, checked: CheckedQuery, randomness: Randomness, *, keep_path: bool = False
    ) -> None:
        self.checked, self._randomness, self._keep_path = checked, randomness, keep_path
        self.simulated = randomness.simulated
        self.side = Fraction(0)
        self.most: int | None = None
        self.widest: int | None = None  # of a part that was looked at without the cap
        self.rows: int | None = None
        self.groups: list[str] = []
        self.parts: dict[int, tuple[CheckedCount, Progress, PartResult]] = {}
        self._progress: dict[int, Progress] = {}

    @property
    def spent(self) -> Fraction:
        """The charge so far."""
        return self.side + sum((part.spent for part in self._progress.values()), Fraction(0))

    def kept_paths(self) -> list[KeptPath | None]:
        """Return what a later question can continue: a path per part; of quantiles the caps."""
        if not self._keep_path:
            return []
        parts = [self.parts[number] for number in range(len(self.parts))]
        kept = [
            KeptPath(self.most, request.measure.caps, side=request.side_before)
            if isinstance(progress, QuantileProgress)
            else progress.kept_path(request.side_before)
            for request, progress, _ in parts
        ]
        first = kept[0] and replace(kept[0], side=kept[0].side + self.side)  # with all choices
        return [first, *kept[1:]]

    def measure(self) -> None:
        """Choose the caps, read the values once, find the groups, refine part after part."""
        requests, weights = self._capped(), self.checked.weights
        left, order = self.checked.base.total - self.side, self.checked.order()
        if self.checked.base.private:
            left -= self.checked.shares()["keys"]  # bought with the values
        totals = [left * weight / sum(weights) for weight in weights]
        for part in (part for part in order if requests[part].caps_in_all):
            requests[part] = self._with_total_cap(part, replace(requests[part], total=totals[part]))
        values = self._values(requests)
        for part in order:
            request = replace(requests[part], total=totals[part], keys=tuple(self.groups))
            requests[part] = self._prepared(part, request, values[part])
        left = self.checked.base.total - self.spent
        # What answers nothing spends next to nothing: first, so that the others have its share.
        order.sort(key=lambda part: not self._is_hopeless(part, requests[part]))
        free = {part: requests[part].total - self._progress[part].spent for part in order}
        for index, part in enumerate(order):
            rest = sum((free[other] for other in order[index:]), Fraction(0))
            progress = self._progress[part]
            bought = progress.dropped_price = progress.spent
            request = replace(requests[part], total=left * free[part] / rest + bought)
            run = self._searched if isinstance(values[part], Mapping) else self._refined
            self.parts[part] = request, progress, run(part, request, values[part])
            left -= progress.spent - bought

    def _with_total_cap(self, part: int, request: CheckedCount) -> CheckedCount:
        """The request of a part with its cap on all groups together, chosen for its own share."""
        progress = self._progress[part] = Progress()
        pairs = contribution.pair_sums(
            request.rows(), request.measure, request.keys, collated=request.collated
        )
        users = cap_ladder.user_amounts(pairs)
        capped = counting.choose_total_cap(request, progress, users, self._randomness)
        return replace(capped, cap=1, chooses_rows=False)

    def _is_hopeless(self, part: int, request: CheckedCount) -> bool:
        """Whether the caps removed so much of a part, as released, that no group is answered."""
        within, bias = request.wanted.within, (self._progress[part].dropped or {}).get("bias", 0.0)
        return within is not None and within - bias < LEAST_PART * within

    def _capped(self) -> list[CheckedCount]:
        """The requests with their caps, given or chosen privately."""
        checked, base = self.checked, self.checked.base
        requests = list(checked.requests)
        alone = [part for part, one in enumerate(requests) if not one.caps_in_all]
        deciding = [part for part in alone if part in checked.counted()] or alone
        self.most = base.cap if isinstance(base.cap, int) else None
        choices = checked.choices()
        rate = base.cap_rate()
        if base.chooses_cap or choices:
            groups, rows = sizes_per_user(base)
        if base.chooses_cap:
            self.side += checked.shares()["max_groups_per_user"]
            fit = min((requests[part].caps_that_fit() for part in deciding), key=len)
            strict = next((requests[part] for part in alone if requests[part].counts_removed), base)
            span = 1 if strict.counts_removed else None
            cap = cap_choice.choose_cap(
                groups, fit, strict.above, rate, self._randomness, span=span
            )
            self.most = strict.widened(cap, fit)
        elif base.cap == AUTO:
            self.most = 1
        self.side += checked.shares()["max_rows_per_user"]
        for parts in choices:
            first = requests[parts[0]]
            sizes = sizes_per_user(first)[1] if first.caps_amount else rows
            fitting = [part for part in parts if part in deciding] or parts
            fit = min((requests[part].rows_that_fit(self.most) for part in fitting), key=len)
            strict = next((requests[part] for part in parts if requests[part].counts_removed), base)
            cap = cap_choice.choose_cap(
                sizes,
                fit,
                strict.above,
                rate,
                self._randomness,
                span=strict.span,
            )
            for part in parts:
                requests[part] = requests[part].with_rows(cap)
        counted = [request.measure for request in requests if request.measure.kind != "users"]
        self.rows = max((measure.rows for measure in counted if measure.rows), default=None)
        caps = [self.most if one.kept is None else one.kept.most for one in requests]
        return [
            request if request.caps_in_all else replace(request, cap=cap, chooses_rows=False)
            for request, cap in zip(requests, caps, strict=True)
        ]

    def _values(self, requests: Sequence[CheckedCount]) -> list[PartValues]:
        """The private values of all parts, by one statement; finds private groups.

        The cells of quantiles are read by a statement of their own.
        """
        base = self.checked.base
        salt = contribution.new_salt(self._randomness)
        most = self.most
        if most is not None and base.most_known is not None and most >= base.most_known:
            most = None  # nobody is in more groups than there are
        parts, counted = self.checked.compiled.parts, self.checked.counted()
        queries: list[Any] = []
        known: dict[int, PartValues] = {}  # cells, and what an earlier question kept
        for number, (request, part) in enumerate(zip(requests, parts, strict=True)):
            if request.kept is not None and request.kept.values is not None:
                known[number] = request.kept.values
                continue
            limit = request.limit(self.most) if request.cost_of_dropped(self.most) else None
            written = part_query(request, part, most, salt, limit)
            if part.ranks:
                known[number] = run_cells(written)
            else:
                queries.append(written)
        if base.private:
            queries.append(part_query(base, self.checked.persons, most, salt, None))
        totals = contribution.run_several_totals(queries) if queries else []
        self.groups = list(base.keys or ())
        if base.private:
            assert self.most is not None
            self.side += self.checked.shares()["keys"]
            persons = totals.pop()
            passed = base.selection(self.most).select(persons.users, self._randomness)
            self.groups = [name for name, keep in zip(persons.groups, passed, strict=True) if keep]
        asked = (number for number in counted if number not in known)
        known |= zip(asked, (value.on(self.groups) for value in totals), strict=True)
        return [known[number] for number in range(len(parts))]

    def _prepared(self, part: int, request: CheckedCount, values: PartValues) -> CheckedCount:
        """Estimate what the caps removed from a part; look at it without them, if that is much."""
        earlier, cap, base = request.kept, request.cap, self.checked.base
        assert not isinstance(cap, str)
        if not isinstance(values, GroupValues):
            self._progress[part] = QuantileProgress(most=self.most)
            return request
        progress = self._progress.setdefault(part, Progress())
        progress.most, progress.measure, progress.values = cap, request.measure, values
        counting.known_removed(request, progress)
        without = earlier is not None and not request.measure.in_all
        if without and cap != self.most:  # it was looked at without the cap
            self.widest = cap
        if not values.kept:
            return request
        # The caps were for all groups, also for those that were not found.
        limit = request.limit(self.most) if earlier is None else earlier.limit
        assert limit is not None
        progress.limit = limit
        progress.side += counting.share_of_removed(
            request, progress, values, limit, self._randomness
        )
        if base.chooses_cap and not base.private and counting.gives_up(request, progress):
            request = counting.with_all_groups(request, progress)
            salt = contribution.new_salt(self._randomness)
            query = part_query(request, self.checked.compiled.parts[part], None, salt, None)
            progress.values = contribution.run_several_totals([query])[0].on(self.groups)
            self.widest = progress.most
        return request

    def _searched(self, part: int, request: CheckedCount, cells: Any) -> PartResult:
        """Search for the quantiles of one part with its total."""
        progress = self._progress[part]
        assert isinstance(progress, QuantileProgress)
        job = self.checked.quantile(part, request).job(request, max(1, len(self.groups)), self.most)
        progress.run = quantile_run_of(job, request, self.groups, cells, self._randomness)
        progress.run.run()
        answers, unanswered = progress.run.answers(request.measure.grid)
        return self._told(part, answers, unanswered, progress.spent)

    def _refined(self, part: int, request: CheckedCount, _: Any) -> PartResult:
        """Refine one part with its total; what it spends is known at any time."""
        progress = self._progress[part]
        assert progress.values is not None
        refinement = progress.refinement = counting.refinement_of(
            request,
            progress,
            list(self.groups),
            progress.values,
            self._randomness,
            keep_path=self._keep_path,
        )
        unsure = told_only(request, progress.dropped or {})
        answers = progress.unsure if unsure else progress.answers
        for answer in refinement:
            answers.append(counting.in_data_units(request, progress, answer))
        others = [counting.in_data_units(request, progress, one) for one in refinement.unanswered]
        others = progress.unsure + others
        spent = progress.spent + request.paid_before
        return self._told(part, progress.answers, others, spent)

    def _told(
        self, part: int, answers: Sequence[Any], unanswered: Sequence[Any], spent: Fraction
    ) -> PartResult:
        """What a part releases; its charge is that of all questions on its path."""
        named, progress = self.checked.compiled.parts[part], self._progress[part]
        told = tuple(answers), tuple(unanswered), round_up(spent), round_up(progress.side)
        most = None if "in_all_groups" in (progress.dropped or {}) else progress.most
        return PartResult(named.label, named.kind, *told, progress.dropped, most)


def _result(run: QueryRun, charges: Charges, ledger: Mapping[str, Any] | None) -> QueryResult:
    """What is released."""
    checked, compiled = run.checked, run.checked.compiled
    base, question = checked.base, compiled.question
    outcome, spent = settled_at(run.spent, charges)
    parts = tuple(run.parts[part][2] for part in range(len(compiled.parts)))
    paid = checked.paid_before
    return QueryResult(
        tuple(name for name, _ in question.columns),
        tuple(released_rows(checked, parts, run.groups)),
        parts,
        question,
        round_up(spent),
        round_down(max(Fraction(0), base.total - spent)),
        "epsilon" if base.delta is None else "rho",
        checked.within,
        checked.plus_minus,
        checked.within_rank,
        checked.confidence,
        run.widest or run.most,
        run.rows,
        checked.guarantee,
        tuple(_warnings(run)),
        compiled.source,
        {
            "keys": "found privately" if base.private else "listed",
            "groups": None if base.keys is None else len(base.keys),
            "public_tables": list(compiled.public),
            "private_tables": dict(compiled.joined_rows),
            "total": round_up(base.total),
            **({"paid_before": float(paid)} if paid else {}),
            "noise": base.law,
            "shares": {name: round_up(cost) for name, cost in checked.shares().items()},
        },
        run.simulated,
        charges,
        outcome,
        ledger,
    )


def _warnings(run: QueryRun) -> list[str]:
    """What the caps removed of each part, if that is much, and what MIN and MAX mean."""
    texts = []
    for aggregate in run.checked.compiled.question.aggregates:
        if aggregate.at in (0.0, 1.0):
            name, rank = ("MAX" if aggregate.at else "MIN"), float(rank_of(aggregate))
            texts.append(
                f"{name}({aggregate.value}) depends on one row, so it is answered by the quantile "
                f"at {rank:g}."
            )
    if caps := run.checked.compiled.joined_rows:
        said = " and ".join(f"{most:,} of {table}" for table, most in caps.items())
        texts.append(
            f"At most so many rows of a person enter the join: {said}. What this leaves out is not "
            "part of the intervals."
        )
    for request, progress, result in run.parts.values():
        removed = progress.dropped or {}
        if result.kind == "mean" and not (removed and counting.shifted(request, removed)):
            continue  # a mean of fewer rows is a mean as well
        texts += [
            f"{result.label}: {text}" for text in warnings_of_caps(request, removed, progress.most)
        ]
    return texts
