"""K groups within the error, and top lists: exact laws, simulations through the public door.

Simulations have fixed seeds. A check rejects at 1e-8 or is an exact computation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics.refinement import Job, Refinement, make_job
from expost.analytics.refinement_goals import ListTests, Wanted, late_groups, top_rule
from expost.analytics.refinement_noise import LaplaceLevels
from expost.certificates.verify import verify_certificate
from expost.certificates.words import certificate_words
from expost.errors import InvalidInput
from tests.analytics import laws
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


class Undecided(Exception):
    """The job wants to see something that has not been decided on yet."""


class ListTest(NamedTuple):
    """A test of a list: q of the table, the least noisy q that passes, the scale of the noise."""

    q: int
    least: float
    scale: float

    def chance(self, passed: bool) -> float:
        """P(q + Z ≥ least) for discrete Laplace noise Z, or its complement."""
        p, needed = math.exp(-1 / self.scale), math.ceil(self.least - self.q)
        above = p**needed / (1 + p) if needed > 0 else 1 - p ** (1 - needed) / (1 + p)
        return above if passed else 1 - above


class NoisyQ:
    """Stands in for q plus noise: tells only whether it passes, as ``outcomes`` say."""

    def __init__(self, levels: Decided, q: int) -> None:
        self.levels, self.q = levels, q

    def __getitem__(self, cell: tuple[int, int]) -> NoisyQ:
        return self

    def __ge__(self, least: float) -> bool:
        number = len(Decided.tests)
        if number >= len(Decided.outcomes):
            raise Undecided("test")
        scale = self.levels.sensitivity / self.levels.costs[0]
        Decided.tests.append(ListTest(self.q, float(least), scale))
        return Decided.outcomes[number]


class Decided(LaplaceLevels):
    """Laplace levels whose estimates, and outcomes of tests, are the ones set."""

    seen: ClassVar[np.ndarray]
    outcomes: ClassVar[tuple[bool, ...]]
    tests: ClassVar[list[ListTest]]

    def estimates(self, counts: Any, randomness: Any) -> Any:
        return NoisyQ(self, int(counts[0])) if len(self.costs) == 1 else self.seen


COSTS, WINDOW = (0.6, 1.0), range(-1, 5)


def top_laws(
    tables: Sequence[tuple[int, ...]], most: int, signed: bool
) -> Iterator[tuple[Fraction, Fraction, list[float]]]:
    """Every transcript of small jobs: its charge, that of its tests, its chance for each table.

    A transcript is all estimates up to the last level, and the outcomes of all tests.
    """
    groups = len(tables[0])
    levels = Decided(COSTS)
    rule = top_rule(levels, 0.6, signed)
    job = Job(levels, rule, Fraction(9), "race", most, 1, top=1)
    for cells in itertools.product(WINDOW, repeat=groups * len(COSTS)):
        Decided.seen = np.array(cells, dtype=float).reshape(len(COSTS), groups)
        pending: list[tuple[bool, ...]] = [()]
        while pending:
            Decided.outcomes = pending.pop()
            runs = []
            for values in tables:
                Decided.tests = []
                run = Refinement(job, list(range(groups)), np.array(values), None)  # type: ignore[arg-type]
                try:
                    list(run)
                except Undecided:
                    pending += [(*Decided.outcomes, False), (*Decided.outcomes, True)]
                    break
                looks = int(run._charge.level[0]) + 1
                if looks < len(COSTS) and set(cells[groups:]) != {WINDOW[0]}:
                    break  # the second level is not seen: once is enough
                chance = math.prod(
                    laws.path(COSTS, [int(Decided.seen[n, g]) - values[g] for n in range(looks)])
                    for g in range(groups)
                )
                for test, passed in zip(Decided.tests, Decided.outcomes, strict=True):
                    chance *= test.chance(passed)
                runs.append((run, chance))
            if len(runs) == len(tables):
                run = runs[0][0]
                yield run.spent, run._tests.spent, [chance for _, chance in runs]


def top_loss(
    first: tuple[int, ...], second: tuple[int, ...], most: int = 2, *, signed: bool = False
) -> list[float]:
    """Worst excess of the loss over the charge, and over the charge without tests."""
    worst, mutant = -math.inf, -math.inf
    for spent, tests, (here, there) in top_laws([first, second], most, signed):
        loss = abs(math.log(here / there))
        worst, mutant = max(worst, loss - float(spent)), max(mutant, loss - float(spent - tests))
    return [worst, mutant]


def test_no_transcript_of_a_top_list_tells_more_than_it_cost():
    """Joint law of estimates and tests, both directions, of two groups; someone in one, in both."""
    one, both = top_loss((3, 1), (2, 1), most=1), top_loss((3, 1), (2, 0))
    assert max(one[0], both[0]) <= 1e-9
    assert one[1] > 0.1  # a mutant: tests are not free


def test_mutants_of_top_lists():
    """Rows instead of persons, and values of either sign with the test of unsigned ones."""
    assert top_loss((4, 1), (2, 1))[0] > 0.1
    assert top_loss((3, 1), (2, 2), signed=True)[0] <= 1e-9
    assert top_loss((3, 1), (2, 2), signed=False)[0] > 0.1


def stated_lists(
    values: Sequence[int], size: int, runs: int, law: str = "laplace", **options: Any
) -> list[tuple[int, ...]]:
    """The lists that are stated in some runs, empty if none is; 80 % confidence."""
    total, most = options.get("total", 3), options.get("most", 3)
    wanted = Wanted(0.1, None, 0.8, top=size, signed=options.get("signed", False))
    job = make_job(len(values), wanted, law=law, total=Fraction(total), most_groups=most)
    lists = []
    for seed in range(runs):
        run = Refinement(
            job, list(range(len(values))), np.array(values), SimulationRandomness(seed)
        )
        lists.append(tuple(sorted(answer.group for answer in run)))
        assert run.spent <= job.total
    return lists


def wrong(values: Sequence[int], lists: Sequence[tuple[int, ...]]) -> int:
    """How many lists hold a smaller value than one that is not listed."""
    number = 0
    for listed in lists:
        others = [value for group, value in enumerate(values) if group not in listed]
        number += bool(listed) and min(values[group] for group in listed) < max(others)
    return number


HOSTILE = {
    "near tie": (100, 50, 49, 10, 10),
    "many near ties": (30, *[21] * 2, *[20] * 12),
    "one apart": tuple(range(12, 0, -1)),
    "two": (4, 3),
}


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_stated_list_is_rarely_wrong(name, law):
    """At most 20 % are stated and wrong; rejects at 1e-8."""
    values = HOSTILE[name]
    runs = 150 if law == "laplace" else 60
    lists = stated_lists(values, 1 if name == "two" else 2, runs, law)
    assert stats.binom.sf(wrong(values, lists) - 1, runs, 0.2) > 1e-8


def test_without_the_test_lists_are_wrong_more_often(monkeypatch):
    """The test of the test: lists that only stand out are stated."""
    monkeypatch.setattr(ListTests, "passes", lambda *arguments: True)
    values = HOSTILE["many near ties"]
    assert stats.binom.sf(wrong(values, stated_lists(values, 2, 150)) - 1, 150, 0.2) < 1e-8


def test_ties_are_listed_in_either_order():
    """A list is right if nothing larger is left out."""
    assert wrong([5] * 6, stated_lists([5] * 6, 2, 30)) == 0
    values = [900, 500, 500, 0, 0, 0]
    lists = stated_lists(values, 3, 30)
    assert set(lists) == {(0, 1, 2)}


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
