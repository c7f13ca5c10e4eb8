"""``expost.query``: one SELECT, one reservation, one scan, one charge.

**Guarantee.** Each measurement (*part*) is a refinement of its own on rows in which a person is in
at most m groups, with at most r rows in each (:mod:`.refinement`). The caps, the groups and the
parts are released one after another, each with what is left of the total; how much a part may
spend depends on released numbers only. By plain composition (docs/theory.md, "Composition") the
whole release is ex-post ε̃-DP with ε̃ = **the sum of what the parts cost**, the private choice of
caps and groups included; with δ the same sum of ρ never exceeds the total, and finding groups
privately has half of δ. The worst case is the total, reserved before a row is read. HAVING, ORDER
BY, LIMIT and arithmetic on answers are post-processing.

**Shares.** A part's share of the total is in proportion to what it needs for the same relative
error in a group of the same size: 1 for persons, r for rows, r·max|v|/|v̄| for sums and r·R/|v̄|
for means, with the middle of the public bounds for v̄. Parts run from the smallest share on; what
one does not use is for those after it.
Tests: ``tests/analytics/test_sql_run.py``, ``tests/analytics/test_sql_law.py`` (the joint law by
enumeration, mutants), ``tests/hostile/test_sql.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Unpack

from expost.analytics import contribution
from expost.analytics import query as counting
from expost.analytics.contribution import GroupValues
from expost.analytics.pricing import AUTO, CheckedCount, outcome_of, price_request
from expost.analytics.query import Progress
from expost.analytics.sql_request import CheckedQuery, SqlOptions, check_query, totals_query
from expost.analytics.sql_result import PartResult, QueryResult, released_rows
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.privacy.charges import Charges, ShareCharges
from expost.randomness.source import Randomness, require_protection
from expost.rationals import round_down, round_up


def query(question: Any, /, **options: Unpack[SqlOptions]) -> QueryResult:
    """Answer one SELECT on private rows, each number to the error you need.

    Parameters
    ----------
    question : str
        A SELECT with aggregates, in DuckDB's dialect. ``docs/query.md`` lists what is answered;
        everything else is refused before it is priced, and the clause is named.
    source : str, Path, table, sequence or mapping
        Where the tables are: files (``orders.csv`` is the table ``orders``), URLs of databases,
        tables in memory, several of them, or a mapping from names to them.
    user : str
        Column of the person. Privacy is per person, with all their rows.
    public : sequence of str
        Joined tables that are public.
    within, plus_minus, confidence : float
        Wanted relative error (default 0.1) or absolute error, and the coverage of the intervals.
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
        3 % of the total each). ``one_row_per_user`` declares that both are 1.
    ledger, budget, analyst, memo
        The ledger to charge: one reservation for the whole query.

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
    how: dict[str, Any] = dict(options)
    source = require_protection(
        how.pop("randomness", None), simulation=bool(how.pop("simulation", False))
    )
    ledger, budget = how.pop("ledger", None), how.pop("budget", None)
    analyst, memo = how.pop("analyst", None) or "", how.pop("memo", None) or "expost query"
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput("ledger", None, "a budget and an analyst belong to a ledger: pass one")
    account = Account(ledger, budget, analyst, memo)
    account.check_simulation(source.simulated)
    checked = check_query(question, how)
    kind = None if account.ledger is None else account.ledger.kind_of(account.budget)
    charges = price_request(checked.base, kind).charges
    described, about = _described(checked), _source_facts(checked)
    run = _Run(checked, source)
    with account.reserve(charges, request=described, source=about) as reserved:
        certificate = None
        try:
            evidence = reserved.evidence()
            run.measure()
            result = _result(
                run, charges, None if evidence is None else {**evidence, "source": about}
            )
            if evidence is not None:
                certificate = result.certificate()
        finally:
            reserved.settle(outcome_of(run.spent, charges), certificate)
    return result


def _described(checked: CheckedQuery) -> dict[str, Any]:
    """What is asked, in public words, for the ledger."""
    return checked.compiled.question.as_dict() | {
        "within": checked.within,
        "plus_minus": checked.plus_minus,
        "confidence": checked.confidence,
    }


def _source_facts(checked: CheckedQuery) -> dict[str, Any]:
    """The public description of the source whose digest a ledger stores."""
    return {"name": checked.compiled.source, "tables": [checked.compiled.question.table]}


class _Run:
    """A query whose worst case is reserved; ``spent`` is what has been bought, at any time."""

    def __init__(self, checked: CheckedQuery, randomness: Randomness) -> None:
        self.checked, self._randomness = checked, randomness
        self.simulated = randomness.simulated
        self.side = Fraction(0)
        self.most: int | None = None
        self.rows: int | None = None
        self.groups: list[str] = []
        self.parts: dict[int, tuple[CheckedCount, Progress, PartResult]] = {}
        self._running: Progress | None = None
        self._done = Fraction(0)

    @property
    def spent(self) -> Fraction:
        """The charge so far."""
        running = Fraction(0) if self._running is None else self._running.spent
        return self.side + self._done + running

    def measure(self) -> None:
        """Choose the caps, read the values once, find the groups, refine part after part."""
        requests = self._capped()
        values = self._values(requests)
        left = self.checked.base.total - self.side
        order, weights = self.checked.order(), self.checked.weights
        for index, part in enumerate(order):
            rest = sum((weights[other] for other in order[index:]), Fraction(0))
            request = replace(
                requests[part], total=left * weights[part] / rest, keys=tuple(self.groups)
            )
            self.parts[part] = self._refined(part, request, values[part])
            left -= self.parts[part][1].spent

    def _capped(self) -> list[CheckedCount]:
        """The requests with their caps, given or chosen privately."""
        checked, base = self.checked, self.checked.base
        requests = list(checked.requests)
        self.most = base.cap if isinstance(base.cap, int) else None
        if base.chooses_cap or checked.chooses_rows:
            usable = contribution.usable(base.rows(), base.measure, base.keys)
            groups, rows = contribution.run_per_user(contribution.per_user(usable))
            share, rate = Fraction(base.wanted.within or Fraction(1, 10)) / 4, base.cap_rate()
        if base.chooses_cap:
            self.side += checked.shares()["max_groups_per_user"]
            fit = min((request.caps_that_fit() for request in requests), key=len)
            self.most = contribution.choose_cap(groups, fit, share, rate, self._randomness)
        elif base.cap == AUTO:
            self.most = 1
        if checked.chooses_rows:
            self.side += checked.shares()["max_rows_per_user"]
            open_ones = [request for request in requests if request.chooses_rows]
            fit = min((request.rows_that_fit(self.most) for request in open_ones), key=len)
            self.rows = contribution.choose_cap(
                rows, fit, share, rate, self._randomness, favour_small=True
            )
        given = [request.measure.rows for request in requests if request.measure.kind != "users"]
        self.rows = self.rows if checked.chooses_rows else given[0] if given else None
        return [self._with_caps(request) for request in requests]

    def _with_caps(self, request: CheckedCount) -> CheckedCount:
        if request.chooses_rows:
            assert self.rows is not None
            request = request.with_rows(self.rows)
        return replace(request, cap=self.most, chooses_rows=False)

    def _values(self, requests: Sequence[CheckedCount]) -> list[GroupValues]:
        """The private values of all parts, by one statement; finds private groups."""
        base = self.checked.base
        salt = contribution.new_salt(self._randomness)
        most = self.most
        if most is not None and base.most_known is not None and most >= base.most_known:
            most = None  # nobody is in more groups than there are
        queries = []
        for request, part in zip(requests, self.checked.compiled.parts, strict=True):
            limit = request.limit(self.most) if request.cost_of_dropped(self.most) else None
            queries.append(totals_query(request, part, most, salt, limit))
        if base.private:
            queries.append(totals_query(base, self.checked.persons, most, salt, None))
        values = contribution.run_several_totals(queries)
        if not base.private:
            self.groups = list(base.keys or ())
            return [value.on(self.groups) for value in values]
        assert self.most is not None
        self.side += self.checked.shares()["keys"]
        counted = values.pop()
        passed = base.selection(self.most).select(counted.users, self._randomness)
        self.groups = [group for group, keep in zip(counted.groups, passed, strict=True) if keep]
        return [value.on(self.groups) for value in values]

    def _refined(
        self, part: int, request: CheckedCount, values: GroupValues
    ) -> tuple[CheckedCount, Progress, PartResult]:
        """Refine one part with its total; what it spends is known at any time."""
        progress = self._running = Progress(most=self.most)
        # Priced by the share at which the values were made: groups found later change nothing.
        price = request.cost_of_dropped(self.most) if values.kept else Fraction(0)
        if price:
            limit = request.limit(self.most)
            price = counting.share_of_removed(request, progress, values, limit, self._randomness)
            progress.side += price
        groups = list(self.groups)
        progress.refinement = counting.refinement_of(
            request, progress, groups, values, self._randomness
        )
        for answer in progress.refinement:
            progress.answers.append(counting.in_data_units(request, progress, answer))
        named = self.checked.compiled.parts[part]
        result = PartResult(
            named.label,
            named.kind,
            tuple(progress.answers),
            tuple(
                counting.in_data_units(request, progress, answer)
                for answer in progress.refinement.unanswered
            ),
            round_up(progress.spent),
            round_up(price),
            progress.dropped,
        )
        self._done, self._running = self._done + progress.spent, None
        return request, progress, result


def _result(run: _Run, charges: Charges, ledger: Mapping[str, Any] | None) -> QueryResult:
    """What is released."""
    checked, compiled = run.checked, run.checked.compiled
    base, question = checked.base, compiled.question
    outcome = outcome_of(run.spent, charges)
    charged = charges.nothing if outcome is None else charges[outcome]
    spent = charged.size if isinstance(charges, ShareCharges) else run.spent
    parts = tuple(run.parts[part][2] for part in range(len(compiled.parts)))
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
        checked.confidence,
        run.most,
        run.rows,
        base.guarantee,
        tuple(_warnings(run)),
        compiled.source,
        {
            "keys": "found privately" if base.private else "listed",
            "groups": None if base.keys is None else len(base.keys),
            "public_tables": list(compiled.public),
            "total": round_up(base.total),
            "noise": base.law,
            "shares": {name: round_up(cost) for name, cost in checked.shares().items()},
        },
        run.simulated,
        charges,
        outcome,
        ledger,
    )


def _warnings(run: _Run) -> list[str]:
    """What the caps removed of each part, if that is more than the wanted error allows."""
    texts = []
    for request, progress, result in run.parts.values():
        texts += [
            f"{result.label}: {text}" for text in counting.warnings_of_caps(request, progress)
        ]
    return texts
