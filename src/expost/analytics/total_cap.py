"""A cap on what a person adds to all groups together, applied inside the engine.

**The cap.** Let x_g ≥ 0 be what a person has in group g (rows, or the sum without its sign) and t =
Σ x_g. A person with t ≤ C keeps everything. Others keep the part C/t of every group, in whole
units: their groups are put in the order of a salted hash, and of a group that raises the running
sum from a to a + x_g they keep ⌊(a + x_g)·C/t⌋ − ⌊a·C/t⌋, which is x_g·C/t to within one unit.

*Sensitivity.* What is kept depends on the person's own rows and the salt only. The differences
telescope: with f = C/t in floating point and ⌊fl(a·f)⌋, which never falls as a grows, they are at
least 0 and add up to ⌊fl(t·f)⌋ ≤ C (C ≤ 2³¹, so that rounding cannot lead to C + 1). So one person
changes the values of all groups by k_g with **Σ|k_g| ≤ C**.

*Charge.* The noise path of a group has noise for a change of C (``Measure.sensitivity``). A path at
cost ε_g is a function of its finest look and of coins, and discrete Laplace noise of scale C/ε_g
hides a change of k_g at a loss of |k_g|·ε_g/C; in ρ, of independent discrete Gaussian releases, it
is k_g²·ρ_g/C². Both sums are at most **the largest cost of a group**, because Σ|k_g| ≤ C and Σk_g²
≤ C². So the refinement charges as if a person were in one group (m = 1), wherever their rows are.

Compared with caps of m groups and r rows in each, C = m·r keeps at least as much with the same
noise, and a person with all rows in one group needs no cap for m such groups.
Tests: ``tests/analytics/test_total_cap.py`` (both neighbours, enumeration of the loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from expost.analytics.contribution import (
    FIRST_SUM,
    GROUP,
    USER,
    USERS_COUNTED,
    WHOLE_SUM,
    Measure,
    between,
    group_totals,
    integer_sum,
    literal64,
    ordered_by_hash,
)
from expost.tables.typed_columns import fetch, ibis_module

_TOTAL, _BEYOND, _SUM, _PART = "expost_total", "expost_beyond", "expost_sum", "expost_factor"


def user_amounts(pairs: Any) -> Any:
    """Return one row per user of the pairs of ``pair_sums``: what is in all groups together.

    And by how much the bounds of a value changed the sums: Σ |sum without bounds − sum|.
    """
    whole = pairs[WHOLE_SUM]
    if FIRST_SUM not in pairs.columns:  # rows
        amounts = {_TOTAL: integer_sum(whole), _BEYOND: literal64(0)}
    else:
        first = pairs[FIRST_SUM]
        amounts = {
            _TOTAL: integer_sum(first.abs()),
            _BEYOND: integer_sum((whole - first).abs()),
        }
    return pairs.group_by(USER).aggregate(**amounts)


def ladder_amounts(
    users: Any, steps: Sequence[int], caps: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the amount of all users between each step and the one before, and what bounds clip.

    The latter with at most each of ``caps`` a user. Both are private.
    """
    total, beyond = users[_TOTAL], users[_BEYOND]
    sums = {
        f"step_{number}": integer_sum(between(total - low, 0, high - low))
        for number, (low, high) in enumerate(zip([0, *steps], steps, strict=False))
    }
    sums |= {
        f"clipped_{number}": integer_sum(between(beyond, 0, cap)) for number, cap in enumerate(caps)
    }
    told = {name: int(column[0]) for name, column in fetch(users.aggregate(**sums)).items()}
    return (
        tuple(told[f"step_{number}"] for number in range(len(steps))),
        tuple(told[f"clipped_{number}"] for number in range(len(caps))),
    )


def capped_totals(
    pairs: Any, users: Any, measure: Measure, salt: str, keys: Sequence[str] | None
) -> Any:
    """Return the query for one row per group: what is kept of pairs of ``pair_sums``.

    Sums are those of all pairs less what is cut, so that only users above the cap are hashed.
    """
    cap = measure.sensitivity
    if measure.kind == "rows":
        pairs = pairs.mutate(**{FIRST_SUM: pairs[WHOLE_SUM]})
    above = users.filter(users[_TOTAL] > cap).select(USER, _TOTAL)
    above = above.mutate(**{_PART: cap / above[_TOTAL].cast("float64")})
    above = above.select(USER, _PART)
    cut = pairs.select(USER, GROUP, FIRST_SUM).join(above, USER)
    cut, order = ordered_by_hash(cut, salt, keys)
    ibis = ibis_module()
    size = cut[FIRST_SUM].abs()
    window = ibis.window(group_by=USER, order_by=order, preceding=None, following=0)
    cut = cut.mutate(**{_SUM: size.sum().over(window).cast("int64")})

    def floor(amount: Any) -> Any:
        return (amount.cast("float64") * cut[_PART]).floor().cast("int64")

    size = cut[FIRST_SUM].abs()
    kept = floor(cut[_SUM]) - floor(cut[_SUM] - size)
    signed = (cut[FIRST_SUM] < 0).ifelse(-kept, kept)
    cut = cut.select(GROUP, **{FIRST_SUM: cut[FIRST_SUM] - signed, USERS_COUNTED: literal64(0)})
    return group_totals(pairs.select(USER, GROUP, FIRST_SUM), cut, keys)
