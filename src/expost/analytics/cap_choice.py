"""Caps chosen privately (:func:`choose_cap`): m, and the rows or the amount per user and group.

Each user has one number: the groups they are in, or the most rows (or the largest sum, without its
sign) that they have in one group. The exponential mechanism looks for the least cap that at most a
share q of all users is above: its quality is −max(above(c) − q·users, q·users − above(c′)), c′ the
candidate before c, above(0) = users. Adding a user changes either term by at most 1, so choosing c
with a probability proportional to e^{−η(best − quality)/2} is η-DP, and η²/8-zCDP (bounded range).
The draw is exact (``samplers.ExponentialLaw``). Of rows and sums above(c) − q·users is replaced by
what is above the cap, up to s ≥ c a user, less q times what is below:
Σ (min((x − c)₊, s) − q·min(x, c))/s. Of a user this is between −q and 1, so adding one changes it
by at most 1 as well.

Tests: ``tests/analytics/test_contribution.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from expost.analytics.contribution import (
    FIRST_SUM,
    GROUP,
    GROUPS_HELD,
    LARGEST_HELD,
    MOST_UNITS,
    USER,
    VALUE,
    literal64,
    users_of,
)
from expost.randomness import coins
from expost.randomness.samplers import ExponentialLaw
from expost.randomness.source import Randomness
from expost.tables.typed_columns import fetch

MOST_CAP = 1000  # the largest m that is chosen privately
_MASS_PARTS = 2**24  # of a cap


def per_user(rows: Any, amounts: Sequence[int] = ()) -> Any:
    """Return the query for the number of users by their groups and their most rows in a group.

    With ``amounts``, caps of a sum in ascending order, instead of rows by how many of these the
    largest sum of the user in a group exceeds.
    """
    size = rows[VALUE].sum().abs() if amounts else rows.count()
    pairs = rows.group_by([USER, GROUP]).aggregate(**{FIRST_SUM: size})
    return users_by_size(users_of(pairs), amounts)


def users_by_size(users: Any, amounts: Sequence[int] = ()) -> Any:
    """Return the query of :func:`per_user` from the users of :func:`users_of`."""
    groups, size = (
        users[GROUPS_HELD],
        users[LARGEST_HELD] if LARGEST_HELD in users.columns else literal64(1),
    )
    if amounts:
        exceeded = [(size > amount).ifelse(1, 0) for amount in amounts]
        size = sum(exceeded[1:], exceeded[0])
    users = users.select(expost_groups=groups, expost_size=size)
    return users.group_by(["expost_groups", "expost_size"]).aggregate(expost_users=users.count())


def run_per_user(query: Any, amounts: Sequence[int] = ()) -> tuple[dict[int, int], dict[int, int]]:
    """Run a query of :func:`per_user`: groups → users, and most rows in a group → users.

    With ``amounts``, amount → users: somebody above the k-th cap and not above the next one has the
    k-th cap and one more unit.
    """
    table = fetch(query)
    counted: tuple[dict[int, int], dict[int, int]] = {}, {}
    for groups, size, users in zip(
        table["expost_groups"], table["expost_size"], table["expost_users"], strict=True
    ):
        if amounts:
            size = amounts[size - 1] + 1 if size else 0
        counted[0][groups] = counted[0].get(groups, 0) + users
        counted[1][size] = counted[1].get(size, 0) + users
    return counted


def choose_cap(
    users: dict[int, int],
    candidates: Sequence[int],
    share: Fraction,
    rate: Fraction,
    randomness: Randomness,
    *,
    span: int | None = None,
) -> int:
    """Choose a cap by the exponential mechanism with parameter η = ``rate``.

    ``users``: number (of groups, of rows, or an amount) → users. Each c has a public weight of
    about 1/c², so that a small budget does not choose a large cap by chance; a base measure changes
    no guarantee. With ``span`` it matters how much is above the cap
    (up to one more cap, or ``span`` if that is more), not how many users are.
    """
    quality = []
    parts = share.denominator if span is None else _MASS_PARTS  # whole numbers of these of a user

    def loss(cap: int) -> int:
        if span is None or cap == 0:
            above = sum(number for size, number in users.items() if size > cap or cap == 0)
            return int(parts * (above - share * sum(users.values())))
        return _mass_lost(users, cap, max(cap, span), share)

    before = loss(0)
    for cap in candidates:
        lost = loss(cap)
        quality.append(-max(lost, -before))
        before = lost
    best, largest = max(quality), candidates[-1]
    weights = tuple((largest // cap) ** 2 for cap in candidates)
    distances = [best - one for one in quality]
    # No proposals that are accepted or not: they take long where the weight of the best is small.
    law = ExponentialLaw(weights, distances, rate / (2 * parts))
    return candidates[coins.invert(law, randomness)]


def _mass_lost(users: dict[int, int], cap: int, span: int, share: Fraction) -> int:
    """What is above a cap, up to ``span`` a user, less ``share`` of what is below, in parts of it.

    A user adds at most 1 and removes at most ``share`` of it, as in the count of users.
    """
    lost = 0
    for size, number in users.items():
        above = _MASS_PARTS * min(max(size - cap, 0), span) // span
        below = _MASS_PARTS * share.numerator * min(size, cap) // (share.denominator * span)
        lost += number * (above - below)
    return lost


def cap_candidates(most: int) -> list[int]:
    """Return 1, 2, …, 20, then steps of about a tenth."""
    caps = list(range(1, min(20, most) + 1))
    while caps[-1] < most:
        caps.append(min(most, math.ceil(caps[-1] * 1.1)))
    return caps


def amount_candidates(largest: int) -> list[int]:
    """Return caps of a sum: one unit, which fits every total that is admitted, and then steps of
    about a sixth from a 1000th of the largest value of a row to 1000 times that.
    """
    most = min(MOST_UNITS, MOST_CAP * largest)
    caps = [1, max(2, largest // MOST_CAP)]
    while caps[-1] < most:
        caps.append(min(most, max(caps[-1] + 1, caps[-1] * 7 // 6)))
    return caps
