"""Running a checked request: reserve, read, refine, settle.

One reservation covers the whole request. It is settled at what was looked at, also after an
exception or Ctrl-C, and at nothing if nothing had been looked at. Answers are handed to the caller
before the reservation is settled. The ledger stores a rule (a share of the total, in parts of
10⁻¹²), not a table, and the certificate states the charge that the ledger settles.
Tests: ``tests/analytics/test_query.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from expost.analytics import contribution
from expost.analytics.certificate import CountResult, source_of
from expost.analytics.columns import GROUP, SEPARATOR, USER
from expost.analytics.contribution import GroupValues
from expost.analytics.engine import fetch
from expost.analytics.means import MeanRefinement
from expost.analytics.private_keys import KeySelection
from expost.analytics.refinement import Answer, Refinement
from expost.analytics.request import AUTO, Request
from expost.budget.charging import Account
from expost.errors import InvalidInput
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.guarantees import ZCDP, ApproxDP, PureDP
from expost.randomness.source import Randomness
from expost.rationals import round_down, round_up

_PARTS = 10**12  # of the worst case; a job is settled at a whole number of them

Released = Callable[[Answer, float], None]


@dataclass
class Progress:
    """What has been bought so far; ``side`` is everything but the values."""

    side: Fraction = Fraction(0)
    most: int | None = None
    dropped: dict[str, Any] | None = None
    selection: KeySelection | None = None
    refinement: Refinement | None = None
    answers: list[Answer] = field(default_factory=list)

    @property
    def spent(self) -> Fraction:
        """The charge so far."""
        return self.side + (Fraction(0) if self.refinement is None else self.refinement.spent)


def run(
    request: Request,
    account: Account,
    randomness: Randomness,
    released: Released | None,
    on_ignored: Callable[[bool], None] | None,
) -> CountResult:
    """Run a request and return what it releases."""
    charges = _charges(request, account)
    progress = Progress()
    asked = _query(request)
    described = source_of(request.source, asked)
    with account.reserve(charges, request=asked, source=described) as reserved:
        certificate = None
        try:
            if on_ignored is not None:
                on_ignored(_ignores_rows(request))
            request = _capped(request, progress, randomness)
            groups, values = _values(request, progress, randomness)
            refinement = _refinement(request, progress, groups, values, randomness)
            progress.refinement = refinement
            for answer in refinement:
                progress.answers.append(_published(request, answer))
                if released is not None:
                    released(progress.answers[-1], round_up(progress.spent))
            evidence = reserved.evidence()
            result = _result(request, progress, charges, evidence, randomness.simulated)
            if evidence is not None:
                certificate = result.certificate()
        finally:
            reserved.settle(_outcome(progress.spent, charges), certificate)
    return result


def _values(
    request: Request, progress: Progress, randomness: Randomness
) -> tuple[list[Any], GroupValues]:
    """The groups and their private values, after the caps; pays for the share and the groups."""
    if request.from_counts:
        listed = list(request.keys or ())
        numbers = np.array([request.data.get(key, 0) for key in listed], dtype=np.int64)
        return listed, GroupValues(tuple(listed), numbers)
    salt = contribution.new_salt(randomness)
    pairs = contribution.measured(
        request.rows(), request.measure, request.keys, salt, collated=request.collated
    )
    most, price = progress.most, request.cost_of_dropped(progress.most)
    if most is not None and request.most_known is not None and most >= request.most_known:
        most = None  # nobody is in more groups than there are
    limit = request.limit(progress.most) if price else None
    values = contribution.run_totals(
        contribution.totals(pairs, most, salt, limit, collated=request.collated)
    )
    if limit is not None:
        progress.side += price
        progress.dropped = _removed(
            request,
            contribution.removed_share(
                values, limit, price, request.law, request.wanted.confidence, randomness
            ),
        )
    if request.keys is not None:
        return list(request.keys), values.on(request.keys)
    assert progress.most is not None
    progress.selection = request.selection(progress.most)
    progress.side += request.cost_of_keys()
    # The candidates and their counts are those of the rows that are measured, and of no other.
    passed = progress.selection.select(values.users, randomness)
    found = [group for group, keep in zip(values.groups, passed, strict=True) if keep]
    return found, values.on(found)


def _capped(request: Request, progress: Progress, randomness: Randomness) -> Request:
    """The request with its caps: as given, 1 if there is one group, or chosen privately."""
    progress.most = request.cap if isinstance(request.cap, int) else None
    if request.cap == AUTO and not request.chooses_cap:
        progress.most = 1
    if not request.chooses_cap and not request.chooses_rows:
        return request
    usable = contribution.usable(request.rows(), request.measure, request.keys)
    groups, rows = contribution.run_per_user(contribution.per_user(usable))
    share, rate = Fraction(request.wanted.within or Fraction(1, 10)) / 4, request.cap_rate()
    if request.chooses_cap:
        progress.side += request.cost_of_cap()
        fit = request.caps_that_fit()
        progress.most = contribution.choose_cap(groups, fit, share, rate, randomness)
    if request.chooses_rows:
        progress.side += request.cost_of_rows()
        fit = request.rows_that_fit(progress.most)
        chosen = contribution.choose_cap(rows, fit, share, rate, randomness, favour_small=True)
        request = request.with_rows(chosen)
    return request


def _removed(request: Request, share: dict[str, Any]) -> dict[str, Any]:
    """The share that caps removed, and the bias that counts against the wanted relative error.

    ``bias`` (of rows and sums, relative to the value) or ``shift`` (of a mean) is the estimate if
    that is known to within the wanted error, else the part of it that is certain at the confidence
    of the interval. Counts of users are published as what the cap keeps, without a bias.
    """
    measure, within = request.measure, request.wanted.within
    kinds = {"users": "pairs", "rows": "rows", "sum": "amount", "mean": "rows"}
    told = {"of": kinds[measure.kind]} | share
    if measure.kind == "users":
        return told
    if measure.kind == "mean":
        spread, error = measure.high - measure.low, told.pop("shift_error")
        shift, centre = abs(told.pop("shift")), measure.low + spread * told.pop("centre")
        asked = request.wanted.plus_minus
        wanted = float(asked) if asked is not None else (within or 0.0) * abs(centre)
        counted = shift if spread * error <= wanted else max(0.0, shift - error)
        return told | {"shift": counted * spread * float(measure.grid)}
    low, middle, high = (_odds(share[name]) for name in ("low", "estimate", "high"))
    known = within is None or high - low <= 2 * within
    return told | {"bias": middle if known else low}


def _odds(share: float) -> float:
    """The removed part as a part of what is kept; a number for JSON even if nothing is kept."""
    return share / max(1e-9, 1 - share)


def _refinement(
    request: Request,
    progress: Progress,
    groups: list[Any],
    values: GroupValues,
    randomness: Randomness,
) -> Refinement:
    removed = progress.dropped or {}
    job = request.job(
        max(1, len(groups)),
        progress.most,
        bias=removed.get("bias", 0.0),
        shift=removed.get("shift", 0.0) / float(request.measure.grid),
    )
    names = [_name(group, request) for group in groups]
    if values.second is None:
        return Refinement(job, names, values.first * request.finer, randomness)
    return MeanRefinement(
        job,
        names,
        values.first,
        values.second,
        randomness,
        low=request.measure.low,
        high=request.measure.high,
    )


def _name(group: str, request: Request) -> Any:
    return tuple(group.split(SEPARATOR)) if len(request.by) > 1 else group


def _published(request: Request, answer: Answer) -> Answer:
    """An answer in the unit of the data; counts are never negative."""
    unit = float(request.measure.grid / request.finer)
    numbers = [number * unit for number in (answer.estimate, answer.low, answer.high)]
    if request.measure.kind != "mean" and not request.measure.signed:
        numbers = [number if number != number else max(0.0, number) for number in numbers]
    return replace(answer, estimate=numbers[0], low=numbers[1], high=numbers[2])


def _ignores_rows(request: Request) -> bool:
    """Whether there are rows without user or group; for the curator only."""
    if request.from_counts:
        return False
    rows = request.rows()
    missing = rows.filter(rows[GROUP].isnull() | rows[USER].isnull())
    return bool(fetch(missing.select(found=missing[USER].isnull()).limit(1))["found"])


def _charges(request: Request, account: Account) -> Charges:
    """What the request may cost: nothing, or parts of its total, in the terms of the budget.

    Pure: ε. With δ and known groups: ρ in a zCDP (or Rényi) budget, which gives back what was not
    used; in an (ε, δ) budget the whole (ε, δ), because converting a realised ρ would need one order
    for all outcomes. With private groups: the whole (ε, δ).
    """
    if request.delta is None:
        return Charges.shares(PureDP(round_up(request.total)), _PARTS)
    kind = account.ledger.kind_of(account.budget) if account.ledger is not None else "zcdp"
    if kind in ("zcdp", "renyi") and not request.private:
        return Charges.shares(ZCDP(round_up(request.total)), _PARTS)
    whole = request.guarantee
    # One δ covers all outcomes, so "nothing" has it, too.
    return Charges((whole,), (0,), ApproxDP(0.0, request.delta, whole.neighbours))


def _outcome(spent: Fraction, charges: Charges) -> int | None:
    """The cheapest outcome that covers what was spent; None for nothing, where that has a price."""
    if isinstance(charges, ShareCharges):
        return charges.outcome_for(spent)
    return 0 if spent else None


def _result(
    request: Request,
    progress: Progress,
    charges: Charges,
    evidence: dict[str, Any] | None,
    simulated: bool,
) -> CountResult:
    refinement = progress.refinement
    if refinement is None:
        raise InvalidInput("source", "the table", "nothing was looked at")
    capped = progress.most
    grid = float(request.measure.grid)
    wanted = request.wanted
    outcome = _outcome(progress.spent, charges)
    charged = charges.nothing if outcome is None else charges[outcome]
    # In the unit of the noise; a whole (ε, δ) that was charged has none.
    shared = isinstance(charges, ShareCharges)
    spent = charged.size if shared else progress.spent
    return CountResult(
        answers=tuple(progress.answers),
        unanswered=tuple(_published(request, answer) for answer in refinement.unanswered),
        spent=round_up(spent),
        remaining=round_down(max(Fraction(0), request.total - spent)),
        unit="epsilon" if request.delta is None else "rho",
        within=wanted.within,
        plus_minus=None if wanted.plus_minus is None else float(wanted.plus_minus) * grid,
        confidence=wanted.confidence,
        factor=refinement.job.rule.factor,
        max_groups_per_user=capped,
        dropped_share=progress.dropped,
        guarantee=request.guarantee,
        keys=None if progress.selection is None else progress.selection.as_dict(),
        warnings=_warnings(request, progress),
        query=_query(request),
        source=request.source,
        public=_public(request, progress),
        simulated=simulated,
        charges=charges,
        outcome=outcome,
        ledger=evidence,
    )


def _warnings(request: Request, progress: Progress) -> tuple[str, ...]:
    within = request.wanted.within or 0.1
    share = progress.dropped
    if share is None or share["estimate"] <= within / 2 or share["low"] <= within / 4:
        return ()
    what = {"pairs": "(user, group) pairs were", "rows": "rows were", "amount": "the amount was"}
    caps = [] if progress.most is None else [f"{progress.most} groups per user"]
    if share["of"] != "pairs":
        caps += [f"{request.measure.rows} rows per user and group"]
    mean = request.measure.kind == "mean"
    effect = (
        "The mean is that of the rows that are kept"
        if mean
        else "Values are too low by about as much"
    )
    return (
        f"Capping, not noise, limits accuracy: about {share['estimate']:.0%} of "
        f"{what[share['of']]} dropped at {' and '.join(caps)}. {effect}; a larger cap keeps more.",
    )


def _query(request: Request) -> dict[str, Any]:
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
    }


def _public(request: Request, progress: Progress) -> dict[str, Any]:
    return {
        "keys": "found privately" if request.private else "listed",
        "groups": None if request.keys is None else len(request.keys),
        "max_rows_per_user": None if request.measure.kind == "users" else request.measure.rows,
        "rows_chosen_privately": request.chooses_rows,
        "max_groups_per_user": _how_capped(request),
        "total": round_up(request.total),
        "noise": request.law,
        "shares": {
            "max_groups_per_user": round_up(request.cost_of_cap()),
            "max_rows_per_user": round_up(request.cost_of_rows()),
            "dropped_share": round_up(request.cost_of_dropped(progress.most)),
            "keys": round_up(request.cost_of_keys()),
        },
    }


def _how_capped(request: Request) -> str:
    """Where m comes from."""
    if request.one_row:
        return "declared: one row per user"
    return "chosen privately" if request.chooses_cap else "given"
