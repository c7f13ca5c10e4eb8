"""Noise paths over vector statistics: cost, law of what leaves, exactness, resuming."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.mechanisms import NOTHING
from expost.privacy.profiles import gaussian_delta, gaussian_mu, share_of_delta
from expost.randomness.samplers import add_gaussian
from expost.randomness.source import SimulationRandomness
from expost.selection import noise_path
from expost.selection.noise_path import (
    NoisePath,
    PathSearch,
    _Walk,
    laplace_lattice,
    path_deviations,
    path_levels,
)


def first(values: np.ndarray, scale: float) -> float:
    return float(values[0])


def means(data: Any) -> Any:
    return np.asarray(data, dtype=float).sum(axis=0)


def test_charges_are_the_levels_with_the_whole_delta() -> None:
    path = NoisePath(means, 1, first, dimension=2)
    levels = path.levels([0.1, 0.2, 0.4], delta=1e-6)
    charges = PathSearch(at_least=0).charges(levels)
    pairs = [charges[place].as_approx() for place in range(3)]
    assert [pair.epsilon for pair in pairs if pair] == [0.1, 0.2, 0.4]
    assert all(pair.delta == pytest.approx(1e-6) for pair in pairs if pair)
    assert all(pair.delta >= 3 * levels[0].guarantee.delta for pair in pairs if pair)  # type: ignore[attr-defined]
    assert charges.nothing == charges[2]


def test_looks_never_exceed_the_level() -> None:
    """Exact sums of (Δ/σ_j)² against μ_i², and μ_i against its (ε_i, δ_i)."""
    path = NoisePath(means, 3, first)
    levels = path_levels(path.levels(np.geomspace(0.005, 4, 50).tolist(), delta=1e-6))
    total = Fraction(0)
    for level, deviation in zip(levels, path_deviations(levels), strict=True):
        total += Fraction(9) / Fraction(deviation) ** 2
        pair = level.guarantee.as_approx()
        assert pair is not None
        assert total <= level.square()
        assert total >= level.square() * Fraction(999_999, 1_000_000)
        assert gaussian_delta(pair.epsilon, math.sqrt(total)) <= pair.delta * (1 + 1e-9)


def test_zcdp_levels_cost_rho() -> None:
    path = NoisePath(means, 1, first)
    charges = PathSearch(at_least=0).charges(path.levels(rhos=[0.5, 1.0]))
    assert [charges[place].size for place in range(2)] == [Fraction(1, 2), 1]
    levels = path_levels(path.levels(rhos=[0.5, 1.0]))
    spent = sum(1 / Fraction(each) ** 2 for each in path_deviations(levels))
    assert Fraction(19, 10) < spent <= 2


def test_a_stopped_search_is_as_private_as_it_says() -> None:
    """Enumerate what leaves for the worst stopping rule of a likelihood-ratio adversary.

    A scalar statistic, two levels, lattice steps as wide as the noise. The adversary stops at the
    first level iff the released value has a large likelihood ratio; the sum of (P − e^ε̃ P′)₊ over
    all outcomes must be at most δ, and close to it, so that the check is not empty.
    """
    delta, levels = 1e-3, (0.5, 1.0)
    mus = [gaussian_mu(level, delta / 2) for level in levels]
    spreads = [1 / mus[0], 1 / math.sqrt(mus[1] ** 2 - mus[0] ** 2)]
    grids = [np.arange(-400, 401) * spread / 40 for spread in spreads]

    def masses(shift: float, place: int) -> np.ndarray:
        """The law of a rounded Gaussian with steps of σ/40."""
        spread, grid = spreads[place], grids[place]
        edges = np.append(grid - spread / 80, grid[-1] + spread / 80)
        tails = np.array([math.erfc(-(x - shift) / spread / math.sqrt(2)) / 2 for x in edges])
        return np.diff(tails)

    one, two = [masses(1.0, place) for place in (0, 1)], [masses(0.0, place) for place in (0, 1)]
    seen = one[0] > math.exp(levels[0]) * two[0]
    at_first = np.maximum(one[0] - math.exp(levels[0]) * two[0], 0)[seen].sum()
    joint, other = np.outer(one[0][~seen], one[1]), np.outer(two[0][~seen], two[1])
    at_second = np.maximum(joint - math.exp(levels[1]) * other, 0).sum()
    assert delta / 4 < at_first + at_second <= delta


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_levels_have_their_spread_and_are_coupled(kind: str) -> None:
    path = NoisePath(means, 1, lambda values, scale: (values.copy(), scale), dimension=20_000)
    epsilons = [0.5, 1.0, 2.0]
    candidates = path.levels(epsilons, delta=1e-5 if kind == "gaussian" else None)
    data = np.zeros((1, 20_000))
    search = PathSearch(at_least=0)
    draws = search._secrets(candidates, SimulationRandomness(5))
    runs = search._runs(candidates, search.charges(candidates), draws)
    outputs = [run.call(data, SimulationRandomness(0)) for run in runs]
    for values, scale in outputs:
        spread = scale if kind == "gaussian" else scale * math.sqrt(2)
        assert float(values.std()) == pytest.approx(spread, rel=0.03)
    # An estimate is finer noise plus more noise: Cov(coarse, fine) = Var(fine).
    coarse, fine = outputs[0][0], outputs[2][0]
    assert float(np.mean(coarse * fine)) == pytest.approx(float(fine.var()), rel=0.1)
    # asking again, in another order, shows the same
    again = runs[0].call(data, SimulationRandomness(1))
    assert np.array_equal(again[0], outputs[0][0])


def test_gaussian_scale_is_what_the_levels_allow() -> None:
    path = NoisePath(means, 2, lambda values, scale: scale)
    candidates = path.levels([0.5, 1.0], delta=1e-5)
    found = candidates[1].call(np.zeros((1, 1)), SimulationRandomness(1))
    assert found == pytest.approx(2 / gaussian_mu(1.0, share_of_delta((0.5, 1.0), 1e-5)), rel=1e-9)


def test_laplace_lattice_covers_rounding() -> None:
    path = NoisePath(means, 1, first, dimension=3)
    levels = path_levels(path.levels([0.5]))
    step, scales = laplace_lattice(levels)
    assert step <= 2.0**-10 / 3
    generator = np.random.default_rng(0)
    worst = 0.0
    for _ in range(2000):
        x, move = generator.random(3) * 100, generator.dirichlet(np.ones(3))
        a, b = (np.floor(each / step + 0.5) for each in (x, x + move))
        worst = max(worst, float(np.abs(a - b).sum()))
    assert worst > 1 / step  # rounding does matter
    assert worst <= float(scales[0]) * 0.5


def test_search_stops_at_the_first_level_that_passes() -> None:
    path = NoisePath(means, 1, lambda values, scale: -scale)
    candidates = path.levels([0.1, 0.2, 0.4, 0.8], delta=1e-6)
    bar = -1 / gaussian_mu(0.3, 2.5e-7)
    release = PathSearch(at_least=bar).select(
        candidates, np.zeros((2, 1)), randomness=SimulationRandomness(1), simulation=True
    )
    assert release.index == 2
    assert release.params == {"epsilon": 0.4}
    assert PathSearch(at_least=bar).verify(release, candidates)
    missed = PathSearch(at_least=10.0).select(
        candidates, np.zeros((2, 1)), randomness=SimulationRandomness(1), simulation=True
    )
    assert (missed.index, missed.passed) == (3, False)
    assert missed.value < 0  # the output of the last level, which is paid
    assert missed.spent == missed.worst_case
    assert missed.as_dict()["outcome"] == "missed"


def test_a_last_look_that_failed_releases_nothing() -> None:
    path = NoisePath(means, 1, lambda values, scale: 1 / 0)
    candidates = path.levels([0.1, 0.2], delta=1e-6)
    release = PathSearch(at_least=0.0).select(
        candidates, np.zeros((2, 1)), randomness=SimulationRandomness(1), simulation=True
    )
    assert release.value is NOTHING
    assert (release.index, release.passed) == (None, False)
    assert release.spent == release.worst_case


def test_threads_do_not_mix_levels() -> None:
    """Levels that threads look at together have their own noise each, not that of the finest."""
    waits = iter([0.3, *[0.02] * 20])

    def slow(data: Any) -> Any:
        time.sleep(next(waits))
        return means(data)

    path = NoisePath(slow, 1, lambda values, scale: -scale)
    candidates = path.levels([0.1, 0.2, 0.4, 0.8], delta=1e-6)
    bar = -1 / gaussian_mu(0.3, 2.5e-7)
    for pool in (ThreadPoolExecutor(4), None):
        release = PathSearch(at_least=bar).select(
            candidates,
            np.zeros((2, 1)),
            executor=pool,
            randomness=SimulationRandomness(1),
            simulation=True,
        )
        assert release.index == 2
        assert release.value == pytest.approx(-1 / gaussian_mu(0.4, 2.5e-7), rel=1e-6)


def test_threads_take_turns_on_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads are inside the drawing of noise at the same time if they do not."""

    def slow(*given: Any) -> Any:
        time.sleep(0.02)
        return add_gaussian(*given)

    monkeypatch.setattr(noise_path, "add_gaussian", slow)
    path = NoisePath(means, 1, lambda values, scale: scale)
    epsilons, data = [0.1, 0.2, 0.4, 0.8], np.zeros((2, 1))
    walk = _Walk(path_levels(path.levels(epsilons, delta=1e-6)), b"k" * 32, True)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: walk.output(index, data), range(4)))
    wanted = [1 / gaussian_mu(epsilon, 2.5e-7) for epsilon in epsilons]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_large_laplace_noise_is_added_as_whole_numbers() -> None:
    """Beyond 2^53 steps a float would round the noise first, and some sums would be missing."""
    path = NoisePath(np.asarray, 1, lambda values, scale: values)
    levels = path_levels(path.levels([2.0**-38]))
    step, _ = laplace_lattice(levels)
    walk = _Walk(levels, b"k" * 32, True)
    walk.output(0, np.zeros(1))
    noise = walk._noise
    assert noise is not None
    noise[0] = 2**54 + 2  # as a float it would be 2^54
    for whole in (1, 2):
        data = np.array([whole * step])
        walk._data, walk._values = data, data
        assert int(walk.output(0, data)[0] / step) == float(2**54 + 2 + whole)
    with pytest.raises(InvalidInput, match="larger levels"):
        PathSearch(at_least=0).charges(path.levels([2.0**-45]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_hostile_rows_do_not_fail(bad: float) -> None:
    def unstable(data: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(data).sum(axis=0) * 2

    path = NoisePath(unstable, 1, lambda values, scale: float(np.isfinite(values).all()))
    for delta in (1e-5, None):
        release = PathSearch(at_least=1).select(
            path.levels([0.5, 1.0], delta=delta),
            np.array([[bad], [bad]]),
            randomness=SimulationRandomness(2),
            simulation=True,
        )
        assert release.index == 0


def test_levels_of_another_path_are_refused() -> None:
    one, two = (NoisePath(means, size, first).levels([0.5], delta=1e-5) for size in (1, 2))
    with pytest.raises(InvalidInput, match="NoisePath"):
        PathSearch(at_least=0).charges([*one, *two])
    with pytest.raises(InvalidInput, match="increasing"):
        PathSearch(at_least=0).charges([*one, *one])
    with pytest.raises(InvalidInput, match="rhos"):
        NoisePath(means, 1, first).levels()


def test_pca_of_a_covariance_matrix() -> None:
    """The leading direction of rows of norm at most 1; its variance on public rows is the score."""
    generator = np.random.default_rng(0)
    axis = np.array([3.0, 4.0, 0.0]) / 5
    rows = generator.normal(size=(4000, 1)) * axis / 4 + generator.normal(size=(4000, 3)) / 40
    rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    public = generator.normal(size=(500, 1)) * axis / 4 + generator.normal(size=(500, 3)) / 40

    def leading(values: np.ndarray, scale: float) -> np.ndarray:
        matrix = values.reshape(3, 3)
        return np.asarray(np.linalg.eigh((matrix + matrix.T) / 2)[1][:, -1])

    path = NoisePath(lambda data: (data.T @ data).ravel(), 1, leading, dimension=9)
    release = PathSearch(at_least=0.05).select(
        path.levels(np.geomspace(0.01, 2, 60).tolist(), delta=1e-6),
        rows,
        score=lambda direction: float(np.var(public @ direction)),
        randomness=SimulationRandomness(4),
        simulation=True,
    )
    assert release.passed
    assert abs(float(release.value @ axis)) > 0.8
    assert release.params["epsilon"] < 1


def test_histogram_classifier_under_pure_dp() -> None:
    """Counts per (cell, class); the model predicts the class that is most frequent in a cell."""
    generator = np.random.default_rng(1)
    cells, labels = generator.integers(0, 5, 3000), np.zeros(3000, dtype=int)
    labels[:] = (cells % 2) ^ (generator.random(3000) < 0.1)

    def table(data: Any) -> Any:
        return np.bincount(data[0] * 2 + data[1], minlength=10)

    def classes(values: np.ndarray, scale: float) -> np.ndarray:
        return np.asarray(values.reshape(5, 2).argmax(axis=1))

    release = PathSearch(at_least=1.0).select(
        NoisePath(table, 1, classes, dimension=10).levels(np.geomspace(0.001, 1, 40).tolist()),
        (cells, labels),
        score=lambda found: float(np.mean(found == np.arange(5) % 2)),
        randomness=SimulationRandomness(6),
        simulation=True,
    )
    assert release.passed
    assert release.spent.as_pure() is not None
    assert release.params["epsilon"] < 0.1


KILLED = """
import os, signal, sys
import numpy as np
from tests.selection.test_noise_path import crashing_search
crashing_search(sys.argv[1], sys.argv[2])
"""


def crashing_search(ledger: str, checkpoint: str) -> Any:
    """Search four levels for a goal that the third reaches; die while the third is looked at."""

    def look(values: np.ndarray, scale: float) -> float:
        if os.environ.get("EXPOST_TEST_DIE") and scale < 1 / gaussian_mu(0.3, 2.5e-7):
            os.kill(os.getpid(), signal.SIGKILL)
        return -scale

    return PathSearch(at_least=-1 / gaussian_mu(0.3, 2.5e-7)).select(
        NoisePath(means, 1, look).levels([0.1, 0.2, 0.4, 0.8], delta=1e-6),
        np.zeros((2, 1)),
        ledger=Ledger.open(ledger),
        checkpoint=checkpoint,
    )


def epsilon_spent(book: str) -> float:
    standing = Ledger.open(book).standing().as_dict()
    return float(standing["settled"]["epsilon"] + standing["held"]["epsilon"])


def test_killed_search_resumes_and_pays_what_it_shows(tmp_path: Path) -> None:
    book, checkpoint = str(tmp_path / "ledger.db"), str(tmp_path / "checkpoint")
    Ledger.create(book, ApproxBudget(2.0, 1e-5))
    died = subprocess.run(
        [sys.executable, "-c", KILLED, book, checkpoint],
        env={**os.environ, "EXPOST_TEST_DIE": "1"},
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert epsilon_spent(book) == 0.8  # reserved: the worst case
    # what is stored belongs to levels up to the one that was looked at when it died
    stored = Path(checkpoint).read_text(encoding="utf-8").splitlines()[1:]
    assert len(stored) == 2
    release = crashing_search(book, checkpoint)
    assert release.index == 2
    assert not Path(checkpoint).exists()
    assert epsilon_spent(book) == 0.4
