"""Bounding what one user contributes, inside the engine, and what the bound loses.

**The cap.** A user keeps at most m of their groups: those with the smallest hash of (salt, user,
group), ties broken by the group's name. The salt is fresh for each request and never released. The
groups that a user keeps are a function of this user's rows and the salt only, so one user's
presence changes nobody else's rows, and at most m values by at most the sensitivity each. This
holds for every salt and every hash function; a good hash only makes the choice fair. Of a user's
rows in one group at most ``rows`` are kept (means, and sums if a number is given): those with the
smallest hash of (salt, user, group, value, occurrence), where occurrence numbers the user's rows of
equal value, which cannot be told apart. So every user keeps a sample of their own rows without
replacement, and different users keep different ones. Otherwise the sum of all of a user's rows in a
group is clipped to ± ``amount``: a bound on what one person adds to a group, which is far below
rows times the bound of a value where bounds are wide. The hash is MD5 of the same bytes in DuckDB,
PostgreSQL and Spark: one salt gives one answer on every engine.

**What the caps remove** (``pricing``). Per user: pairs (users), rows, the amount Σ|v| of
all rows less what is kept of them, clipping included (sums), or Σ(v − low) and Σ(high − v) of the
rows that are not kept (means). A user counts with at most ``limit``, in removed and in kept
amounts; so exact noise for that sensitivity makes both private. Where somebody loses more than
``limit``, the share that is estimated is too small: it says what is removed at least.
Tests: ``tests/analytics/test_contribution.py``, ``test_removed.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.randomness.source import Randomness
from expost.tables import typed_columns as columns
from expost.tables.typed_columns import fetch, ibis_module

USER, GROUP, VALUE, WIDE = "expost_user", "expost_group", "expost_value", "expost_wide"
TOTAL = "all"  # the group of a request without groups
MOST_UNITS = 2**31  # sums of this many units and 2³² rows stay inside 64 bits
FIRST_SUM, _SECOND = "expost_first", "expost_second"
LARGEST_HELD = "expost_most"
GROUPS_HELD, _SIZED = "expost_size", "expost_sized"
_NARROW_SUM = "sum_no_overflow"
_NAME, _NUMBER = "expost_name", "expost_number"
_PART = "expost_part"  # which of several queries
USERS_COUNTED, ROW_RANK, _OCCURRENCE = "expost_users", "expost_rank", "expost_occurrence"
_KEPT, _GAP = ("expost_kept", "expost_kept_2"), ("expost_gap", "expost_gap_2")
WHOLE_SUM = "expost_whole"
_WHOLE, _AMOUNTS = (WHOLE_SUM, "expost_whole_2"), (_KEPT, _GAP)
_HASH = 12  # digits: texts of this length are sorted fast; equal ones are told apart by name
_MANY_KEYS = 2000  # from here on a join is faster than a list in the query


@dataclass(frozen=True)
class GroupValues:
    """Values per group in grid units. Private: never shown as they are.

    ``second`` holds Σ(high − v) of a mean, where ``first`` holds Σ(v − low). ``users`` holds the
    users that count in a group. ``kept`` and ``removed`` are amounts of all groups together, with
    at most a limit per user (two amounts for a mean).
    """

    groups: tuple[str, ...]
    first: npt.NDArray[np.int64] = field(repr=False)
    second: npt.NDArray[np.int64] | None = field(repr=False, default=None)
    users: npt.NDArray[np.int64] = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))
    kept: tuple[int, ...] = field(repr=False, default=())
    removed: tuple[int, ...] = field(repr=False, default=())

    def on(self, keys: Sequence[str]) -> GroupValues:
        """Return the values of the listed groups; absent ones are 0."""
        index = {group: row for row, group in enumerate(self.groups)}
        chosen = np.array([index.get(key, -1) for key in keys], dtype=np.int64)

        def pick(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return np.where(chosen >= 0, np.append(values, 0)[chosen], 0)

        second = None if self.second is None else pick(self.second)
        first, users = pick(self.first), pick(self.users)
        return GroupValues(tuple(keys), first, second, users, self.kept, self.removed)


@dataclass(frozen=True)
class Measure:
    """What is measured per user and group, in integer units of ``grid``.

    ``kind`` is ``users``, ``rows``, ``sum`` or ``mean``. ``rows`` is the cap of rows per user and
    group; None until it has been chosen privately, and for a sum with a cap of the ``amount`` that
    a user adds to a group. ``low`` and ``high`` are the public bounds of a value, in grid units.
    With ``in_all`` the cap is on all groups together (``cap_ladder``).
    """

    kind: str = "users"
    column: str | None = None
    rows: int | None = 1
    grid: Fraction = Fraction(1)
    low: int = 0
    high: int = 1
    amount: int | None = None
    in_all: bool = False

    @property
    def largest(self) -> int:
        """The largest value of a row without its sign, in grid units."""
        return max(abs(self.low), abs(self.high))

    @property
    def sensitivity(self) -> int:
        """How much one user can change the value of one group, in grid units.

        With ``in_all`` that of all groups together.
        """
        if self.amount is not None:
            return self.amount
        assert self.rows is not None
        if self.kind == "mean":  # Σ(v − low) and Σ(high − v) add up to rows·(high − low)
            return self.rows * (self.high - self.low)
        return self.rows * self.largest

    @property
    def caps(self) -> dict[str, int | None]:
        """The caps per user and group, or of all groups together."""
        return {"rows": self.rows, "amount": self.amount, "in_all": int(self.in_all)}

    @property
    def signed(self) -> bool:
        """Whether a value of a group can be negative."""
        return self.kind == "sum" and self.low < 0


def select(
    table: Any,
    by: Sequence[str],
    user: str,
    measure: Measure | None = None,
    where: Sequence[str] = (),
    *,
    collated: bool = False,
    text: str | None = None,
) -> Any:
    """Return the columns that matter under our names; ``collated`` if text may have a collation.

    ``text`` is a column whose different values are counted.
    """
    ibis = ibis_module()
    engine = columns.engine_of(table)
    for option, name in (*(("by", name) for name in by), ("user", user)):
        columns.check_column(table, option, name, engine)
    for condition in where:
        table = table.filter(columns.condition(table, condition, engine, collated))
    names = [columns.column_text(table[name], engine, collated) for name in by]
    chosen = {GROUP: ibis.literal(TOTAL) if not names else names[0], USER: table[user]}
    if len(names) > 1:
        chosen[GROUP] = _joined(names)
    if text is not None:
        chosen[VALUE] = columns.column_text(table[text], engine, collated)
    if measure is not None and measure.column is not None:
        columns.check_column(table, "column", measure.column, engine)
        chosen[VALUE] = grid_units(table[measure.column], measure, engine)
        if measure.kind == "sum":  # before clipping, to estimate what clipping removes
            wide = replace(measure, low=-MOST_UNITS, high=MOST_UNITS)
            chosen[WIDE] = grid_units(table[measure.column], wide, engine)
    return table.select(**chosen)


def pair_columns(table: Any, by: str, user: str, *, collated: bool = False) -> Any:
    """Return the columns of one group and one user under our names."""
    return select(table, [by], user, collated=collated)


def _joined(names: list[Any]) -> Any:
    """Several names as one text; NULL if one of them is, or holds the separator."""
    whole = names[0]
    for name in names[1:]:
        whole = whole + columns.SEPARATOR + name
    clean = names[0].notnull()
    for name in names:
        clean = clean & name.notnull() & ~name.contains(columns.SEPARATOR)
    return clean.ifelse(whole, ibis_module().null("string"))


def grid_units(column: Any, measure: Measure, engine: str) -> Any:
    """Return values in grid units, clipped to the bounds; what is no number is NULL."""
    ibis = ibis_module()
    value = columns.finite_column(column, engine, "column")
    edge = 2.0**60 * float(measure.grid)  # before the division, so that nothing overflows
    # Not clip: on some engines that repeats its input, so that nested ones grow exponentially.
    known = between(value.fill_null(0.0), -edge, edge)
    scaled = (known / float(measure.grid) + 0.5).floor().cast("int64")
    units = between(scaled, measure.low, measure.high)  # bounds are whole numbers, so is the type
    return value.notnull().ifelse(units, ibis.null("int64"))


def between(value: Any, low: Any, high: Any) -> Any:
    """A value that is not NULL, clipped."""
    ibis = ibis_module()
    return ibis.greatest(ibis.literal(low), ibis.least(ibis.literal(high), value))


def new_salt(randomness: Randomness) -> str:
    """Return a fresh salt of 128 bits as text."""
    return f"{randomness.bits(128):032x}"


def usable(rows: Any, measure: Measure, keys: Sequence[str] | None) -> Any:
    """Return the rows that may count: with a user, a listed group and, where needed, a value."""
    rows = rows.filter(rows[GROUP].notnull() & rows[USER].notnull())
    if measure.column is not None:
        rows = rows.filter(rows[VALUE].notnull())
    return rows if keys is None else _only(rows, keys)


def pair_sums(
    rows: Any,
    measure: Measure,
    keys: Sequence[str] | None,
    *,
    collated: bool = True,
    numbered: bool = False,
    part: tuple[int, int] | None = None,
) -> Any:
    """Return one row per user and group with the number of rows, or the sums before the cap.

    These do not depend on caps of rows and amounts: such caps are chosen from them. With
    ``numbered`` DuckDB has numbers in place of listed groups, which take less time and memory;
    :func:`totals` then needs the same keys. ``part`` is a number k and a number n of parts: only
    the users of the k-th part, by a hash.
    """
    names = _numbers(rows, keys) if numbered else None
    rows = usable(rows, measure, keys if names is None else None)
    if names is not None:
        others = [name for name in rows.columns if name != GROUP]
        rows = rows.join(names, rows[GROUP] == names[_NAME])
        rows = rows.select(*others, **{GROUP: rows[_NUMBER]})
    rows = one_text_per_user(rows, collated)
    if part is not None:
        rows = part_of_users(rows, *part)
    if measure.kind == "users":
        return rows.select(USER, GROUP).distinct()
    if measure.kind == "rows":
        return rows.group_by([USER, GROUP]).aggregate(**{_WHOLE[0]: rows.count()})
    return rows.group_by([USER, GROUP]).aggregate(
        **{FIRST_SUM: integer_sum(rows[VALUE]), _WHOLE[0]: integer_sum(rows[WIDE])}
    )


def part_of_users(rows: Any, number: int, parts: int) -> Any:
    """The rows of one part of the users, for DuckDB: less memory at a time.

    ``parts`` is a power of two: hashes may be negative, so that a remainder would lose some.
    """
    return rows.filter(rows[USER].hash() & (parts - 1) == number)


def clipped(pairs: Any, measure: Measure) -> Any:
    """Return the pairs of :func:`pair_sums` with what counts of them; see :func:`measured`."""
    ibis = ibis_module()
    if measure.kind == "users":
        return pairs
    if measure.kind == "rows":
        kept = ibis.least(pairs[_WHOLE[0]], ibis.literal(measure.rows)).cast("int64")
        return pairs.mutate(**{FIRST_SUM: kept, _KEPT[0]: kept, _GAP[0]: pairs[_WHOLE[0]] - kept})
    assert measure.amount is not None
    kept, wide = between(pairs[FIRST_SUM], -measure.amount, measure.amount), pairs[_WHOLE[0]]
    shown = {FIRST_SUM: kept, _KEPT[0]: kept.abs(), _GAP[0]: (wide - kept).abs()}
    return pairs.mutate(**shown, **{_WHOLE[0]: wide.abs()})


def measured(
    rows: Any, measure: Measure, keys: Sequence[str] | None, salt: str, *, collated: bool = True
) -> Any:
    """Return one row per user and group, of usable rows, with what the user contributes there.

    Also: how much that keeps (``_KEPT``), and how much is removed if the pair is kept (``_GAP``)
    or not (``_WHOLE``). Where users are counted every pair is worth 1, and has none of these.
    ``collated`` says that equal users may be written differently (a collation, −0.0).
    """
    if measure.kind in ("users", "rows") or measure.amount is not None:
        return clipped(pair_sums(rows, measure, keys, collated=collated), measure)
    rows = numbered_rows(rows, measure, keys, salt, collated=collated)
    kept, value = rows[ROW_RANK] < measure.rows, rows[VALUE]
    sums = {}
    if measure.kind == "mean":
        for name, parts, part in (
            (FIRST_SUM, 0, value - measure.low),
            (_SECOND, 1, measure.high - value),
        ):
            sums[name] = sums[_KEPT[parts]] = kept.ifelse(part, 0)
            sums[_WHOLE[parts]], sums[_GAP[parts]] = part, kept.ifelse(0, part)
    else:
        wide = rows[WIDE]
        sums[FIRST_SUM], sums[_KEPT[0]] = kept.ifelse(value, 0), kept.ifelse(value.abs(), 0)
        sums[_WHOLE[0]], sums[_GAP[0]] = wide.abs(), (wide - kept.ifelse(value, 0)).abs()
    return rows.group_by([USER, GROUP]).aggregate(
        **{name: integer_sum(part) for name, part in sums.items()}
    )


def numbered_rows(
    rows: Any, measure: Measure, keys: Sequence[str] | None, salt: str, *, collated: bool
) -> Any:
    """Return the usable rows, and which number each of a user's rows in a group has, from 0 on."""
    ibis = ibis_module()
    rows = one_text_per_user(usable(rows, measure, keys), collated)
    # Rows that are clipped to one value differ in what is clipped, which the gap tells: without an
    # order among them the engine would choose, by what else there is to sort.
    apart = [VALUE, WIDE] if measure.kind == "sum" else [VALUE]
    alike = ibis.window(group_by=[USER, GROUP, VALUE], order_by=apart)
    rows = rows.mutate(**{_OCCURRENCE: ibis.row_number().over(alike).cast("string")})
    order = [salted_hash(rows, [USER, GROUP, VALUE, _OCCURRENCE], salt), rows[VALUE]]
    return _ranked(rows, [USER, GROUP], order)


def _numbers(rows: Any, keys: Sequence[str] | None) -> Any:
    """The listed groups and their numbers, in the order of their names; None where names are used.

    One group needs no numbers, and what is not Unicode has none.
    """
    ibis = ibis_module()
    if keys is None or len(keys) < 2 or ibis.get_backend(rows).name != "duckdb":
        return None
    try:
        listed = sorted(keys, key=str.encode)  # as DuckDB sorts them
    except UnicodeEncodeError:
        return None
    kinds = {_NAME: "string", _NUMBER: "int32"}
    return ibis.memtable({_NAME: listed, _NUMBER: range(len(listed))}, schema=kinds)


def totals(
    pairs: Any,
    most: int | None,
    salt: str,
    limit: int | None = None,
    keys: Sequence[str] | None = None,
) -> Any:
    """Return the query for one row per group: sums over the pairs that the cap keeps.

    With a ``limit`` a row without a group is added: what is kept and removed in all, at most that
    much per user. Sums are those of all pairs less those of the pairs that the cap drops, so that
    only users above the cap are hashed and sorted.
    """
    cut = None if most is None else dropped(pairs, most, salt, keys)
    groups = group_totals(pairs, cut, keys)
    return (
        groups if limit is None else _with_amounts(groups, capped_amounts(pairs, cut, most, limit))
    )


def group_totals(pairs: Any, cut: Any, keys: Sequence[str] | None = None) -> Any:
    """Return the query for the sums per group over all pairs less the pairs that are ``cut``."""
    names = [name for name in (FIRST_SUM, _SECOND) if name in pairs.columns]
    signed = pairs.select(GROUP, *names, **{USERS_COUNTED: literal64(1)})
    if cut is not None:
        less = {name: -cut[name] for name in names}
        less[USERS_COUNTED] = cut[USERS_COUNTED] if USERS_COUNTED in cut.columns else literal64(-1)
        signed = ibis_module().union(signed, cut.select(GROUP, **less))
    groups = signed.group_by(GROUP).aggregate(
        **{name: integer_sum(signed[name]) for name in [*names, USERS_COUNTED]}
    )
    if not names:  # every pair is worth 1
        groups = groups.mutate(**{FIRST_SUM: groups[USERS_COUNTED]})
    if not pairs[GROUP].type().is_integer():
        return groups
    listed = _numbers(pairs, keys)
    named = groups.join(listed, groups[GROUP] == listed[_NUMBER])
    others = [name for name in groups.columns if name != GROUP]
    return named.select(**{GROUP: named[_NAME]}, **{name: named[name] for name in others})


def capped_amounts(pairs: Any, cut: Any, most: int | None, limit: int, users: Any = None) -> Any:
    """Return the query for what is kept and removed in all, at most ``limit`` per user."""
    ibis = ibis_module()
    if FIRST_SUM not in pairs.columns:  # every pair is worth 1: sizes say how many are kept
        sizes, last = (
            users_of(pairs) if users is None else users,
            MOST_UNITS if most is None else most,
        )
        kept = ibis.least(sizes[GROUPS_HELD], ibis.literal(min(last, limit)))
        gap = between(sizes[GROUPS_HELD] - last, 0, limit)
        return sizes.aggregate(**{_KEPT[0]: integer_sum(kept), _GAP[0]: integer_sum(gap)})
    parts = 2 if _SECOND in pairs.columns else 1
    kept, gaps = _KEPT[:parts], _GAP[:parts]
    signed = pairs.select(USER, *kept, *gaps)
    if cut is not None:
        less = {name: -cut[name] for name in kept}
        less |= {gap: cut[_WHOLE[part]] - cut[gap] for part, gap in enumerate(gaps)}
        signed = ibis.union(signed, cut.select(USER, **less))
    users = signed.group_by(USER).aggregate(
        **{name: integer_sum(signed[name]) for name in (*kept, *gaps)}
    )
    limited = _limited(users, kept, limit) | _limited(users, gaps, limit)
    return users.aggregate(**{name: integer_sum(amount) for name, amount in limited.items()})


def users_of(pairs: Any) -> Any:
    """Return one row per user: the number of groups, and the most rows (or largest sum) in one."""
    own = [name for name in (FIRST_SUM, _WHOLE[0]) if name in pairs.columns]  # none: users only
    most = {LARGEST_HELD: pairs[own[0]].abs().max()} if own else {}
    return pairs.group_by(USER).aggregate(**{GROUPS_HELD: pairs.count()}, **most)


def dropped(
    pairs: Any, most: int, salt: str, keys: Sequence[str] | None = None, users: Any = None
) -> Any:
    """Return the pairs that a cap drops: none of a user who is in at most ``most`` groups.

    Which ones depends on the user's own groups and the salt only. ``users`` are those of
    :func:`users_of`, if they are known already.
    """
    sizes = users_of(pairs) if users is None else users
    above = pairs.semi_join(sizes.filter(sizes[GROUPS_HELD] > most), USER)
    above, order = ordered_by_hash(above, salt, keys)
    ranked = _ranked(above, USER, order)
    return ranked.filter(ranked[ROW_RANK] >= most).select(*pairs.columns)


def ordered_by_hash(pairs: Any, salt: str, keys: Sequence[str] | None) -> tuple[Any, list[Any]]:
    """The pairs, and the order of a user's groups by a salted hash of their names."""
    name = GROUP
    if pairs[GROUP].type().is_integer():
        listed, name = _numbers(pairs, keys), _NAME
        pairs = pairs.join(listed, pairs[GROUP] == listed[_NUMBER])
    return pairs, [salted_hash(pairs, [USER, name], salt), pairs[GROUP]]


def literal64(value: int) -> Any:
    """A whole number of 64 bits."""
    return ibis_module().literal(value, "int64")


def _ranked(pairs: Any, by: str | list[str], order: list[Any]) -> Any:
    """The rows with their rank, from 0, among those that are alike in ``by``."""
    ibis = ibis_module()
    rank = ibis.row_number().over(ibis.window(group_by=by, order_by=order))
    return pairs.mutate(**{ROW_RANK: rank})


def _with_amounts(groups: Any, sums: Any) -> Any:
    """The totals and, in a row without a group, the amounts of all users together."""
    ibis, own, zero = ibis_module(), groups.columns[1:], literal64(0)
    added = sums.mutate(**{GROUP: ibis.null("string")}, **dict.fromkeys(own, zero))
    groups = groups.mutate(**dict.fromkeys(sums.columns, zero))
    return ibis.union(groups, added.select(*groups.columns))


def integer_sum(numbers: Any) -> Any:
    """A sum as a number of 64 bits, which holds it (:data:`MOST_UNITS`); 0 for no rows."""
    from ibis.expr import operations

    engine = ibis_module().get_backend(numbers)
    if engine.name == "duckdb" and numbers.type().is_integer() and _sums_in_64_bits(engine):
        return _sum_in_64_bits(numbers).fill_null(0)
    # Ibis leaves out a cast that it thinks superfluous: DuckDB's sums have 128 bits.
    return operations.Cast(numbers.sum().fill_null(0), "int64").to_expr()


def _sum_in_64_bits(numbers: Any) -> Any:
    """DuckDB's sum with a state of 64 bits: a third of the time and memory of a grouping less."""
    return ibis_module().udf.agg.builtin(
        lambda number: None, name=_NARROW_SUM, signature=(("int64",), "int64")
    )(numbers.cast("int64"))


def _sums_in_64_bits(engine: Any) -> bool:
    """Whether this version of DuckDB has that sum: it is not among its documented functions."""
    if _NARROW_SUM not in vars(engine):
        try:
            told = engine.raw_sql(f"SELECT {_NARROW_SUM}(9007199254740993)").fetchall()
            vars(engine)[_NARROW_SUM] = told == [(9007199254740993,)]
        except Exception:
            vars(engine)[_NARROW_SUM] = False
    return bool(vars(engine)[_NARROW_SUM])


def distinct_totals(
    rows: Any,
    measure: Measure,
    keys: Sequence[str] | None,
    most: int | None,
    salt: str,
    *,
    limit: int | None = None,
    collated: bool = True,
) -> Any:
    """Return the query for the number of different values per group, as :func:`totals` does.

    Each user keeps at most ``measure.rows`` of their different values in a group: those with the
    smallest hash of (salt, user, group, value), and at most ``most`` groups. The value of a group
    is the size of the union of what its users keep. *Sensitivity.* What the others keep does not
    depend on a user, and a set of at most r elements adds 0 to r elements to a union: so a user
    changes at most m values by at most r each.

    What the caps remove is told in values, too: with a ``limit`` each user shows at most that many
    of the pairs (group, value) that are kept, and as many of those that are not. Kept are the pairs
    that somebody shows as kept, removed are the other ones that are shown. A user changes either
    number by at most ``limit``. (In rows a value that few persons have is as nothing, and the union
    may consist of such values.) Test: ``tests/analytics/test_sql_distinct.py``.
    """
    ibis = ibis_module()
    rows = one_text_per_user(usable(rows, measure, keys), collated)
    rows = rows.filter(rows[VALUE].notnull()).select(USER, GROUP, VALUE).distinct()
    plain = totals(measured(rows, measure, None, salt, collated=False), most, salt)
    value_order = [salted_hash(rows, [USER, GROUP, VALUE], salt), rows[VALUE]]
    inside = ibis.window(group_by=[USER, GROUP], order_by=value_order)
    group_order = [salted_hash(rows, [USER, GROUP], salt), rows[GROUP]]
    ranks = {
        ROW_RANK: ibis.row_number().over(inside),
        _OCCURRENCE: ibis.dense_rank().over(ibis.window(group_by=USER, order_by=group_order)),
    }
    rows = rows.mutate(**ranks)
    fits = rows[ROW_RANK] < measure.rows
    if most is not None:
        fits = fits & (rows[_OCCURRENCE] < most)
    rows = rows.mutate(**{_KEPT[0]: fits.ifelse(1, 0)})
    kept = rows.filter(rows[_KEPT[0]] == 1)
    sizes = (
        kept.select(GROUP, VALUE)
        .distinct()
        .group_by(GROUP)
        .aggregate(**{GROUPS_HELD: ibis._.count()})
    )
    sizes = sizes.rename(**{_SIZED: GROUP})
    joined = plain.left_join(sizes, plain[GROUP] == sizes[_SIZED])
    groups = joined.select(
        plain[GROUP],
        plain[USERS_COUNTED],
        **{FIRST_SUM: sizes[GROUPS_HELD].fill_null(0).cast("int64")},
    )
    if limit is None:
        return groups
    order = [salted_hash(rows, [USER, GROUP, VALUE], salt), rows[VALUE], rows[GROUP]]
    shown = _ranked(rows.drop(ROW_RANK), [USER, _KEPT[0]], order)
    shown = shown.filter(shown[ROW_RANK] < limit).group_by([GROUP, VALUE])
    pairs = shown.aggregate(**{_KEPT[0]: ibis._[_KEPT[0]].max()})
    numbers = {_KEPT[0]: pairs[_KEPT[0]], _GAP[0]: 1 - pairs[_KEPT[0]]}
    return _with_amounts(
        groups, pairs.aggregate(**{n: integer_sum(one) for n, one in numbers.items()})
    )


def _limited(users: Any, names: Sequence[str], limit: int) -> dict[str, Any]:
    """The amounts of a user in all groups, at most ``limit`` together.

    Two amounts that are too large are scaled; the factor is a little below the quotient, so that
    no rounding leads above the limit.
    """
    ibis = ibis_module()
    if len(names) == 1:
        return {names[0]: ibis.least(users[names[0]], ibis.literal(limit))}
    both = users[names[0]] + users[names[1]]
    factor = limit * (1 - 1e-9) / ibis.greatest(both, ibis.literal(1)).cast("float64")
    return {
        name: (both <= limit).ifelse(
            users[name], (users[name].cast("float64") * factor).floor().cast("int64")
        )
        for name in names
    }


def run_totals(query: Any) -> GroupValues:
    """Run a query of :func:`totals`; groups come back in the order of their names."""
    return _group_values(fetch(query))


def run_several_totals(queries: Sequence[Any]) -> list[GroupValues]:
    """Run several queries of :func:`totals` as one statement, so that an engine reads once."""
    ibis = ibis_module()
    names = list(
        dict.fromkeys(name for query in queries for name in query.columns if name != GROUP)
    )
    zero = ibis.literal(0, "int64")
    tagged = [
        query.select(
            GROUP,
            **{name: query[name] if name in query.columns else zero for name in names},
            **{_PART: ibis.literal(number, "int64")},
        )
        for number, query in enumerate(queries)
    ]
    sums = fetch(ibis.union(*tagged) if len(tagged) > 1 else tagged[0])
    values = []
    for number, query in enumerate(queries):
        rows = [row for row, part in enumerate(sums[_PART]) if part == number]
        own = [GROUP, *(name for name in names if name in query.columns)]
        values.append(_group_values({name: [sums[name][row] for row in rows] for name in own}))
    return values


def _group_values(sums: dict[str, list[Any]]) -> GroupValues:
    """The values of groups from the columns of a query."""
    listed = [row for row, group in enumerate(sums[GROUP]) if group is not None]
    order = sorted(listed, key=lambda row: str(sums[GROUP][row]))

    def column(name: str) -> npt.NDArray[np.int64]:
        return np.array([int(sums[name][row]) for row in order], dtype=np.int64)

    return GroupValues(
        tuple(str(sums[GROUP][row]) for row in order),
        column(FIRST_SUM),
        column(_SECOND) if _SECOND in sums else None,
        column(USERS_COUNTED),
        *amounts_of(sums),
    )


def amounts_of(sums: dict[str, list[Any]]) -> list[tuple[int, ...]]:
    """What is kept, and what is removed, from the columns of a query."""
    return [tuple(sum(map(int, sums[name])) for name in some if name in sums) for some in _AMOUNTS]


def _only(rows: Any, keys: Sequence[str]) -> Any:
    """The rows of the listed groups: others must not use up a user's cap."""
    ibis = ibis_module()
    if len(keys) < _MANY_KEYS or ibis.get_backend(rows).name != "duckdb":
        return rows.filter(rows[GROUP].isin(list(keys)))
    return rows.semi_join(ibis.memtable({GROUP: list(keys)}), GROUP)


def one_text_per_user(rows: Any, collated: bool) -> Any:
    """The rows with one text per user, also where equal users are written differently.

    Before rows are merged: which of several spellings is left then is the engine's choice.
    """
    user, engine = rows[USER], ibis_module().get_backend(rows).name
    if user.type().is_integer() or (user.type().is_string() and not collated):
        return rows
    text = user if user.type().is_string() else user.cast("string")
    whole = columns.byte_by_byte(text, engine).min().over(ibis_module().window(group_by=USER))
    return rows.mutate(**{USER: whole})


def salted_hash(rows: Any, names: list[str], salt: str) -> Any:
    """MD5 of the salt and some columns: any hash will do for privacy, see above."""
    ibis = ibis_module()
    text = ibis.literal(salt)
    for name in names:
        text = text + "\x1f" + rows[name].cast("string")
    engine = ibis.get_backend(rows).name
    if engine == "postgres":  # bytes: a text would be sorted by the collation of the database
        utf8 = _builtin("convert_to", ("string", "string"), "binary")(text, "UTF8")
        return _builtin("decode", ("string", "string"), "binary")(
            _first(_builtin("md5", ("binary",), "string")(utf8)), "hex"
        )
    if engine in ("duckdb", "pyspark"):
        return _first(_builtin("md5", ("string",), "string")(text))
    return text.hash()


def _first(digits: Any) -> Any:
    """The first digits of a hash; Ibis' own ``left`` would compute the hash twice."""
    return _builtin("left", ("string", "int64"), "string")(digits, _HASH)


def _builtin(name: str, inputs: tuple[str, ...], output: str) -> Any:
    """A function of the engine; Ibis wants a Python function to read the parameters from."""
    shape = (lambda value: None) if len(inputs) == 1 else (lambda value, how: None)
    return ibis_module().udf.scalar.builtin(shape, name=name, signature=(inputs, output))
