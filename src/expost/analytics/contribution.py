"""Bounding what one user contributes, inside the engine, and what the bound loses.

**The cap.** A user keeps at most m of their groups: those with the smallest hash of (salt, user,
group), ties broken by the group's name. The salt is fresh for each request and never released. The
groups that a user keeps are a function of this user's rows and the salt only, so one user's
presence changes nobody else's rows, and at most m values by at most the sensitivity each. This
holds for every salt and every hash function; a good hash only makes the choice fair. Of a user's
rows in one group at most ``rows`` are kept (sums and means): those with the smallest hash of (salt,
user, group, value, occurrence), where occurrence numbers the user's rows of equal value, which
cannot be told apart. So every user keeps a sample of their own rows without replacement, and
different users keep different ones. The hash is MD5 of the same bytes in DuckDB, PostgreSQL and
Spark: one salt gives one answer on every engine.

**m chosen privately** (:func:`choose_cap`). Each user has one number, the groups they are in. The
exponential mechanism looks for the least m that at most a share q of all users is above: its
quality is −max(above(m) − q·users, q·users − above(m′)), m′ the candidate before m, above(0) =
users. Adding a user changes either term by at most 1, so accepting m with probability e^{−η(best −
quality)/2} is η-DP, and η²/8-zCDP (bounded range). Coins are exact.

**The share of dropped pairs** (:func:`dropped_share`). Kept pairs and dropped pairs, the latter at
most m per user, each with exact noise for a sensitivity of m.
Tests: ``tests/analytics/test_contribution.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.columns import GROUP, USER, VALUE, Measure, byte_by_byte
from expost.analytics.engine import fetch, ibis_module
from expost.analytics.intervals import half_widths_at
from expost.analytics.noise_levels import GaussianLevels, LaplaceLevels
from expost.randomness import coins
from expost.randomness.source import Randomness

_FIRST, _SECOND, _WHO = "expost_first", "expost_second", "expost_who"
_DROPPED, _RANK, _OCCURRENCE = "expost_dropped", "expost_rank", "expost_occurrence"
MOST_CAP = 1000  # the largest m that is chosen privately
_MANY_KEYS = 2000  # from here on a join is faster than a list in the query
_ABOUT_DROPPED = Fraction(4, 5)  # of the price of the share, the rest is for the kept pairs


@dataclass(frozen=True)
class GroupValues:
    """Values per group in grid units. Private: never shown as they are.

    ``second`` holds Σ(high − v) of a mean, where ``first`` holds Σ(v − low). ``users`` holds the
    users that count in a group. ``dropped`` is the number of pairs that the cap left out, at most m
    per user.
    """

    groups: tuple[str, ...]
    first: npt.NDArray[np.int64] = field(repr=False)
    second: npt.NDArray[np.int64] | None = field(repr=False, default=None)
    users: npt.NDArray[np.int64] = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))
    dropped: int = field(repr=False, default=0)

    @property
    def kept(self) -> int:
        """The number of (user, group) pairs that the cap kept."""
        return int(self.users.sum())

    def on(self, keys: Sequence[str]) -> GroupValues:
        """Return the values of the listed groups; absent ones are 0."""
        place = {group: index for index, group in enumerate(self.groups)}
        chosen = np.array([place.get(key, -1) for key in keys], dtype=np.int64)

        def pick(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return np.where(chosen >= 0, np.append(values, 0)[chosen], 0)

        second = None if self.second is None else pick(self.second)
        return GroupValues(tuple(keys), pick(self.first), second, pick(self.users), self.dropped)


def new_salt(randomness: Randomness) -> str:
    """Return a fresh salt of 128 bits as text."""
    return f"{randomness.bits(128):032x}"


def measured(
    rows: Any, measure: Measure, keys: Sequence[str] | None, salt: str, *, collated: bool = True
) -> Any:
    """Return one row per user and group with what the user contributes there.

    ``collated`` says that equal users may be written differently (a collation, −0.0).
    """
    ibis = ibis_module()
    rows = rows.filter(rows[GROUP].notnull() & rows[USER].notnull())
    if measure.column is not None:
        rows = rows.filter(rows[VALUE].notnull())
    if keys is not None:
        rows = _only(rows, keys)
    if measure.kind == "users":
        return rows.select(USER, GROUP).distinct().mutate(**{_FIRST: ibis.literal(1, "int64")})
    if measure.kind == "rows":
        counted = rows.group_by([USER, GROUP]).aggregate(**{_FIRST: ibis._.count()})
        return counted.mutate(**{_FIRST: counted[_FIRST].clip(upper=measure.rows).cast("int64")})
    alike = ibis.window(group_by=[USER, GROUP, VALUE], order_by=VALUE)
    occurrence = ibis.row_number().over(alike).cast("string")
    rows = rows.mutate(**{_WHO: _user_text(rows, collated), _OCCURRENCE: occurrence})
    order = [_hash(rows, [_WHO, GROUP, VALUE, _OCCURRENCE], salt), rows[VALUE]]
    rank = ibis.row_number().over(ibis.window(group_by=[USER, GROUP], order_by=order))
    rows = rows.mutate(**{_RANK: rank}).filter(ibis._[_RANK] < measure.rows)
    low = measure.low if measure.kind == "mean" else 0
    sums = {_FIRST: (rows[VALUE] - low).sum().cast("int64")}
    if measure.kind == "mean":
        sums[_SECOND] = (measure.high - rows[VALUE]).sum().cast("int64")
    return rows.group_by([USER, GROUP]).aggregate(**sums)


def totals(pairs: Any, most: int | None, salt: str, *, collated: bool = True) -> Any:
    """Return the query for one row per group: sums over the pairs that the cap keeps."""
    ibis = ibis_module()
    names = [name for name in (_FIRST, _SECOND) if name in pairs.columns]
    if most is None:
        sums = {name: pairs[name].sum().cast("int64") for name in names}
        return pairs.group_by(GROUP).aggregate(**sums, **{_RANK: pairs.count()})
    pairs = pairs.mutate(**{_WHO: _user_text(pairs, collated)})
    order = [_hash(pairs, [_WHO, GROUP], salt), pairs[GROUP]]
    rank = ibis.row_number().over(ibis.window(group_by=USER, order_by=order))
    ranked = pairs.mutate(**{_RANK: rank}).filter(ibis._[_RANK] < 2 * most)
    kept = ranked[_RANK] < most
    sums = {name: kept.ifelse(ranked[name], 0).sum().cast("int64") for name in names}
    left_out = {_DROPPED: kept.ifelse(0, 1).sum(), _RANK: kept.ifelse(1, 0).sum()}
    return ranked.group_by(GROUP).aggregate(**sums, **left_out)


def run_totals(query: Any) -> GroupValues:
    """Run a query of :func:`totals`; groups come back in the order of their names."""
    found = fetch(query)
    order = sorted(range(len(found[GROUP])), key=lambda place: str(found[GROUP][place]))

    def column(name: str) -> npt.NDArray[np.int64]:
        return np.array([int(found[name][place]) for place in order], dtype=np.int64)

    return GroupValues(
        tuple(str(found[GROUP][place]) for place in order),
        column(_FIRST),
        column(_SECOND) if _SECOND in found else None,
        column(_RANK),
        sum(map(int, found.get(_DROPPED, []))),
    )


def groups_per_user(pairs: Any) -> Any:
    """Return the query for the number of users by the number of groups they are in."""
    ibis = ibis_module()
    each = pairs.group_by(USER).aggregate(expost_groups=ibis._.count())
    return each.group_by("expost_groups").aggregate(expost_users=ibis._.count())


def run_groups_per_user(query: Any) -> dict[int, int]:
    """Run a query of :func:`groups_per_user`: groups → users."""
    found = fetch(query)
    return dict(zip(found["expost_groups"], found["expost_users"], strict=True))


def _only(rows: Any, keys: Sequence[str]) -> Any:
    """The rows of the listed groups: others must not use up a user's cap."""
    ibis = ibis_module()
    if len(keys) < _MANY_KEYS or ibis.get_backend(rows).name != "duckdb":
        return rows.filter(rows[GROUP].isin(list(keys)))
    return rows.semi_join(ibis.memtable({GROUP: list(keys)}), GROUP)


def _user_text(pairs: Any, collated: bool) -> Any:
    """The user as text: one text per user, also where equal users are written differently."""
    user, engine = pairs[USER], ibis_module().get_backend(pairs).name
    kind = user.type()
    text = user if kind.is_string() else user.cast("string")
    if kind.is_integer() or (kind.is_string() and not collated):
        return text
    return byte_by_byte(text, engine).min().over(ibis_module().window(group_by=USER))


def _hash(rows: Any, names: list[str], salt: str) -> Any:
    """MD5 of the salt and some columns: any hash will do for privacy, see above."""
    ibis = ibis_module()
    text = ibis.literal(salt)
    for name in names:
        text = text + "\x1f" + rows[name].cast("string")
    engine = ibis.get_backend(rows).name
    if engine == "postgres":  # bytes: a text would be sorted by the collation of the database
        utf8 = _builtin("convert_to", ("string", "string"), "binary")(text, "UTF8")
        return _builtin("decode", ("string", "string"), "binary")(
            _builtin("md5", ("binary",), "string")(utf8), "hex"
        )
    if engine in ("duckdb", "pyspark"):
        return _builtin("md5", ("string",), "string")(text)
    return text.hash()


def _builtin(name: str, inputs: tuple[str, ...], output: str) -> Any:
    """A function of the engine; Ibis wants a Python function to read the parameters from."""
    shape = (lambda value: None) if len(inputs) == 1 else (lambda value, how: None)
    return ibis_module().udf.scalar.builtin(shape, name=name, signature=(inputs, output))


def choose_cap(
    users: dict[int, int],
    groups: int,
    share: Fraction,
    rate: Fraction,
    randomness: Randomness,
) -> int:
    """Choose m by the exponential mechanism with parameter η = ``rate``.

    ``users``: groups → users.
    """
    candidates = _candidates(min(groups, MOST_CAP))
    everybody = sum(users.values())
    quality = []
    before = everybody
    for cap in candidates:
        above = sum(number for size, number in users.items() if size > cap)
        quality.append(-max(above - share * everybody, share * everybody - before))
        before = above
    best = max(quality)
    while True:
        place = randomness.below(len(candidates))
        if coins.bernoulli_exp(rate * (best - quality[place]) / 2, randomness):
            return candidates[place]


def _candidates(most: int) -> list[int]:
    """1, 2, …, 20, then steps of about a tenth."""
    found = list(range(1, min(20, most) + 1))
    while found[-1] < most:
        found.append(min(most, math.ceil(found[-1] * 1.1)))
    return found


def dropped_share(
    kept: int,
    dropped: int,
    most: int,
    price: Fraction,
    law: str,
    confidence: float,
    randomness: Randomness,
) -> dict[str, float]:
    """Return a private estimate of the share of pairs that the cap dropped, with an interval."""
    noisy, widths = [], []
    for number, part in ((dropped, _ABOUT_DROPPED), (kept, 1 - _ABOUT_DROPPED)):
        cost = price * part
        if law == "laplace":
            noise = coins.discrete_laplace(most / cost, randomness)
            levels: Any = LaplaceLevels((float(cost),), most)
        else:
            noise = coins.discrete_gaussian(most**2 / (2 * cost), randomness)
            levels = GaussianLevels((float(cost),), most)
        noisy.append(number + noise)
        widths.append(float(half_widths_at(levels, np.array([(1 - confidence) / 2]))[0]))
    return {
        "estimate": _ratio(noisy[0], noisy[1]),
        "low": _ratio(noisy[0] - widths[0], noisy[1] + widths[1]),
        "high": _ratio(noisy[0] + widths[0], noisy[1] - widths[1]),
        "confidence": confidence,
    }


def _ratio(dropped: float, kept: float) -> float:
    """dropped/(dropped + kept) for noisy numbers: between 0 and 1, 1 if nothing is known."""
    dropped, kept = max(0.0, float(dropped)), max(0.0, float(kept))
    if dropped == 0:
        return 0.0
    return dropped / (dropped + kept)
