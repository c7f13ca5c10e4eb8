"""The joint law of a tree of draws, by enumeration of all draws, in both directions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost import SimulationRandomness
from expost.analytics import quantile_search
from expost.analytics.quantile_search import (
    CellCounts,
    LearnedMeasure,
    Source,
    base_measure,
    distance_bound,
    draw_cell,
    search,
    tree_levels,
)

LAST = 3  # cells 0 … 3
HALF = Fraction(1, 2)
THREE = (Fraction(1, 4), HALF, Fraction(3, 4))


class Undecided(Exception):
    """The search wants a draw that has not been decided on; the arguments are its chances."""


class Script:
    """Decides draws as written, and keeps the probability of all of them."""

    def __init__(self, decisions: list[int]) -> None:
        self.decisions, self.used, self.chance = decisions, 0, 1.0

    def decide(self, chances: list[float]) -> int:
        if self.used == len(self.decisions):
            raise Undecided(chances)
        chosen = self.decisions[self.used]
        self.used += 1
        self.chance *= chances[chosen]
        return chosen

    def below(self, bound: int) -> int:
        return self.decide([1 / bound] * bound)


def rows_of(*cells: int) -> CellCounts:
    values, counts = np.unique(np.array(cells, dtype=np.int64), return_counts=True)
    return CellCounts(values, counts.astype(np.int64))


def choose(masses: Any, distances: Any, rate: Fraction, script: Any) -> int:
    weights = [m * math.exp(-float(rate) * d) for m, d in zip(masses, distances, strict=True)]
    return script.decide([weight / sum(weights) for weight in weights])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit of mass per cell, and draws that are decided by a script where one is passed."""
    exact = quantile_search.weighted_choice

    def chosen(masses: Any, distances: Any, rate: Fraction, source: Any) -> int:
        return (choose if isinstance(source, Script) else exact)(masses, distances, rate, source)

    monkeypatch.setattr(quantile_search, "weighted_choice", chosen)
    monkeypatch.setattr(
        quantile_search, "base_measure", lambda low, high: np.arange(high - low + 2)
    )


def law(run: Callable[[Any], Any]) -> dict[Any, float]:
    """The probability of every result of a function of a script."""
    chances: dict[Any, float] = defaultdict(float)
    pending: list[list[int]] = [[]]
    while pending:
        decisions = pending.pop()
        script = Script(decisions)
        try:
            result = run(script)
        except Undecided as missing:
            pending += [[*decisions, k] for k, p in enumerate(missing.args[0]) if p > 0]
            continue
        chances[result] += script.chance
    return chances


def tree_law(rows: CellCounts, ranks: Any, rate: Fraction, most_rows: int) -> dict[Any, float]:
    return law(lambda script: tuple(search(rows, ranks, rate, most_rows, Source(0, LAST, script))))


def loss(first: dict[Any, float], second: dict[Any, float]) -> float:
    assert set(first) == set(second)
    return max(abs(math.log(first[key] / second[key])) for key in first)


TABLES = [(), (0,), (3,), (1, 1), (0, 3), (1, 2, 2), (0, 0, 1, 3), (2, 2, 2, 2), (0, 1, 2, 3, 3)]


def worst_loss(ranks: Any, rate: Fraction, most_rows: int) -> float:
    """The largest loss over tables and over persons with up to ``most_rows`` rows."""
    worst = 0.0
    persons = [(cell,) for cell in range(LAST + 1)]
    if most_rows == 2:
        persons += [(a, b) for a in range(LAST + 1) for b in range(a, LAST + 1)]
    for table in TABLES:
        before = tree_law(rows_of(*table), ranks, rate, most_rows)
        assert sum(before.values()) == pytest.approx(1)
        for person in persons:
            after = tree_law(rows_of(*table, *person), ranks, rate, most_rows)
            worst = max(worst, loss(before, after))
    return worst


@pytest.mark.parametrize("ranks", [(HALF,), (Fraction(1, 10),), (Fraction(9, 10),)])
@pytest.mark.parametrize("most_rows", [1, 2])
def test_one_draw_costs_its_rate(ranks: Any, most_rows: int) -> None:
    assert worst_loss(ranks, Fraction(1), most_rows) <= 1 + 1e-9


def wide_loss(module: dict[str, Any], most_rows: int) -> float:
    """The loss at rank 1/10 where many cells become worse, and one better, by the full range."""
    wide, rows = 400, [3] * most_rows + [399] * 9 * most_rows

    def chances(cells: list[int]) -> dict[Any, float]:
        ranks = (Fraction(1, 10),)
        return law(
            lambda script: tuple(
                module["search"](
                    rows_of(*cells), ranks, Fraction(1), most_rows, Source(0, wide, script)
                )
            )
        )

    return loss(chances(rows), chances([*rows, *[0] * most_rows]))


@pytest.mark.parametrize("most_rows", [1, 2])
def test_one_draw_is_nearly_as_bad_as_its_price(most_rows: int) -> None:
    assert 0.97 < wide_loss({"search": search}, most_rows) <= 1


@pytest.mark.parametrize("most_rows", [1, 2])
def test_a_tree_costs_its_rate_per_level(most_rows: int) -> None:
    worst = worst_loss(THREE, Fraction(1), most_rows)
    assert worst <= 2 + 1e-9
    assert worst > 1  # a level is not for free


def most_draws(module: dict[str, Any], ranks: Any) -> int:
    """In how many draws one row takes part at most, over all trees that can be drawn."""
    most = 0

    def run(script: Any) -> tuple[int, ...]:
        nonlocal most
        seen = np.zeros(LAST + 1, dtype=int)

        def note(rows: Any, interval: tuple[int, int], *rest: Any) -> int:
            seen[slice(*interval)] += 1
            return interval[0] + script.below(interval[1] - interval[0])

        module["draw_cell"] = note
        cells = module["search"](rows_of(), ranks, Fraction(1), 1, Source(0, LAST, script))
        most = max(most, int(seen.max()))
        return tuple(cells)

    law(run)
    return most


def copy_of_module(old: str = "", new: str = "") -> dict[str, Any]:
    """The names of the module, with a text replaced, and draws that scripts decide."""
    text = Path(quantile_search.__file__).read_text(encoding="utf-8")
    assert not old or text.count(old) == 1
    names: dict[str, Any] = {"__name__": quantile_search.__name__}
    exec(compile(text.replace(old, new) if old else text, "copy", "exec"), names)
    names |= {name: getattr(quantile_search, name) for name in ("weighted_choice", "base_measure")}
    return names


@pytest.mark.parametrize("ranks", [(HALF,), THREE, (HALF, Fraction(9, 10))])
def test_a_row_is_in_one_interval_per_level(ranks: Any) -> None:
    assert most_draws(copy_of_module(), ranks) == tree_levels(len(ranks))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(start, cell), below", "(start, cell + 1), below"),
        ("(cell, end), ranks", "(start, end), ranks"),
    ],
)
def test_intervals_that_share_rows_are_noticed(old: str, new: str) -> None:
    assert most_draws(copy_of_module(old, new), THREE) > 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rate / (2 * most_rows * max(share, 1 - share))", "rate / (most_rows * 1)"),
        ("rate / (2 * most_rows *", "rate / (2 *"),
    ],
)
def test_rates_that_are_too_high_are_noticed(old: str, new: str) -> None:
    assert max(wide_loss(copy_of_module(old, new), rows) for rows in (1, 2)) > 1.5


def test_a_draw_follows_the_formula() -> None:
    """Rows 0, 1, 1, 3; the middle lies in cell 1, whose distance is 0."""
    rows = rows_of(0, 1, 1, 3)
    chances = law(
        lambda script: draw_cell(rows, (0, LAST + 1), HALF, Fraction(1), Source(0, LAST, script))
    )
    weights = np.exp([-1.0, 0.0, -1.0, -1.0])  # S = −2, −1, 1, 1, 2 at the edges of the cells
    assert [chances[cell] for cell in range(4)] == pytest.approx(weights / weights.sum())


def test_trees_are_as_low_as_they_can_be() -> None:
    assert [tree_levels(count) for count in (1, 2, 3, 4, 7, 8)] == [1, 2, 2, 3, 3, 4]
    depth: dict[int, int] = {}

    def note(rows: Any, interval: Any, *rest: Any) -> int:
        level = 1 + max((depth[c] for c in depth if c in interval), default=0)
        cell = (interval[0] + interval[1]) // 2
        depth[cell] = level
        return cell

    patch = pytest.MonkeyPatch()
    patch.setattr(quantile_search, "draw_cell", note)
    ranks = [Fraction(k, 100) for k in (1, 2, 3, 4, 50, 98, 99)]
    search(rows_of(), ranks, Fraction(1), 1, Source(0, 1023, SimulationRandomness(1)))
    patch.undo()
    assert len(depth) == 7
    assert max(depth.values()) <= 3


def test_the_distance_bound_holds() -> None:
    """Exactly: the mass beyond the bound is at most the chance of a miss."""
    rows = rows_of(0, 0, 0, 1, 2, 3, 3, 3, 3)
    source = Source(0, LAST, Script([]))
    away = distance_bound(Fraction(1), source, 0.2)
    chances = law(
        lambda script: draw_cell(rows, (0, LAST + 1), HALF, Fraction(1), Source(0, LAST, script))
    )
    distances = [1.5, 0.5, 0.0, 0.5]
    assert sum(chances[cell] for cell in range(4) if distances[cell] > away) <= 0.2
    assert away == pytest.approx(math.log(4 / 0.2))


def test_the_base_measure_is_whole_positive_and_half_uniform() -> None:
    measure = base_measure(0, 50_000)
    masses = np.diff(measure)
    assert masses.min() >= 2**10
    assert masses.sum() < 2**53
    assert masses.min() * len(masses) == pytest.approx(masses.sum() / 2, rel=0.1)
    assert masses[0] > 1000 * masses[-1]


def test_draws_that_learn_from_other_groups_cost_their_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The joint law of draws in two groups, the second with what the first one drew.

    Both directions, for a person with a row in both groups, and in one of them.
    """
    monkeypatch.setattr(
        quantile_search, "base_measure", lambda low, high: 3 * np.arange(high - low + 2)
    )

    def joint(first: tuple[int, ...], second: tuple[int, ...]) -> dict[Any, float]:
        def run(script: Any) -> tuple[int, int]:
            learned, source = {HALF: LearnedMeasure(0, LAST)}, Source(0, LAST, script)
            cells = []
            for rows in (first, second):
                cells += search(rows_of(*rows), (HALF,), Fraction(1), 1, source, learned)
                learned[HALF].learn(cells[-1])
            return cells[0], cells[1]

        return law(run)

    worst = {"one": 0.0, "two": 0.0}
    for first, second in (((0, 3), (1, 1)), ((1, 2, 2), ()), ((2, 2, 2, 2), (0, 0, 1, 3))):
        before = joint(first, second)
        assert sum(before.values()) == pytest.approx(1)
        for cell in (0, 1, LAST):
            alone, both = joint(first, (*second, cell)), joint((*first, cell), (*second, cell))
            worst["one"] = max(worst["one"], loss(before, alone))
            worst["two"] = max(worst["two"], loss(before, both))
    assert worst["one"] <= 1 + 1e-9
    assert 1.2 * worst["one"] < worst["two"] <= 2 + 1e-9


def test_a_learned_measure_leaves_half_of_all_masses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantile_search, "base_measure", base_measure)
    learned, before = LearnedMeasure(-40, 900), base_measure(-40, 900)
    assert np.array_equal(learned.upto, before)
    for number in range(60):
        learned.learn(700 + number % 3)
        masses, base = np.diff(learned.upto), np.diff(before)
        assert (masses >= base).all()
        assert learned.upto[-1] <= 2 * before[-1]
    assert learned.upto[-1] > 1.9 * before[-1]
    assert masses[741] > 50 * base[741]  # the cell 701
    assert np.array_equal(base_measure(-40, 900), before)


def test_the_distance_bound_holds_for_a_learned_measure() -> None:
    """Exactly: most of the mass was learned to be where no row is."""
    rows, learned = rows_of(0, 0, 0, 0, 0, 0, 0, 0, 0), LearnedMeasure(0, LAST)
    for _ in range(5):
        learned.learn(LAST)
    source = Source(0, LAST, Script([]), learned)
    away = distance_bound(Fraction(1), source, 0.2)
    chances = law(
        lambda script: draw_cell(
            rows, (0, LAST + 1), HALF, Fraction(1), replace(source, randomness=script)
        )
    )
    miss = sum(chance for cell, chance in chances.items() if cell and away < 4.5)
    assert miss <= 0.2
    assert away > distance_bound(Fraction(1), Source(0, LAST, Script([])), 0.2)
