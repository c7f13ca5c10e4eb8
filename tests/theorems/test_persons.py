"""Persons with many rows: every tiny table and every neighbour, through the shipped functions.

A table has three persons; each has a multiset of at most three rows of a small alphabet, an empty
row and an odd one among them, and at most two of them count. Neighbours differ in *all* rows of one
person. For every pair: what others keep does not change; the clipped sum of a step changes by at
most the clip, for every weight vector; the counts of held-out persons change by between 0 and c, in
one direction; so the law of a search has log ratios within its level, in both directions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from expost.selection.held_out import SHARES, rates_of
from expost.training.lattice_rows import ROW_BITS
from expost.training.progressive import RESIDUAL_BITS, LinearTraining, TrainingRows, on_lattice
from expost.training.second_moments import SecondMoments
from expost.tuning.model.scoring import Score
from expost.tuning.request.settings import GoalSettings
from expost.tuning.rows.job_columns import PersonRows
from tests.selection.test_held_out import below, noise_law

MOST = 2
ALPHABET = [((1.0, 0.0), 0.0), ((0.6, 0.8), 1.0), ((0.0, 1.0), 0.0), ((0.0, 0.0), math.nan)]
OTHERS = [("b", ALPHABET[0]), ("b", ALPHABET[1]), ("b", ALPHABET[2]), ("c", ALPHABET[1])]
WEIGHTS = [on_lattice(np.array([[a], [b]])) for a, b in ((0, 0), (3, -2), (-9, 5))]
TRAINING = LinearTraining("logistic", 2, 3)
MOMENTS = SecondMoments(2, together=MOST)


def tables() -> list[list[tuple[str, Any]]]:
    """Every multiset of up to three rows of the person "a"; without a row, an empty one."""
    rows = [combo for size in (1, 2, 3) for combo in combinations_with_replacement(ALPHABET, size)]
    return [[("a", row) for row in combo] + OTHERS for combo in rows]


def kept(table: list[tuple[str, Any]], of: Any = PersonRows.of) -> PersonRows:
    X = np.array([row[0] for _, row in table])
    y = np.array([row[1] for _, row in table])
    users = np.array([name for name, _ in table], dtype=object)
    return of(X, y, users, MOST)  # type: ignore[no-any-return]


def gradient(persons: PersonRows, weights: Any) -> list[Fraction]:
    rows = TrainingRows.of(persons.rows, persons.labels, TRAINING, shares=persons.shares / SHARES)
    unit = Fraction(1, 2 ** (ROW_BITS + RESIDUAL_BITS))
    return [int(value) * unit for value in rows.gradient_sum(weights, TRAINING).ravel()]


def largest_move(of: Any = PersonRows.of) -> float:
    """The most by which a neighbour moves the sum of a step, over all pairs of tables."""
    worst = Fraction(0)
    for weights in WEIGHTS:
        sums = [gradient(kept(table, of), weights) for table in tables()]
        for one, two in product(sums, repeat=2):
            worst = max(worst, sum((a - b) ** 2 for a, b in zip(one, two, strict=True)))
    return math.sqrt(worst)


def blank_move(of: Any = PersonRows.of) -> float:
    """The most by which a person moves the sum who is present in one table and blank in another."""
    worst = Fraction(0)
    for weights in WEIGHTS:
        blank = gradient(kept([("a", ALPHABET[3]), *OTHERS], of), weights)
        for table in tables():
            sums = gradient(kept(table, of), weights)
            worst = max(worst, sum((a - b) ** 2 for a, b in zip(sums, blank, strict=True)))
    return math.sqrt(worst)


def others_move(of: Any = PersonRows.of) -> bool:
    """Whether what "b" and "c" keep, or with which shares, depends on the rows of "a"."""

    def others(table: Any) -> Any:
        persons = kept(table, of)
        some = persons.codes > 0
        parts = persons.rows[some], persons.labels[some], persons.shares[some]
        return [np.nan_to_num(part, nan=-1).tolist() for part in parts]

    first, *rest = tables()
    return any(others(table) != others(first) for table in rest)


def test_what_others_keep_does_not_depend_on_a_person():
    assert not others_move()
    persons = kept(tables()[0])
    assert [int(persons.shares[persons.codes == code].sum()) for code in range(3)] == [SHARES] * 3


def test_a_person_moves_the_sum_of_a_step_by_at_most_the_clip():
    """Present or blank: the clip, and nearly so for a person whose rows agree."""
    assert 0.999 * TRAINING.clip < blank_move() <= TRAINING.clip
    assert blank_move() <= TRAINING.sensitivity


def test_second_moments_move_by_at_most_their_sensitivity():
    blank = kept([("a", ALPHABET[3]), *OTHERS])

    def sums(persons: PersonRows) -> Any:
        return MOMENTS.sums(persons.rows, persons.labels, persons.shares / SHARES)

    moves = [float(np.linalg.norm(sums(kept(table)) - sums(blank))) for table in tables()]
    assert 0.9 * MOMENTS.sensitivity < max(moves) <= MOMENTS.sensitivity


def counts(persons: PersonRows, score: Score) -> tuple[int, ...]:
    """The counts of three looks: models that say 0, 1, and 1 where the second number is large."""
    looks = [np.zeros(len(persons.labels)), np.ones(len(persons.labels)), persons.rows[:, 1] > 0.5]
    return tuple(
        score.sum_of(look.astype(np.int64), persons.labels, persons.shares) for look in looks
    )


@pytest.mark.parametrize("centred", [False, True])
def test_the_law_of_a_search_is_within_its_level_in_both_directions(centred):
    """Held-out persons: the noisy count at which a search ends, by enumeration of its law."""
    score = Score(GoalSettings("accuracy", 0.5), None, centred=centred, shares=SHARES)
    blank = [("a", ALPHABET[3]), *OTHERS]
    before = counts(kept(OTHERS if centred else blank), score)  # add-remove, or zero-out
    levels, c = (0.4, 0.5, 0.9), score.sensitivity
    rates = rates_of(levels, monotone=not centred)
    thresholds = [count + c // 2 for count in before]
    largest = 0.0
    for table in tables():
        after = counts(kept(table), score)
        changes = [b - a for a, b in zip(before, after, strict=True)]
        if centred:
            assert all(abs(change) <= c for change in changes)
        else:
            assert all(0 <= change <= c for change in changes)
        alive = [0.0, 0.0]
        for look, rate in enumerate(rates):
            for noisy in range(thresholds[look] - 3 * c, thresholds[look] + 3 * c, c // 7):
                if noisy < thresholds[look] and look < len(rates) - 1:
                    continue  # the search goes on
                one, two = (
                    alive[side] + math.log(noise_law(rate, c, noisy - count[look]))
                    for side, count in enumerate((before, after))
                )
                assert abs(one - two) <= levels[look] * (1 + 1e-9)
                largest = max(largest, abs(one - two) / levels[look])
            for side, count in enumerate((before, after)):
                alive[side] += math.log(below(rate, c, thresholds[look] - count[look]))
    assert largest > 0.9  # the price is not far from the worst person


def without_shares(*arguments: Any) -> PersonRows:
    """Mutant: every row counts in full."""
    persons = PersonRows.of(*arguments)
    full = np.full_like(persons.shares, SHARES)
    return PersonRows(persons.rows, persons.labels, full, persons.codes, persons.names)


def without_a_cap(rows: Any, labels: Any, users: Any, most: int) -> PersonRows:
    """Mutant: shares are those of ``most`` rows, but all rows count."""
    persons = PersonRows.of(rows, labels, users, 100)
    even = np.full_like(persons.shares, SHARES // most)
    return PersonRows(persons.rows, persons.labels, even, persons.codes, persons.names)


def by_number(rows: Any, labels: Any, users: Any, most: int) -> PersonRows:
    """Mutant: which rows a person keeps depends on where they stand among all rows."""
    order = np.argsort(np.arange(len(users)) * 5 % 7, kind="stable")
    before = [int((users[order[:place]] == users[row]).sum()) for place, row in enumerate(order)]
    first = order[np.array(before) < most]
    return PersonRows.of(rows[first], labels[first], users[first], most)


@pytest.mark.parametrize("mutant", [without_shares, without_a_cap])
def test_mutants_that_count_too_much_are_noticed(mutant):
    assert blank_move(mutant) > TRAINING.clip * 1.05


def test_a_mutant_that_numbers_all_rows_is_noticed():
    assert others_move(by_number)


def test_replacing_a_person_moves_the_sum_by_more():
    """Which is why the relation is present or blank, as for rows."""
    assert TRAINING.clip * 1.05 < largest_move() <= 2 * TRAINING.clip
