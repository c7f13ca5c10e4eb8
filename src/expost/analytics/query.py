"""``expost.count``, ``sum`` and ``mean``: check, price, reserve, read, refine, settle.

One reservation covers the whole request. It is settled at what was looked at, also after an
exception or Ctrl-C, and at nothing if nothing had been looked at. Answers are handed to the caller
before the reservation is settled. The certificate states the charge that the ledger settles.
Tests: ``tests/analytics/test_query.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from expost.analytics import cap_choice, cap_ladder, contribution
from expost.analytics.asked_before import (
    KeptAnswer,
    ask_once,
    count_question,
    run_charged,
)
from expost.analytics.cap_ladder import CapSearch, StepAmounts, caps_between
from expost.analytics.contribution import GROUP, USER, GroupValues, Measure
from expost.analytics.count_result import CountResult, result_of_release, warnings_of_caps
from expost.analytics.learned_facts import fill_stated_facts, learn_missing_bounds
from expost.analytics.means import MeanRefinement
from expost.analytics.pricing import (
    AUTO,
    CheckedCount,
    KeptPath,
    describe_request,
    dropped_pairs,
    known_share,
    price_request,
    prices_that_fit,
    removed_by_caps,
    removed_is_clear,
    removed_share,
    settled_at,
    source_description,
    told_only,
    too_much_removed,
)
from expost.analytics.private_keys import KeySelection
from expost.analytics.refinement import Answer, Refinement
from expost.analytics.refinement_noise import GroupPaths
from expost.analytics.request import AccountOptions, CountRequest, check_request, with_usual_cap
from expost.analytics.shared_pairs import Shared, run_capped, shared_pairs, sizes_per_user
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.randomness.source import Randomness, require_protection
from expost.rationals import round_down, round_up
from expost.tables.typed_columns import SEPARATOR, KnownQuery, fetch

Released = Callable[[Answer, float], None]


class RunOptions(AccountOptions, total=False):
    """How a request is run: the ledger that is charged, and who hears of answers."""

    released: Released | None
    on_ignored: Callable[[bool], None] | None
    learn_facts: float | None
    facts: str | Path | None


class CountOptions(CountRequest, RunOptions, total=False):
    """The keywords of :func:`count`."""


def count(data: Any, **options: Unpack[CountOptions]) -> CountResult:
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
    answered : int, optional
        Stop when this many groups are within the error, and pay only that.
    top : int, optional
        Instead of ``within``: stop when this many largest groups are known with ``confidence``.
        They are the answers; there are none if the budget does not suffice.
    epsilon, delta : float
        Total privacy budget. Without ``delta`` noise is Laplace, with it Gaussian (zCDP).
    keys : sequence, optional
        The groups, publicly known; absent ones count 0. One tuple per group if ``by`` names several
        columns.
    private_keys : bool
        Find the groups privately instead; needs ``delta``.
    max_groups_per_user : int, "auto" or None
        m: in how many groups a user counts at most; which ones is chosen by a salted hash. Only the
        m most expensive groups are then charged. ``"auto"`` chooses m privately; it is the default
        for persons in 20 ``keys`` or more with a relative error. Sums, and rows with
        ``max_rows_per_user="auto"``, have one cap on all groups together. Else it is ``"none"``:
        all groups, and every group is charged (with ``private_keys``: 10). For a mapping, you
        guarantee m.
    one_row_per_user : bool
        Declare that the table has one row per user. Then m is 1, a user has at most one row, and
        the share of pairs that the cap drops is not estimated, which saves 0.5 % to 20 % of the
        budget. The caps still apply: if the declaration is wrong, values are too low, and the
        guarantee is unchanged.
    count_rows : bool
        Count rows instead of users, at most ``max_rows_per_user`` (default 10, ``"auto"``: chosen
        privately) per user and group.
    where : sequence of str
        Conditions on columns, such as ``"status=active"`` or ``"age>=18"``.
    group_order, prior, max_group_epsilon
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
    learn_facts : float, optional
        Buy the bounds (of a sum or a mean) or the groups that are not given for this ε, which is
        part of ``epsilon``, and a tenth of ``delta`` (1e-7 without one). See ``docs/facts.md``.
    facts : str or Path, optional
        A file of facts (``expost describe --out``): bounds, groups and the cap of rows per person
        that are not given come from it. Its charge is its own.
    table_version : str, optional
        A name that you give to the present state of the table. With a ledger in a file, the same
        question on the same version returns the paid answer (``asked_before``), at no charge; one
        with a smaller error continues the same noise and pays the difference.
    on_ignored : callable, optional
        Called with whether rows without user or group were ignored. This fact is not protected: one
        row decides it, and it is a query of its own. It is for the curator of the table only; keep
        it out of logs that others read. Not asked for by default, nor by the command line.

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
    return _ask(data, {"kind": "count", "memo": "expost count", **options})


def sum(data: Any, column: str | None = None, /, **options: Unpack[CountOptions]) -> CountResult:
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
        How many rows of a user count in one group, a sample of their rows there (of a mean: 1 by
        default, and chosen privately if one row moves the mean too far). Without it and without
        ``max_groups_per_user``, all rows of a user count in a sum, and a user adds at most an
        amount that is chosen privately to all groups together. What caps and bounds remove is
        estimated (``dropped_share``), and its error counts against ``within``.
    **options
        The other options of :func:`count`: ``by``, ``user``, ``within`` or ``plus_minus``,
        ``epsilon``, ``delta``, ``keys``, ``private_keys``, ``max_groups_per_user``, ``where``, ….

    Returns
    -------
    CountResult
        As in :func:`count`.
    """
    return _ask(data, _valued("sum", column, options))


def mean(data: Any, column: str | None = None, /, **options: Unpack[CountOptions]) -> CountResult:
    """Average a column per group, each to the error you need.

    Numerator and denominator share one noise path; the interval is for the ratio. Parameters and
    result are those of :func:`sum`.
    """
    return _ask(data, _valued("mean", column, options))


def _valued(kind: str, column: str | None, options: Any) -> dict[str, Any]:
    """The options of a sum or a mean, whose column may be given by position or by name."""
    named = {} if column is None else {"column": column}
    return {"memo": f"expost {kind}", **options, **named, "kind": kind}


def _ask(data: Any, options: dict[str, Any]) -> CountResult:
    """Check, open, price, reserve, run and settle."""
    how = {name: options.pop(name, None) for name in RunOptions.__annotations__}
    account, source = open_account(how)
    if how["facts"] is not None:
        fill_stated_facts(options, how["facts"])
    version = how["table_version"]
    if version is not None and how["learn_facts"] is not None:
        raise InvalidInput("table_version", version, "it cannot go with learn_facts")

    def ask(kept: KeptAnswer | None) -> CountResult:
        return _reserve_and_run(data, dict(options), how, account, source, kept)

    question = partial(count_question, data, options)
    return ask_once(account, version, question, result_of_release, ask)


def open_account(how: Mapping[str, Any], memo: str = "") -> tuple[Account, Randomness]:
    """Return the account that is charged, and the randomness; refuse what does not fit."""
    source = require_protection(how["randomness"], simulation=bool(how["simulation"]))
    if how["ledger"] is None and (how["budget"] is not None or how["analyst"]):
        raise InvalidInput("ledger", None, "a budget and an analyst belong to a ledger: pass one")
    account = Account(how["ledger"], how["budget"], how["analyst"] or "", how["memo"] or memo)
    account.check_simulation(source.simulated)
    return account, source


def _reserve_and_run(
    data: Any,
    options: dict[str, Any],
    how: Mapping[str, Any],
    account: Account,
    source: Randomness,
    kept: KeptAnswer | None = None,
) -> CountResult:
    """Check, open, price, reserve, run and settle; keep what a later question can use."""
    facts = None
    if how["learn_facts"] is not None:
        facts = learn_missing_bounds(data, options, how["learn_facts"], account, source)
    request = with_usual_cap(check_request(data, options), options)
    if kept is not None:
        request = kept.continued(request)
    kind = None if account.ledger is None else account.ledger.kind_of(account.budget)
    priced, progress = price_request(request, kind), Progress()

    def run(evidence: dict[str, Any] | None) -> CountResult:
        if how["on_ignored"] is not None:
            how["on_ignored"](_ignores_rows(request))
        result = run_request(
            request,
            priced.charges,
            source,
            evidence,
            progress,
            released=how["released"],
            keep_path=kept is not None and request.keeps_path,
        )
        return result if facts is None else replace(result, facts=facts)

    result = run_charged(account, priced, run, lambda: progress.spent, kept)
    if kept is not None:
        kept.keep(result, [progress.kept_path(request.side_before)])
    return result


@dataclass
class Progress:
    """What has been bought so far; ``side`` is everything but the values."""

    side: Fraction = Fraction(0)
    most: int | None = None
    share: dict[str, float] | None = None  # that the caps removed, as it was released
    dropped: dict[str, Any] | None = None
    dropped_price: Fraction | None = None
    selection: KeySelection | None = None
    refinement: Refinement | None = None
    answers: list[Answer] = field(default_factory=list)
    unsure: list[Answer] = field(default_factory=list)  # within the error but for what caps removed
    values: GroupValues | None = field(repr=False, default=None)
    measure: Measure | None = None
    limit: int | None = None

    def kept_path(self, before: Fraction) -> KeptPath | None:
        """What a later question can continue; ``before``: what earlier ones paid on the side."""
        path = None if self.refinement is None else self.refinement.path
        if path is None or self.values is None or self.measure is None:
            return None
        caps = self.measure.caps
        side = before + self.side
        return KeptPath(self.most, caps, self.values, path, self.limit, self.share, side)

    @property
    def spent(self) -> Fraction:
        """The charge so far."""
        return self.side + (Fraction(0) if self.refinement is None else self.refinement.spent)


def run_request(
    request: CheckedCount,
    charges: Charges,
    randomness: Randomness,
    evidence: dict[str, Any] | None,
    progress: Progress | None = None,
    *,
    released: Released | None = None,
    keep_path: bool = False,
) -> CountResult:
    """Run a request whose worst case is reserved, and return what it releases.

    ``evidence`` is what the certificate says about the ledger. The caller settles: ``progress``
    holds what was bought, also if this raises.
    """
    progress = Progress() if progress is None else progress
    with shared_pairs(request) as pairs:
        request = choose_caps(request, progress, randomness, pairs)
        request, groups, values = _values(request, progress, randomness, pairs)
    progress.measure = request.measure
    refinement = refinement_of(request, progress, groups, values, randomness, keep_path=keep_path)
    progress.refinement = refinement
    unsure = told_only(request, progress.dropped or {})
    for answer in refinement:
        answer = in_data_units(request, progress, answer)
        if unsure:
            progress.unsure.append(answer)
            continue
        progress.answers.append(answer)
        if released is not None:
            released(progress.answers[-1], round_up(progress.spent))
    return _result(request, progress, charges, evidence, randomness.simulated)


def _values(
    request: CheckedCount, progress: Progress, randomness: Randomness, shared: Shared | None = None
) -> tuple[CheckedCount, list[Any], GroupValues]:
    """The groups and their private values, after the caps; pays for the share and the groups."""
    if request.kept is not None and request.kept.values is not None:
        progress.values = kept = request.kept.values
        progress.limit = limit = request.kept.limit  # this question may want another error
        if limit is not None:
            progress.side += share_of_removed(request, progress, kept, limit, randomness)
        known_removed(request, progress)
        return request, list(kept.groups), kept
    if request.from_counts:
        listed = list(request.keys or ())
        numbers = np.array([request.data.get(key, 0) for key in listed], dtype=np.int64)
        progress.values = GroupValues(tuple(listed), numbers)
        return request, listed, progress.values
    salt = contribution.new_salt(randomness)
    most, price = progress.most, request.cost_of_dropped(progress.most)
    if most is not None and request.most_known is not None and most >= request.most_known:
        most = None  # nobody is in more groups than there are
    removes = most is not None or request.measure.kind != "users"
    progress.limit = limit = request.limit(progress.most) if price and removes else None
    if shared is not None and request.measure.in_all:
        kept_rows = cap_ladder.capped_totals(*shared, request.measure, salt, request.keys)
        values = contribution.run_totals(kept_rows)
    elif shared is None:

        def write() -> Any:
            rows, keys = request.rows(), request.keys
            pairs = contribution.measured(
                rows, request.measure, keys, salt, collated=request.collated
            )
            return contribution.totals(pairs, most, salt, limit)

        known = KnownQuery(request.table, (request.shape, most, limit), salt, write)
        values = contribution.run_totals(known)
    else:
        values = run_capped(shared, request.measure, most, salt, limit, request.keys)
    if limit is not None:
        progress.side += share_of_removed(request, progress, values, limit, randomness)
        if request.may_raise_rows and shifted(request, progress.dropped or {}):
            return _values(_with_more_rows(request, progress, randomness), progress, randomness)
        if request.chooses_cap and gives_up(request, progress):
            return _values(with_all_groups(request, progress), progress, randomness)
    if request.keys is not None:
        progress.values = values.on(request.keys)
        return request, list(request.keys), progress.values
    assert progress.most is not None
    progress.selection = request.selection(progress.most)
    progress.side += request.cost_of_keys()
    # The candidates and their counts are those of the rows that are measured, and of no other.
    passed = progress.selection.select(values.users, randomness)
    released = [group for group, keep in zip(values.groups, passed, strict=True) if keep]
    return request, released, values.on(released)


def known_removed(request: CheckedCount, progress: Progress) -> None:
    """Note what a cap on all groups together removes, as an earlier question released it."""
    if request.measure.in_all and request.kept is not None and request.kept.share is not None:
        progress.share = request.kept.share
        progress.dropped = removed_by_caps(request, progress.share)


def shifted(request: CheckedCount, share: Mapping[str, Any]) -> bool:
    """Return whether a cap moves a mean by more than half of the wanted error, as released."""
    asked, grid = request.wanted.plus_minus, float(request.measure.grid)
    if asked is not None:
        return bool(share["shift"] > float(asked) * grid / 2)
    return bool(share["shift"] > (request.wanted.within or 0.0) * abs(share["kept_mean"]) / 2)


def gives_up(request: CheckedCount, progress: Progress) -> bool:
    """Whether nothing would be answered for the cap on groups, by released numbers.

    If it was chosen privately, all listed groups are looked at without a cap then, where what is
    left pays for a first look.
    """
    within, removed = request.wanted.within, progress.dropped or {}
    if request.measure.kind != "users" or within is None or removed.get("bias", 0.0) < within:
        return False
    return replace(request, dropped_price=progress.dropped_price).fits_all_groups()


def with_all_groups(request: CheckedCount, progress: Progress) -> CheckedCount:
    """Return the request without the cap; the choice and the share are paid all the same."""
    progress.most, progress.dropped = request.most_known, None
    return replace(request, dropped_price=progress.dropped_price)


def _with_more_rows(
    request: CheckedCount, progress: Progress, randomness: Randomness
) -> CheckedCount:
    """The request of a mean whose cap of one row is too small: chosen privately instead."""
    progress.dropped_price = 2 * request.cost_of_dropped(progress.most)  # looked at twice
    request = replace(
        request, chooses_rows=True, may_raise_rows=False, dropped_price=progress.dropped_price
    )
    return choose_rows(request, progress, sizes_per_user(request)[1], randomness)


def choose_caps(
    request: CheckedCount, progress: Progress, randomness: Randomness, shared: Shared | None = None
) -> CheckedCount:
    """Return the request with its caps: as given, 1 for one group, or chosen privately."""
    progress.most = request.cap if isinstance(request.cap, int) else None
    if request.cap == AUTO and not request.chooses_cap:
        progress.most = 1
    if not request.chooses_cap and not request.chooses_rows:
        return request
    if request.caps_in_all:
        assert shared is not None
        return choose_total_cap(request, progress, shared.users, randomness)
    groups, sizes = sizes_per_user(request, shared)
    if request.chooses_cap:
        progress.side += request.cost_of_cap()
        fit, rate = request.caps_that_fit(), request.cap_rate()
        span = 1 if request.counts_removed else None
        cap = cap_choice.choose_cap(groups, fit, request.above, rate, randomness, span=span)
        progress.most = request.widened(cap, fit)
    return choose_rows(request, progress, sizes, randomness) if request.chooses_rows else request


def choose_total_cap(
    request: CheckedCount, progress: Progress, users: Any, randomness: Randomness
) -> CheckedCount:
    """Return the request with a cap on all groups together, chosen by what it removes."""
    steps, terms = request.ladder()
    ladder = StepAmounts(steps, *cap_ladder.ladder_amounts(users, steps, caps_between(steps)))
    before = progress.side

    def pay(cost: Fraction) -> None:
        progress.side += cost

    chosen = CapSearch(ladder, terms, pay, randomness).run()
    request = replace(request.with_rows(chosen.cap), cap_price=progress.side - before)
    progress.most, progress.share = 1, chosen.share(request.wanted.confidence)
    progress.dropped = removed_by_caps(request, progress.share)
    return request


def choose_rows(
    request: CheckedCount, progress: Progress, sizes: dict[int, int], randomness: Randomness
) -> CheckedCount:
    """Return the request with a cap of rows, or of the amount, that is chosen privately."""
    progress.side += request.cost_of_rows()
    fit, rate = request.rows_that_fit(progress.most), request.cap_rate()
    return request.with_rows(
        cap_choice.choose_cap(
            sizes,
            fit,
            request.above,
            rate,
            randomness,
            span=request.span,
        )
    )


def share_of_removed(
    request: CheckedCount,
    progress: Progress,
    values: GroupValues,
    limit: int,
    randomness: Randomness,
) -> Fraction:
    """Estimate what the caps removed, for ``progress``; return the price."""
    confidence, within = request.wanted.confidence, request.wanted.within
    bought = [request.total * part for part in request.removed_shares]
    prices = prices_that_fit(bought, limit, request.law) if len(bought) > 1 else []
    if within is None or request.wanted.top is not None:
        prices = prices[:1]  # the share is told; nothing depends on it

    def enough(told: dict[str, float]) -> bool:
        if within is None or len(bought) == 1 or too_much_removed(told, within):
            return True
        if request.counts_removed:
            return removed_is_clear(told, within)
        return known_share(told, within) and told["estimate"] <= within / 2

    told = None if request.kept is None else request.kept.share
    if told is not None and told["confidence"] >= confidence and enough(told):
        share, price = told, Fraction(0)  # as an earlier question released it
        progress.dropped_price = price
    elif prices:
        share, price = dropped_pairs(
            values, limit, prices, request.law, confidence, enough, randomness
        )
        progress.dropped_price = price
    else:
        price = bought[-1]
        share = removed_share(values, limit, price, request.law, confidence, randomness)
    progress.share, progress.dropped = share, removed_by_caps(request, share)
    return price


def refinement_of(
    request: CheckedCount,
    progress: Progress,
    groups: list[Any],
    values: GroupValues,
    randomness: Randomness,
    *,
    keep_path: bool = False,
) -> Refinement:
    """The refinement of these values, on the path of an earlier question if there is one."""
    removed = progress.dropped or {}
    if progress.dropped_price is not None:
        request = replace(request, dropped_price=progress.dropped_price)
    job = request.job(
        max(1, len(groups)),
        progress.most,
        bias=0.0 if told_only(request, removed) else removed.get("bias", 0.0),
        shift=removed.get("shift", 0.0) / float(request.measure.grid),
    )
    names = [_name(group, request) for group in groups]
    assert job.total + progress.side <= request.total + request.paid_before
    numbers = values.first * request.finer
    path = None if request.kept is None else request.kept.path
    if keep_path and path is None:
        path = GroupPaths.beyond(job.levels, numbers, randomness, values.second)
    if values.second is None:
        return Refinement(job, names, numbers, randomness, path)
    return MeanRefinement(
        job,
        names,
        numbers,
        values.second,
        randomness,
        path,
        low=request.measure.low,
        high=request.measure.high,
    )


def _name(group: str, request: CheckedCount) -> Any:
    return tuple(group.split(SEPARATOR)) if len(request.by) > 1 else group


def in_data_units(request: CheckedCount, progress: Progress, answer: Answer) -> Answer:
    """An answer in the unit of the data; counts are never negative.

    Counts are corrected by the released share of dropped pairs; relative errors stay as they are.
    """
    unit = float(request.measure.grid / request.finer)
    if progress.dropped is not None and progress.dropped.get("corrected"):
        unit /= 1 - progress.dropped["estimate"]
    numbers = [number * unit for number in (answer.estimate, answer.low, answer.high)]
    if request.measure.kind != "mean" and not request.measure.signed:
        if numbers[2] < 0:  # a wider interval, as around an estimate of 0, says no more than that
            numbers[2] = (numbers[2] - numbers[1]) / 2
        numbers = [number if number != number else max(0.0, number) for number in numbers]
    return replace(answer, estimate=numbers[0], low=numbers[1], high=numbers[2])


def _ignores_rows(request: CheckedCount) -> bool:
    """Whether there are rows without user or group; for the curator only."""
    if request.from_counts:
        return False
    rows = request.rows()
    missing = rows.filter(rows[GROUP].isnull() | rows[USER].isnull())
    return bool(fetch(missing.select(missing=missing[USER].isnull()).limit(1))["missing"])


def _result(
    request: CheckedCount,
    progress: Progress,
    charges: Charges,
    evidence: dict[str, Any] | None,
    simulated: bool,
) -> CountResult:
    refinement = progress.refinement
    if refinement is None:
        raise InvalidInput("source", "the table", "nothing was looked at")
    capped = None if request.measure.in_all else progress.most
    grid = float(request.measure.grid)
    wanted = request.wanted
    outcome, spent = settled_at(progress.spent, charges)
    return CountResult(
        answers=tuple(progress.answers),
        unanswered=(
            *progress.unsure,
            *(in_data_units(request, progress, answer) for answer in refinement.unanswered),
        ),
        spent=round_up(spent),
        remaining=round_down(max(Fraction(0), request.total - spent)),
        unit="epsilon" if request.delta is None else "rho",
        within=wanted.within if wanted.top is None else None,
        plus_minus=None if wanted.plus_minus is None else float(wanted.plus_minus) * grid,
        confidence=wanted.confidence,
        factor=refinement.job.rule.factor,
        max_groups_per_user=capped,
        dropped_share=progress.dropped,
        guarantee=request.guarantee,
        keys=None if progress.selection is None else progress.selection.as_dict(),
        warnings=warnings_of_caps(request, progress.dropped, progress.most),
        query=describe_request(request),
        source=request.source,
        public=_public(request, progress),
        simulated=simulated,
        charges=charges,
        outcome=outcome,
        ledger=None
        if evidence is None
        else {**evidence, "source": source_description(request.source, describe_request(request))},
    )


def _public(request: CheckedCount, progress: Progress) -> dict[str, Any]:
    return {
        "keys": "found privately" if request.private else "listed",
        "groups": None if request.keys is None else len(request.keys),
        "max_rows_per_user": None if request.measure.kind == "users" else request.measure.rows,
        "max_amount_per_user": None
        if request.measure.amount is None
        else float(request.measure.amount * request.measure.grid),
        "rows_chosen_privately": request.chooses_rows,
        "max_groups_per_user": _how_capped(request),
        "total": round_up(request.total),
        **({"paid_before": float(request.paid_before)} if request.paid_before else {}),
        "noise": request.law,
        "shares": {
            "max_groups_per_user": round_up(request.cost_of_cap()),
            "max_rows_per_user": round_up(request.cost_of_rows()),
            "dropped_share": round_up(
                request.cost_of_dropped(progress.most)
                if progress.dropped_price is None
                else progress.dropped_price
            ),
            "keys": round_up(request.cost_of_keys()),
            **_cost_of_tests(progress),
        },
    }


def _cost_of_tests(progress: Progress) -> dict[str, float]:
    """What the tests of a top list cost, if there were any."""
    tests = Fraction(0) if progress.refinement is None else progress.refinement.tested
    return {"list_tests": round_up(tests)} if tests else {}


def _how_capped(request: CheckedCount) -> str:
    """Where m comes from."""
    if request.measure.in_all:
        return "none: one cap on all groups together"
    if request.kept is not None:
        return "that of the question that is continued"
    if request.one_row:
        return "declared: one row per user"
    return "chosen privately" if request.chooses_cap else "given"
