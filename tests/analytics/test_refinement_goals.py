"""K groups within the error, and top lists: exact laws, simulations through the public door.

Simulations have fixed seeds. A check rejects at 1e-8 or is an exact computation.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import expost
from expost import SimulationRandomness
from expost.analytics.refinement_goals import late_groups, wrong_list
from expost.certificates.verify import verify_certificate
from expost.certificates.words import certificate_words
from expost.errors import InvalidInput
from tests.cli.counting import expost as command

__all__ = ["command"]  # a fixture


def first(levels: list[int], enough: int) -> int:
    """The first level at which that many pass, else the last."""
    return next((n for n, number in enumerate(levels) if number >= enough), len(levels) - 1)


@given(st.data(), st.integers(2, 6), st.integers(1, 7), st.integers(1, 5))
def test_the_level_is_decided_by_the_others(data, groups, levels, enough):
    """Theorem of ``answered``, on every pattern: nobody who is answered decided on the level."""
    cells = st.lists(st.booleans(), min_size=groups, max_size=groups)
    passed = np.array(data.draw(st.lists(cells, min_size=levels, max_size=levels)))
    enough = min(enough, groups)
    stop = first(passed.sum(axis=1).tolist(), enough)
    late = late_groups(list(passed[: stop + 1]), enough)
    for group in range(groups):
        if late[group]:
            continue
        others = (passed.sum(axis=1) - passed[:, group]).tolist()
        assert stop == first(others, enough - 1 if passed[stop, group] else enough)


def test_a_mutant_without_late_groups_is_wrong():
    """The group that comes last is not decided by the others."""
    passed = np.array([[True, False], [True, True]])
    assert late_groups(list(passed), 2).tolist() == [False, True]
    assert first([0, 1], 1) == 1  # group 0: the others decide
    assert first([1, 1], 1) == 0 != 1  # group 1 does not


def joint(alpha: float, beta: float, gamma: float) -> float:
    """P(x ≥ α, w ≥ β, x + w ≥ γ) for two Laplace variables."""

    def inner(w: float) -> float:
        return float(stats.laplace.pdf(w) * stats.laplace.sf(max(alpha, gamma - w)))

    kinks = sorted({gamma, gamma - alpha, 0.0})
    ends = [beta, *(kink for kink in kinks if beta < kink < 60), 60.0]
    return sum(integrate.quad(inner, a, b)[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("gap", [4.0, 5.5, 8.0])
def test_the_lemma_of_top_lists(gap):
    """The ratio of the two integrals of the proof, for bounds on both sides of 0."""
    worst = 0.0
    for alpha, beta in itertools.product((-30.0, -6.0, -2.0, -0.5, 0.0, 1.0, 4.0), repeat=2):
        for gamma in (0.0, 0.5, 3.0):
            shifted = joint(alpha + gap, beta + gap, gamma + gap)
            worst = max(worst, shifted / joint(alpha, beta, gamma))
    assert worst <= wrong_list(gap)
    assert worst >= 0.5 * wrong_list(gap)  # near equality: the bound is not idle


@pytest.mark.parametrize(
    "values", [(0, 0, 1), (0, 1, 1), (0, 0, 0, 1), (0, 1, 1, 1), (0, 6, 7), (0, 3, 4, 30)]
)
@pytest.mark.parametrize("size", [1, 2])
def test_the_law_of_wrong_lists(values, size):
    """Exact enumeration: discrete noise, every outcome, gaps in the unit of the noise."""
    p, reach = math.exp(-1 / 1.5), 16
    z = np.arange(-reach, reach + 1)
    mass = (1 - p) / (1 + p) * p ** np.abs(z)
    true = sorted(range(len(values)), key=lambda g: -values[g])[:size]
    floor = min(values[g] for g in true)
    noisy = np.stack(np.meshgrid(*([z] * len(values)), indexing="ij"), -1).reshape(-1, len(values))
    weights = np.prod(mass[noisy + reach], axis=1)
    noisy = noisy + np.array(values)
    order = np.argsort(-noisy, axis=1, kind="stable")
    ranked = np.take_along_axis(noisy, order, axis=1)
    gap = ranked[:, size - 1] - ranked[:, size]
    listed = np.array(values)[order[:, :size]]
    wrong = (listed.min(axis=1) < floor) | (listed.sum(axis=1) != sum(values[g] for g in true))
    for scales in (4.0, 5.0):
        chance = float(weights[wrong & (gap >= 1.5 * scales + 2)].sum())
        assert chance <= wrong_list(scales)


def sizes(groups: int = 60) -> dict[str, int]:
    return {f"g{rank}": 4000 // (rank + 1) for rank in range(groups)}


def asked(seed: int, **options: Any) -> Any:
    given_sizes = sizes()
    return expost.count(
        given_sizes,
        keys=list(given_sizes),
        randomness=SimulationRandomness(seed),
        simulation=True,
        **{"epsilon": 2, "max_groups_per_user": 5, **options},
    )


def test_enough_groups_are_answered_and_the_rest_is_not_paid():
    whole = asked(0)
    spent, missed, answers = [], 0, 0
    for seed in range(60):
        result = asked(seed, answered=15)
        assert len(result.answers) >= 14
        assert len(result.answers) < len(whole.answers)
        spent.append(result.spent)
        for answer in result.answers:
            answers += 1
            missed += not answer.low <= sizes()[answer.group] <= answer.high
    assert np.mean(spent) < 0.6 * whole.spent
    # the misses of one run are independent given the level; 10 % are allowed
    assert stats.binom.sf(missed - 1, answers, 0.1) > 1e-8
    assert missed > 0.03 * answers


def test_every_interval_of_a_goal_holds():
    """Groups that are not answered and late ones, too."""
    missed = total = 0
    for seed in range(60):
        for answer in asked(seed, answered=10).unanswered:
            total += 1
            missed += not answer.low <= sizes()[answer.group] <= answer.high
    assert stats.binom.sf(missed - 1, total, 0.1) > 1e-8


def test_without_a_cap_the_walk_ends_early():
    whole, some = asked(1, max_groups_per_user=None), asked(1, answered=3, max_groups_per_user=None)
    assert len(some.answers) == 3
    assert some.spent < whole.spent


def test_with_gaussian_noise_and_means():
    pa = pytest.importorskip("pyarrow")
    result = asked(1, answered=5, delta=1e-6)
    assert len(result.answers) >= 4
    rows = [(f"g{index % 4}", index) for index in range(4000)]
    table = pa.table({"g": [g for g, _ in rows], "u": [u for _, u in rows], "v": [7.0] * len(rows)})
    mean = expost.mean(
        table,
        "v",
        by="g",
        user="u",
        keys=[f"g{index}" for index in range(4)],
        bounds=(0, 10),
        epsilon=5,
        answered=2,
        one_row_per_user=True,
    )
    assert len(mean.answers) >= 2


def test_a_top_list():
    result = asked(3, top=5, confidence=0.95)
    assert [answer.group for answer in result.answers] == [f"g{rank}" for rank in range(5)]
    assert result.within is None
    assert len(result.unanswered) == 55
    assert result.spent < 2
    assert verify_certificate(result.certificate()) == []
    words = dict(certificate_words(result.certificate()))
    assert words["error"] == ("the 5 largest groups, with 95 % confidence",)


def test_a_top_list_that_is_not_known():
    """Two groups nearly tie: nothing is stated rather than a guess."""
    close = {f"g{rank}": 1000 - rank for rank in range(20)}
    stated = 0
    for seed in range(100):
        result = expost.count(
            close,
            keys=list(close),
            epsilon=0.5,
            top=10,
            confidence=0.9,
            max_groups_per_user=3,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        right = {answer.group for answer in result.answers} == {f"g{rank}" for rank in range(10)}
        stated += bool(result.answers) and not right
        assert result.spent <= 0.5
    assert stats.binom.sf(stated - 1, 100, 0.1) > 1e-8


@pytest.mark.parametrize(
    "options",
    [
        {"top": 3, "within": 0.1},
        {"top": 3, "delta": 1e-6},
        {"top": 60},
        {"top": 0},
        {"top": 3, "answered": 2},
        {"answered": 3, "plus_minus": 5},
        {"answered": -1},
    ],
)
def test_goals_that_do_not_fit(options):
    with pytest.raises(InvalidInput, match=r"top|answered"):
        asked(0, **options)


def test_the_command(command, tmp_path):
    (tmp_path / "t.csv").write_text(
        "u,g\n" + "".join(f"{n},{'abc'[(n > 50) + (n > 400)]}\n" for n in range(2000))
    )
    (tmp_path / "k.txt").write_text("a\nb\nc\n")
    options = ["--by", "g", "--user", "u", "--keys", tmp_path / "k.txt", "--epsilon", 2]
    options += ["--one-row-per-user"]
    done = command("count", tmp_path / "t.csv", *options, "--top", 2, "--confidence", 0.95)
    assert done.code == 0, done.err
    assert "Top 2 of 3 groups, with 95% confidence" in done.out
    done = command("count", tmp_path / "t.csv", *options, "--answered", 1, "--json")
    assert len(done.document["answers"]) >= 1
    assert done.document["query"]["answered"] == 1
