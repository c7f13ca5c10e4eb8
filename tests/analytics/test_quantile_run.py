"""Runs of quantiles: never above the total, the joint law of an attempt, coverage, histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from expost import SimulationRandomness
from expost.analytics import flat_looks, quantile_run
from expost.analytics.flat_looks import Look
from expost.analytics.quantile_run import (
    Known,
    QuantileJob,
    QuantileRun,
    plan_attempt,
    value_bounds,
)
from expost.analytics.quantile_search import CellCounts, Source, tree_levels
from tests.analytics import laws

HALF = Fraction(1, 2)
THREE = (Fraction(1, 4), HALF, Fraction(3, 4))


def job(**changed: Any) -> QuantileJob:
    usual: dict[str, Any] = {
        "law": "laplace",
        "total": Fraction(2),
        "most_groups": 1,
        "most_rows": 1,
        "ranks": THREE,
        "within": 0.05,
        "confidence": 0.9,
        "low": 0,
        "high": 9999,
    }
    return QuantileJob(**{**usual, **changed})


def skewed(size: int, seed: int, high: int = 9999) -> CellCounts:
    values = np.random.default_rng(seed).lognormal(5, 1, size).astype(np.int64)
    cells, counts = np.unique(np.minimum(values, high), return_counts=True)
    return CellCounts(cells, counts.astype(np.int64))


def run_job(asked: QuantileJob, rows: Sequence[CellCounts], seed: int = 1) -> QuantileRun:
    source = Source(asked.low, asked.high, SimulationRandomness(seed))
    run = QuantileRun(asked, [str(index) for index in range(len(rows))], rows, source)
    run.run()
    return run


def true_ranks(rows: CellCounts, cell: float) -> tuple[float, float]:
    size = max(1, rows.size)
    return rows.between(0, int(cell)).size / size, rows.between(0, int(cell) + 1).size / size


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("most_groups", [1, 3, 8])
@pytest.mark.parametrize("within", [0.05, None])
@pytest.mark.parametrize("total", [Fraction(1, 50), Fraction(2)])
def test_the_charge_is_what_was_drawn_and_never_above_the_total(
    law: str, most_groups: int, within: float | None, total: Fraction, monkeypatch: Any
) -> None:
    drawn: dict[int, Fraction] = {}
    search, look = quantile_run.search, quantile_run.take_look
    current: list[int] = []

    def note_search(rows: Any, ranks: Any, rate: Fraction, *rest: Any) -> Any:
        cost = rate if law == "laplace" else rate**2 / 8
        current[:] = [next(k for k, own in enumerate(groups) if own is rows)]
        drawn[current[0]] = drawn.get(current[0], Fraction(0)) + tree_levels(len(ranks)) * cost
        return search(rows, ranks, rate, *rest)

    def note_look(edges: Any, counts: Any, noise: str, rate: Fraction, *rest: Any) -> Any:
        drawn[current[0]] = drawn.get(current[0], Fraction(0)) + rate
        return look(edges, counts, noise, rate, *rest)

    monkeypatch.setattr(quantile_run, "search", note_search)
    monkeypatch.setattr(quantile_run, "take_look", note_look)
    groups = [skewed(size, size) for size in (5, 40, 300, 2000, 9000)]
    groups += [CellCounts.empty() for _ in range(3)]
    run = run_job(job(law=law, most_groups=most_groups, within=within, total=total), groups)
    costs = [group.cost for group in run._groups]
    assert run.spent == sum(sorted(costs, reverse=True)[:most_groups]) <= total
    for index, cost in enumerate(costs):
        size = cost - drawn.get(index, Fraction(0))
        assert 0 < size <= total / min(most_groups, 8) / 32  # the rest is the look at the size
    if within is None:
        assert len(drawn) == 8


def test_large_groups_pay_little() -> None:
    rows = skewed(200_000, 3)
    run = run_job(job(ranks=(HALF,), total=Fraction(10)), [rows])
    assert run.spent < Fraction(1, 100)
    ((answer,), rest) = run.answers(Fraction(1))
    assert not rest
    below, upto = true_ranks(rows, answer.estimate)
    assert below <= 0.55
    assert upto >= 0.45


def test_what_cannot_be_answered_does_not_raise_the_charge() -> None:
    """A small group gets what is free: the charge is that of the large one."""
    large, small = skewed(40_000, 4), skewed(20, 5)
    alone = run_job(job(within=0.02), [large], seed=7).spent
    run = run_job(job(within=0.02), [large, small], seed=7)
    answers, unanswered = run.answers(Fraction(1))
    assert {answer.group for answer in answers} == {"0"}
    assert len([answer for answer in unanswered if answer.group == "1"]) == 3
    assert run.spent <= 3 * alone  # other draws, so not the same; far below the total of 2


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_coverage_of_ranks_and_values(law: str) -> None:
    """240 intervals of each kind at 90 %: more than 52 misses have a chance below 1e-6; seeded."""
    rows = [skewed(400, seed) for seed in range(80)]
    total = Fraction(3) if law == "laplace" else Fraction(1, 3)
    run = run_job(job(law=law, total=total, value_intervals=True), rows, seed=5)
    missed = wrong = answered = 0
    for kind, answers in enumerate(run.answers(Fraction(1))):
        for answer in answers:
            cells = rows[int(answer.group)]
            below, upto = true_ranks(cells, answer.estimate)
            missed += upto < answer.rank_low or below > answer.rank_high
            below, _ = true_ranks(cells, answer.high + 1)
            _, upto = true_ranks(cells, answer.low)
            before = true_ranks(cells, answer.low)[0]
            wrong += before > answer.at or below < answer.at
            answered += kind == 0
    assert missed <= 52
    assert wrong <= 52
    assert answered > 120


def test_an_interval_without_noise_knowledge_would_be_noticed(monkeypatch: Any) -> None:
    """A test of the test above: intervals of a third of the width miss far more often."""
    widths = quantile_run.rank_bounds

    def narrow(look: Look, lower: int, upper: int, miss: float) -> tuple[float, float]:
        low, high = widths(look, lower, upper, 0.45)
        return low, high

    monkeypatch.setattr(quantile_run, "rank_bounds", narrow)
    rows = [skewed(400, seed) for seed in range(80)]
    run = run_job(job(total=Fraction(3)), rows, seed=5)
    missed = 0
    for answers in run.answers(Fraction(1)):
        for answer in answers:
            below, upto = true_ranks(rows[int(answer.group)], answer.estimate)
            missed += upto < answer.rank_low or below > answer.rank_high
    assert missed > 52


def test_a_value_of_many_rows_is_found() -> None:
    """Half of the rows are 0: the lower quartile is 0, and its rank interval holds 1/4."""
    cells = CellCounts(np.array([0, 400, 500, 600]), np.array([20_000, 5_000, 5_000, 10_000]))
    run = run_job(job(ranks=(Fraction(1, 4),), high=2000, total=Fraction(1)), [cells])
    ((answer,), _) = run.answers(Fraction(1, 10))
    assert answer.estimate == 0
    assert answer.rank_low == answer.rank_high == 0.25


def test_no_goal_spends_the_share_and_bounds_ranks_by_the_law_of_the_draw() -> None:
    rows = skewed(3000, 9)
    run = run_job(job(ranks=(HALF,), within=None, total=Fraction(1)), [rows, rows])
    assert Fraction(99, 100) < run.spent <= 1
    _, answers = run.answers(Fraction(1))
    for answer in answers:
        below, upto = true_ranks(rows, answer.estimate)
        assert answer.rank_low <= upto
        assert below <= answer.rank_high
        assert answer.rank_high - answer.rank_low < 0.05


def test_groups_that_are_alike_help_each_other(monkeypatch: Any) -> None:
    """Small groups at a small ε: draws that do not learn are further away; seeded."""
    rows = [skewed(5000, 1), *(skewed(60, seed) for seed in range(2, 26))]

    def error() -> float:
        asked = job(ranks=(HALF,), within=None, total=Fraction(1, 6))
        errors = []
        for seed in range(8):
            _, answers = run_job(asked, rows, seed).answers(Fraction(1))
            for answer in answers:
                below, upto = true_ranks(rows[int(answer.group)], answer.estimate)
                errors.append(max(0.0, below - 0.5, 0.5 - upto))
        return float(np.mean(errors))

    learned = error()
    monkeypatch.setattr(quantile_run.LearnedMeasure, "learn", lambda self, cell: None)
    assert learned < 0.8 * error()


def test_nothing_is_learned_where_it_would_take_much_memory() -> None:
    rows = [skewed(2000, 1)] * 2
    ninety = tuple(Fraction(k, 100) for k in range(5, 95))
    fine = job(ranks=ninety, within=None, high=2**20 - 1)
    run = run_job(fine, rows)
    assert run._learned == {}
    assert len(run.answers(Fraction(1))[1]) == 180
    assert run_job(job(), rows[:1])._learned == {}
    assert len(run_job(job(), rows)._learned) == 3


def test_intervals_by_the_law_of_a_draw_know_what_was_learned() -> None:
    """Later draws have a measure of nearly twice the mass: up to ln 2 more, in units of 1/η."""
    rows = [skewed(200_000, 1)] * 3
    run = run_job(job(ranks=(HALF,), within=None), rows)
    _, answers = run.answers(Fraction(1))
    widths = sorted(answer.rank_high - answer.rank_low for answer in answers)
    fold = 2 / (2 - 2 / 64) / 200_000  # of 1/η on both sides; noise in the size is far below
    assert 0.3 * fold < widths[2] - widths[0] <= 1.01 * math.log(2) * fold


def test_histograms() -> None:
    rows = skewed(5000, 2)
    edges = (0, 50, 150, 400, 10_000)
    true = rows.histogram(np.array(edges)) / rows.size
    missed = 0
    for seed in range(60):
        asked = job(ranks=(), bins=edges, within=0.02)
        run = run_job(asked, [rows, CellCounts.empty()], seed)
        bins = run.histograms((0.0, 5.0, 15.0, 40.0, 1000.0))
        first = [answer for answer in bins if answer.group == "0"]
        assert [answer.end for answer in first] == [5.0, 15.0, 40.0, 1000.0]
        for answer, share in zip(first, true, strict=True):
            missed += not answer.low <= share <= answer.high
            assert answer.high - answer.low <= 0.045
    assert stats.binom.sf(missed - 1, 4 * 60, 0.1) > 1e-6


def test_merged_intervals_are_the_narrower_ones() -> None:
    first = Known((5, 0, 9), 0.3, 0.6)
    second = Known((6, 2, 20), 0.45, 0.52)
    assert first.merged(second, 0.5) == Known((6, 2, 9), 0.45, 0.52)
    assert second.merged(first, 0.5) == Known((6, 2, 9), 0.45, 0.52)


def test_value_bounds_stop_at_the_first_cut_that_is_not_sure() -> None:
    counts = np.array([100.0, 300.0, 200.0, 400.0]) * 1000
    look = Look(np.array([0, 10, 20, 30, 41]), counts, "laplace", Fraction(1000), 1)
    assert value_bounds(look, 0.5, 0.05) == (20, 29)
    assert value_bounds(look, 0.05, 0.05) == (0, 9)


@pytest.mark.parametrize(("total", "most_groups"), [(Fraction(3, 2), 1), (4, 1), (2, 3), (6, 3)])
def test_attempts_share_the_chance_of_a_miss(
    total: Fraction, most_groups: int, monkeypatch: Any
) -> None:
    """However many attempts are made at a group, their parts add up to at most 10 %."""
    used: dict[int, list[float]] = {}
    attempt = QuantileRun._attempt

    def note(run: QuantileRun, index: int, made: Any, miss: float) -> None:
        used.setdefault(index, []).append(miss)
        attempt(run, index, made, miss)

    monkeypatch.setattr(QuantileRun, "_attempt", note)
    groups = [skewed(300, seed) for seed in range(40)]
    run_job(job(total=Fraction(total), most_groups=most_groups), groups)
    parts = [sum(misses) for misses in used.values()]
    assert max(parts) <= 0.1 + 1e-12
    assert max(parts) > 0.095  # a second attempt, or a last one, has most of what is left
    assert max(map(len, used.values())) <= 3


def test_a_last_attempt_costs_a_little_more_or_less_than_is_best() -> None:
    for law in ("laplace", "gaussian"):
        asked = job(law=law)
        best = plan_attempt(asked, THREE, 1000, 0.1).cost
        for part in (Fraction(3, 4), Fraction(99, 100), Fraction(6, 5)):
            cost = plan_attempt(asked, THREE, 1000, 0.1, limit=part * best).cost
            assert part * best * Fraction(9, 10) < cost <= part * best
        assert plan_attempt(asked, THREE, 1000, 0.1, limit=best * Fraction(2, 5)).cost == best
        assert plan_attempt(asked, THREE, 1000, 0.1, limit=9 * best).cost < Fraction(8, 5) * best


@pytest.mark.parametrize("pairs", [False, True])
def test_the_chance_of_a_wrong_interval_answered_or_not(pairs: bool, monkeypatch: Any) -> None:
    """All noises of the two sides of a cut, exactly: a wrong interval has at most the miss.

    True ranks outside of the wanted error, on both sides of it and inside. ``pairs``: the drawn
    cell holds 6 of the rows, and there is a cut on both sides of it.
    """
    monkeypatch.setattr(flat_looks, "FINER", 4)  # the noise has steps of a quarter of a row
    monkeypatch.setattr(flat_looks, "STEPS", 100)
    monkeypatch.setattr(flat_looks, "_SHARES", np.arange(1, 101) / 100)
    miss, scale, size, window = 0.3, 3.0, 60, np.arange(-56, 57) / 4
    law = laws.laplace(1 / (4 * scale), 4 * window)
    asked = job(ranks=(HALF,), within=0.1, low=0, high=9)
    inside = 6 if pairs else 0
    edges = np.array([0, 5, 6, 10] if pairs else [0, 5, 10])
    for left in (23 - inside, 30 - inside // 2, 37):
        wrong = answered = 0.0
        for noise in product(range(len(window)), repeat=2):
            chance = float(np.prod(law[list(noise)]))
            first, last = window[list(noise)]
            counts = [left + first, size - inside - left + last]
            counts[1:1] = [inside] if pairs else []  # its noise is left out: the sides matter
            look = Look(edges, np.array(counts), "laplace", Fraction(1 / scale), 1)
            group = quantile_run._Group()
            run = QuantileRun(asked, ["g"], [], Source(0, 9, SimulationRandomness(0)))
            run._judge(group, 0, 5, look, miss)
            known = group.cells[0]
            below, upto = left / size, (left + inside) / size
            wrong += chance * (upto < known.rank_low - 1e-9 or below > known.rank_high + 1e-9)
            answered += chance * (0 in group.answered)
            assert (0 not in group.answered) or known.error(0.5) <= 0.1 + 1e-9
        assert wrong <= miss
        if below > 0.6 or upto < 0.4:
            assert wrong > miss / (4 if pairs else 2.5)  # not idle
        else:
            assert answered > 0.8


def test_later_attempts_have_higher_rates_and_larger_groups_lower_ones() -> None:
    asked = job()
    first = plan_attempt(asked, THREE, 1000, 0.08)
    assert plan_attempt(asked, THREE, 1000, 0.08, before=1).cost > first.cost
    assert plan_attempt(asked, THREE, 10_000, 0.08).cost < first.cost / 8
    assert first.cost == 2 * first.rate + first.look
    rho = plan_attempt(job(law="gaussian"), THREE, 1000, 0.08)
    assert rho.cost == 2 * rho.rate**2 / 8 + rho.look


def test_the_joint_law_of_draws_and_a_look(monkeypatch: Any) -> None:
    """All cells that can be drawn, and all noisy counts of a window: e per level and the look's f.

    Both directions, persons with one and with two rows, in the same and in different cells.
    """
    from tests.analytics import test_quantile_search as trees

    rate, look = Fraction(1), Fraction(1, 2)
    ranks, window = (HALF, Fraction(9, 10)), range(-1, 5)
    patch = pytest.MonkeyPatch()
    patch.setattr(trees.quantile_search, "weighted_choice", trees.choose)
    patch.setattr(
        trees.quantile_search, "base_measure", lambda low, high: np.arange(high - low + 2)
    )

    def joint(cells: Sequence[int], most_rows: int) -> dict[Any, float]:
        rows = trees.rows_of(*cells)
        asked = job(ranks=ranks, low=0, high=trees.LAST, most_rows=most_rows)

        def run(script: Any) -> Any:
            group = QuantileRun(asked, ["g"], [rows], Source(0, trees.LAST, script))
            drawn = quantile_run.search(rows, ranks, rate, most_rows, group._source)
            counts = rows.histogram(group._edges(drawn, False))
            noisy = [
                window[
                    script.decide(
                        list(laws.laplace(float(look) / most_rows, np.array(window) - count))
                    )
                ]
                for count in counts
            ]
            return tuple(drawn), tuple(noisy)

        return trees.law(run)

    price = 2 * float(rate) + float(look)
    worst = 0.0
    try:
        for table in ((), (1, 2), (0, 3, 3)):
            for person in ((0,), (3,), (1, 3)):
                most_rows = len(person)
                before, after = joint(table, most_rows), joint((*table, *person), most_rows)
                worst = max(worst, trees.loss(before, after))
    finally:
        patch.undo()
    assert worst <= price + 1e-9
    assert worst > price / 2
    assert math.isfinite(worst)
