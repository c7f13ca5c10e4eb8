"""The joint law of the shipped mechanism of facts on tiny tables, by enumeration.

:func:`expost.facts.column_facts.learn` runs as it is; only the noise is replaced. A count that is
the same in both tables gets fixed noise, the same in both. A count that one person changes is
released as the lower end of one of a few cells, with the normal probability of each: noise rounded
down to a coarse lattice, which is post-processing of the mechanism. All outcomes are followed, and
the laws of everything that is released are compared with the charge, in both directions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from expost.facts import column_facts, readings
from expost.facts.column_facts import Looks, Price, learn
from expost.facts.readings import TableCounts, array_counts
from expost.privacy.profiles import gaussian_delta
from expost.randomness.source import SimulationRandomness

QUANTILES = (0.005, 0.995)
NONE = np.zeros(0)  # a look at nothing: what it costs, and the deviation of its noise
FAR = -4.0  # standard deviations: what stands for the lowest cell


class Seen(NamedTuple):
    """A count at a look, and the standard deviation of the noise."""

    count: float
    deviation: float


Key = tuple[int, Any]


def followed(table: TableCounts, price: Price, script: Mapping[Key, float], noise: Any) -> Any:
    """Run the mechanism with scripted releases; return what leaves, and every count looked at."""
    looks: list[dict[Any, Seen]] = []
    plain = Looks.__call__

    def released(number: int, name: Any, count: float, deviation: float) -> float:
        return script.get((number, name), count + deviation * noise(number, name))

    def look(self: Looks, counts: Any, precision: float) -> Any:
        _, deviation = plain(self, NONE, precision)
        number = len(looks)
        looks.append({i: Seen(float(c), deviation) for i, c in enumerate(counts)})
        noisy = [released(number, i, float(c), deviation) for i, c in enumerate(counts)]
        return np.array(noisy), deviation

    def look_at_names(self: Looks, counts: Mapping[str, int], precision: float) -> Any:
        _, deviation = plain(self, NONE, precision)
        number = len(looks)
        looks.append({name: Seen(float(c), deviation) for name, c in counts.items()})
        return {n: released(number, n, float(c), deviation) for n, c in counts.items()}, deviation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_facts, "add_gaussian", lambda counts, *_: counts)  # scripted instead
        patch.setattr(Looks, "__call__", look)
        patch.setattr(Looks, "named", look_at_names)
        return learn(table, price, QUANTILES, SimulationRandomness(0)), looks


def first_difference(first: list[Any], second: list[Any], script: Mapping[Key, float]) -> Any:
    """Return the first count that is not scripted and not the same in both tables."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        for name in sorted({*one, *other}, key=str):
            if (number, name) not in script and one.get(name) != other.get(name):
                return (number, name), one.get(name), other.get(name)
    return None


def cells(count: Seen, start: float, ends: list[float]) -> np.ndarray:
    """Return the probability of each cell between ``start`` + σ·ends."""
    z = (start - count.count) / count.deviation + np.array(ends)
    cdf = [0.0, *(0.5 * math.erfc(-value / math.sqrt(2)) for value in z), 1.0]
    return np.diff(cdf)


def laws(pair: tuple[TableCounts, TableCounts], price: Price, ends: list[float], noise: Any) -> Any:
    """Return the probability of everything that may be released, for both tables."""
    both: list[dict[str, float]] = [defaultdict(float), defaultdict(float)]

    def follow(script: dict[Key, float], weights: tuple[float, float]) -> None:
        (out, looks), (other_out, other_looks) = (
            followed(table, price, script, noise) for table in pair
        )
        branch = first_difference(looks, other_looks, script)
        if branch is None:
            both[0][repr(out)] += weights[0]
            both[1][repr(other_out)] += weights[1]
            return
        key, one, other = branch
        known = one or other
        start = known.count - 0.5  # public: the same for both tables
        chances = [cells(seen or known, start, ends) for seen in (one, other)]
        lowest = [start + known.deviation * end for end in (FAR, *ends)]
        for value, first, second in zip(lowest, *chances, strict=True):
            follow({**script, key: value}, (weights[0] * first, weights[1] * second))

    follow({}, (1.0, 1.0))
    return both


def excess(first: Mapping[str, float], second: Mapping[str, float], epsilon: float) -> float:
    return sum(max(0.0, p - math.exp(epsilon) * second.get(out, 0.0)) for out, p in first.items())


def table(cells_of: list[Any]) -> TableCounts:
    column = np.empty(len(cells_of), dtype=object)
    column[:] = cells_of
    return array_counts({"x": column}, None, SimulationRandomness(0))


def fixed_noise(seed: int) -> Any:
    """Noise of counts that are the same in both tables, by look and name."""

    @cache
    def noise(number: int, name: Any) -> float:
        return float(np.random.default_rng([seed, number, *map(ord, str(name))]).normal())

    return noise


NAMES = ["a"] * 90 + ["b"] * 40
PRICE = Price.of(1.0, 0.05, 1)


def check(present: Mapping[str, float], absent: Mapping[str, float]) -> None:
    """Compare two laws with the charge, at its ε and below."""
    assert sum(present.values()) == pytest.approx(1)
    assert sum(absent.values()) == pytest.approx(1)
    chance = 0.5 * math.erfc(PRICE.level / math.sqrt(2)) * column_facts.LOOKS
    for epsilon in (0.0, 0.25, 0.5, 1.0):
        allowed = gaussian_delta(epsilon, PRICE.mu) + math.exp(epsilon) * chance
        assert excess(present, absent, epsilon) <= allowed
        assert excess(absent, present, epsilon) <= allowed
    assert max(excess(present, absent, 1.0), excess(absent, present, 1.0)) <= PRICE.delta


@pytest.mark.parametrize(
    "person", ["a", "b", "alone", "", None, "many words are in this long text"]
)
def test_the_law_of_names_keeps_the_charge(person: Any) -> None:
    ends = [-1.0, 0.5, PRICE.level * 1.001]
    pair = table([*NAMES, person]), table(NAMES)
    present, absent = laws(pair, PRICE, ends, fixed_noise(0))
    check(present, absent)
    if person in ("a", "b", "alone"):
        assert len(present) > 1
        assert any("'a': " in out for out in present)  # names were looked at, and released


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of few points and few looks, so that all outcomes can be followed."""
    monkeypatch.setattr(readings, "POINTS", np.array([-4.0, 0.0, 4.0, 8.0]))
    monkeypatch.setattr(readings, "_INSIDE", 0)
    monkeypatch.setattr(readings, "_LOOKS", 1)
    monkeypatch.setattr(readings, "_OCTAVES", 4)
    monkeypatch.setattr(readings, "_PER_OCTAVE", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("person", [1, 7, -1e300, 2.5, "x", "2020-01-01"])
def test_the_law_of_numbers_keeps_the_charge(person: Any) -> None:
    rows = [0, 1, 1, 2, 5, 5, 6, 9] * 15
    present, absent = laws((table([*rows, person]), table(rows)), PRICE, [0.5], fixed_noise(3))
    check(present, absent)
    assert all("range=Range" in out for out in present)  # bounds were looked for


def test_the_enumeration_sees_noise_that_is_too_small() -> None:
    """The same check fails where looks are four times as precise as they were paid for."""
    sharp = Price(1.0, 0.05, 1, 2 * PRICE.mu, PRICE.level)
    pair = table([*NAMES, "a"]), table(NAMES)
    present, absent = laws(pair, sharp, [-1.0, 0.5, 2.0], fixed_noise(0))
    assert max(excess(present, absent, 1.0), excess(absent, present, 1.0)) > PRICE.delta


def test_the_enumeration_sees_a_name_that_is_released_too_soon() -> None:
    low = Price(1.0, 0.05, 1, PRICE.mu, 0.5)
    pair = table([*NAMES, "alone"]), table(NAMES)
    present, absent = laws(pair, low, [-1.0, 0.5, 1.001], fixed_noise(0))
    assert excess(present, absent, 1.0) > PRICE.delta
