"""``expost.count``: counts to the accuracy you need, from a table or from counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from expost.analytics.counting import GIVEN, RACE, Answer, Counting, CountingJob, make_job
from expost.analytics.private_keys import partition_guarantee, select_groups
from expost.analytics.sources import (
    GroupCounts,
    as_table,
    count_bounded,
    count_users,
    may_collate,
    open_source,
    pair_columns,
)
from expost.budget.charging import Account, LedgerLike
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ZCDP, ApproxDP, Guarantee, PureDP
from expost.randomness.source import Randomness, require_protection
from expost.rationals import count_of, exact, exact_positive, round_down, round_up

_SHARES = 1000  # a ledger entry is settled in thousandths of the job's worst case, rounded up
_TOO_MANY = (
    2**53
)  # above, a float would no longer hold a count, and its noise might not fit into 64 bits
_MOST_GROUPS = 10**6
_LEAST_KEYS = 1e-12  # of ε a group: below, noise is beyond what the samplers draw
_KEYS_SHARE = 0.1  # of ε, and half of δ, goes to finding out privately which groups exist


@dataclass(frozen=True)
class CountResult:
    """What was released: answers, groups that could not be answered, what was spent, and what it guarantees.

    ``spent`` and ``remaining`` are what the counts cost, in the unit of their noise: ε without δ, ρ of zCDP with one. ``keys`` is what
    finding the groups cost. ``guarantee`` covers everything.
    """

    answers: tuple[Answer, ...]
    unanswered: tuple[Answer, ...]
    spent: float
    remaining: float
    unit: str
    within: float
    confidence: float
    factor: float
    guarantee: Guarantee
    keys: Guarantee | None
    simulated: bool

    def as_dict(self) -> dict[str, Any]:
        """The JSON form of ``expost count``."""
        return {
            "answers": [answer.as_dict() for answer in self.answers],
            "unanswered": [_plain(answer) for answer in self.unanswered],
            "spent": self.spent,
            "remaining": self.remaining,
            "unit": self.unit,
            "within": self.within,
            "confidence": self.confidence,
            "interval_factor": self.factor,
            "guarantee": self.guarantee.as_dict(),
            "keys": None if self.keys is None else self.keys.as_dict(),
            "simulated": self.simulated,
        }


def count(
    data: Any,
    *,
    by: str | None = None,
    user: str | None = None,
    within: float = 0.1,
    epsilon: float,
    delta: float | None = None,
    keys: Sequence[str] | None = None,
    private_keys: bool = False,
    max_groups_per_user: int = 10,
    order: str | None = None,
    prior: Mapping[str, float] | None = None,
    max_group_epsilon: float | None = None,
    confidence: float = 0.9,
    rule: str = "confidence",
    ratio: float = math.sqrt(2),
    table: str | None = None,
    ledger: LedgerLike | None = None,
    budget: str | None = None,
    analyst: str = "",
    memo: str = "expost count",
    released: Callable[[Answer, float], None] | None = None,
    on_ignored: Callable[[bool], None] | None = None,
    randomness: Randomness | None = None,
    simulation: bool = False,
) -> CountResult:
    """Count distinct users per group, each within a relative error, as many groups as the budget allows.

    ``data``       a CSV or Parquet file, a connection URL (with ``table``), a pandas, polars, pyarrow or Ibis table, or a mapping
                   group → count
    ``by, user``   the columns that name the group and the person; privacy is per person, with all their rows
    ``keys``       the groups, publicly known; absent ones count 0. Otherwise ``private_keys=True`` finds them privately (needs
                   ``delta``; each person then counts in at most ``max_groups_per_user`` groups for that purpose)
    ``order``      ``given`` (as listed) or ``race`` (the cheapest to finish next; default); ``prior`` (public expected sizes) sorts,
                   largest first
    ``ledger``     reserves the whole budget first, and settles at what was looked at (also after an interrupt)
    ``released``   hears of each answer as it is made, with the budget spent so far; may be published
    ``on_ignored`` hears whether rows without user or group were ignored; for the curator only
    """
    source = require_protection(randomness, simulation=simulation)
    account = Account(ledger, budget, analyst, memo)
    account.check_simulation(source.simulated)
    _check_keys(data, keys, private_keys, delta)
    if count_of(max_groups_per_user, "max_groups_per_user", at_least=1) > _MOST_GROUPS:
        raise InvalidInput(
            "max_groups_per_user", max_groups_per_user, f"give at most {_MOST_GROUPS}"
        )
    expected = (
        None
        if prior is None
        else {str(group): float(exact(size, "prior")) for group, size in prior.items()}
    )
    key_epsilon = _KEYS_SHARE * float(epsilon) if private_keys else 0.0
    key_delta = float(delta or 0) / 2 if private_keys else 0.0
    settings: dict[str, Any] = {
        "within": within,
        "epsilon": round_down(exact_positive(epsilon, "epsilon") - Fraction(key_epsilon)),
        "delta": None if delta is None else float(delta) - key_delta,
        "confidence": confidence,
        "rule": rule,
        "ratio": ratio,
        "order": order or (GIVEN if prior is not None else RACE),
        "max_group": max_group_epsilon,
    }
    if private_keys and key_epsilon < _LEAST_KEYS * max_groups_per_user:
        raise InvalidInput(
            "epsilon",
            epsilon,
            "too little to find groups privately: give more, or fewer max_groups_per_user",
        )
    plan = make_job(1 if keys is None else len(keys), **settings)
    opened = _open(
        data, by, user, table
    )  # everything that can be wrong with the request is found before it is charged
    charges = _charges(plan, float(epsilon), delta, private_keys, ledger, budget)
    with account.reserve(charges) as reserved:
        private = _private_counts(
            opened, keys, private_keys, max_groups_per_user, key_epsilon, key_delta, source
        )
        if on_ignored is not None:
            on_ignored(private.rows_ignored)
        groups, counts = _sorted(private, expected)
        job = plan if keys is not None else make_job(len(groups), **settings)
        counting = Counting(job, groups, counts, source)
        answers = []
        try:
            for answer in counting:
                answers.append(answer)
                if released is not None:
                    released(answer, float(counting.spent))
        finally:
            reserved.settle(_share(counting.spent, job.total, len(charges)))
    return CountResult(
        answers=tuple(answers),
        unanswered=tuple(counting.unanswered),
        spent=round_up(counting.spent),
        remaining=round_down(counting.remaining),
        unit="epsilon" if delta is None else "rho",
        within=within,
        confidence=confidence,
        factor=job.rule.factor,
        guarantee=PureDP(float(epsilon))
        if delta is None
        else ApproxDP(float(epsilon), float(delta)),
        keys=partition_guarantee(key_epsilon, key_delta) if private_keys else None,
        simulated=source.simulated,
    )


def _open(data: Any, by: str | None, user: str | None, table: str | None) -> Any:
    """Checked counts, or the two columns of an opened table; nothing is counted yet."""
    if isinstance(data, Mapping):
        return {str(group): _whole(group, number) for group, number in data.items()}
    if by is None or user is None:
        raise InvalidInput(
            "by, user", (by, user), "name the columns of the group and of the person"
        )
    opened = open_source(data, table) if isinstance(data, (str, Path)) else as_table(data)
    return pair_columns(opened, by, user, collated=may_collate(data))


def _check_keys(
    data: Any, keys: Sequence[str] | None, private_keys: bool, delta: float | None
) -> None:
    if keys is not None and private_keys:
        raise InvalidInput("keys", "a list and private_keys", "give one of the two")
    if keys is None and not private_keys:
        raise InvalidInput(
            "keys",
            None,
            "which groups exist is private too: list them (keys), or find them privately (private_keys, with a delta)",
        )
    if private_keys and delta is None:
        raise InvalidInput("delta", None, "finding groups privately needs a δ > 0")
    if private_keys and isinstance(data, Mapping):
        raise InvalidInput(
            "private_keys",
            True,
            "a mapping of counts does not say who is in which group; give the table",
        )
    if keys is not None and (isinstance(keys, str) or not len(keys)):
        raise InvalidInput("keys", keys, "give a non-empty list of group names")
    if keys is not None and len(set(keys)) != len(keys):
        raise InvalidInput("keys", "with repeats", "name each group once")


def _private_counts(
    opened: Any,
    keys: Sequence[str] | None,
    private_keys: bool,
    contributions: int,
    key_epsilon: float,
    key_delta: float,
    randomness: Randomness,
) -> GroupCounts:
    """The groups to count and their true counts; with private keys the groups come from a private selection."""
    names = None if keys is None else [str(key) for key in keys]
    if isinstance(opened, dict):
        listed = tuple(names or ())
        return GroupCounts(
            listed, np.array([opened.get(key, 0) for key in listed], dtype=np.int64), False
        )
    if private_keys:
        bounded = count_bounded(opened, contributions)
        passed = select_groups(bounded.counts, key_epsilon, key_delta, contributions, randomness)
        names = [group for group, keep in zip(bounded.groups, passed, strict=True) if keep]
    return count_users(opened, names or [])


def _whole(group: object, number: object) -> int:
    if (
        isinstance(number, bool)
        or not isinstance(number, (int, np.integer))
        or not 0 <= number < _TOO_MANY
    ):
        raise InvalidInput(
            f"counts[{group!r}]", type(number).__name__, "give whole numbers ≥ 0 and < 2^53"
        )
    return int(number)


def _sorted(private: GroupCounts, prior: Mapping[str, float] | None) -> tuple[tuple[str, ...], Any]:
    if prior is None:
        return private.groups, private.counts
    order = sorted(
        range(len(private.groups)), key=lambda place: -prior.get(private.groups[place], 0.0)
    )
    return tuple(private.groups[place] for place in order), private.counts[order]


def _charges(
    job: CountingJob,
    epsilon: float,
    delta: float | None,
    private_keys: bool,
    ledger: LedgerLike | None,
    budget: str | None,
) -> Charges:
    """What the job may cost: thousandths of its total, in the terms of the ledger's budget.

    Pure: ε. With δ and known groups: ρ in a zCDP (or Rényi) budget, which gives back what was not used; in an (ε, δ) budget the whole
    (ε, δ), because the conversion of a realised ρ would need one order for all outcomes. With private groups: the whole (ε, δ).
    """
    total = job.total
    if delta is None:
        return _shares([PureDP(round_up(total * part / _SHARES)) for part in range(_SHARES + 1)])
    kind = ledger.kind_of(budget) if ledger is not None else "approx"
    if kind in ("zcdp", "renyi") and not private_keys:
        return _shares([ZCDP(round_up(total * part / _SHARES)) for part in range(_SHARES + 1)])
    whole: Guarantee = ApproxDP(epsilon, delta)
    if private_keys:
        whole = whole.at_worst(partition_guarantee(_KEYS_SHARE * epsilon, delta / 2))
    return Charges.from_list([whole], whole)


def _shares(levels: list[Any]) -> Charges:
    return Charges(tuple(levels), tuple(range(len(levels))), levels[-1])


def _share(spent: Fraction, total: Fraction, outcomes: int) -> int:
    return 0 if outcomes == 1 else min(_SHARES, math.ceil(spent / total * _SHARES))


def _plain(answer: Answer) -> dict[str, Any]:
    """An answer for JSON, which has neither NaN nor infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in answer.as_dict().items()
    }
