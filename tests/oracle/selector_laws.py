"""The exact laws of the library's selectors over finite mechanisms and small queries.

Brackets and rounding are as in :mod:`tests.oracle.dropping_laws`.
Tests: ``tests/audit/test_exact.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidCandidate, InvalidInput
from expost.execution.calls import Score, rate
from expost.mechanisms import DiscreteLaplace, Estimate, Query
from expost.rationals import exact
from expost.selection.above_threshold import AboveThreshold
from expost.selection.baselines import Doubling, RepeatAndSelect
from expost.selection.candidate import Candidate
from expost.selection.noise_path import NoiseReduction
from expost.selection.random_dropping import DroppingSelector, RandomDropping
from expost.selection.selector import Selector
from tests.oracle import dropping_laws
from tests.oracle import laws_without_dropping as other
from tests.oracle.finite_mechanism import FiniteMechanism
from tests.oracle.smallest_charges import LawPair

Data = tuple[Any, Any]

_LARGEST_WINDOW = 2001
_MOST_OUTPUTS = 10_000
_WORK = 1e8  # largest number of terms in a law
_FEWEST_SINGLES, _MOST_SINGLES = 2_000, 400_000


def exact_laws(
    selector: Selector, candidates: Sequence[Candidate], data: Data | None, score: Score | None
) -> LawPair:
    """Return the exact laws of a selector on two neighbouring data sets.

    Raises an error if no exact law is known for the selector.
    """
    if type(selector) not in _LAWS:
        known = ", ".join(kind.__name__ for kind in _LAWS)
        raise InvalidInput("selector", type(selector).__name__, f"exact laws are known for {known}")
    return _LAWS[type(selector)](selector, candidates, data, score)


def _tables(
    candidates: Sequence[Candidate], data: Data | None, score: Score | None
) -> tuple[Floats, Floats, tuple[float, ...], Floats]:
    """Return probabilities (candidate × output) on both data sets, the scores, and the copies.

    The outputs are all scores in ascending order.
    """
    mechanisms = []
    for place, candidate in enumerate(candidates):
        if not isinstance(candidate.mechanism, FiniteMechanism):
            kind = type(candidate.mechanism).__name__
            raise InvalidCandidate(
                f"mechanisms[{place}]",
                kind,
                "pass a FiniteMechanism (for noise on a query: FiniteMechanism.from_query)",
            )
        mechanisms.append(candidate.mechanism)
    if score is not None or data is not None:
        raise InvalidInput(
            "score, data", "given", "tables have their own scores and data sets; leave both out"
        )
    scores = sorted({score for each in mechanisms for score in _scores(each)})
    if len(scores) > _MOST_OUTPUTS:
        raise InvalidInput(
            "mechanisms",
            f"{len(scores)} scores",
            f"pass tables with at most {_MOST_OUTPUTS} different scores in total",
        )
    rows = np.zeros((2, len(mechanisms), len(scores)))
    for place, each in enumerate(mechanisms):
        rows[:, place, [bisect_left(scores, own) for own in _scores(each)]] = each.rows()
    return (
        rows[0],
        rows[1],
        tuple(scores),
        np.array([float(candidate.repeats) for candidate in candidates]),
    )


def _scores(mechanism: FiniteMechanism) -> list[float]:
    """Return the scores of a table as floats."""
    return [float(exact(score, "scores")) for score in mechanism.scores or ()]


def _bar(target: float, scores: Sequence[float]) -> int:
    """Return the place of the first score that reaches the target."""
    return bisect_left(scores, float(target))


def _levels(
    selector: DroppingSelector, candidates: Sequence[Candidate], size: int
) -> dropping_laws.DropLevels:
    """Return the selector's drop levels, with as many single levels as time allows."""
    singles = int(min(_MOST_SINGLES, max(_FEWEST_SINGLES, _WORK / size)))
    return dropping_laws.DropLevels.of(
        selector.drop_law(candidates),
        [candidate.repeats for candidate in candidates],
        singles=singles,
    )


def _random_dropping(
    selector: RandomDropping,
    candidates: Sequence[Candidate],
    data: Data | None,
    score: Score | None,
) -> LawPair:
    """Return the laws of Algorithm 3."""
    here, there, scores, _ = _tables(candidates, data, score)
    levels = _levels(selector, candidates, here.size)
    conditioned = not selector.allow_nothing
    if selector.at_least is None:
        pair = [
            dropping_laws.random_dropping(q, levels, conditioned=conditioned) for q in (here, there)
        ]
    else:
        runs = selector._runs(
            candidates, selector.charges(candidates), {"kept": list(range(len(candidates)))}
        )
        order, bar = [run.index for run in runs], _bar(selector.at_least, scores)
        pair = [
            dropping_laws.first_pass_or_first(q, levels, bar, order, conditioned=conditioned)
            for q in (here, there)
        ]
    return LawPair(pair[0], pair[1], scores, public_nothing=True)


def _above_threshold(
    selector: AboveThreshold,
    candidates: Sequence[Candidate],
    data: Data | None,
    score: Score | None,
) -> LawPair:
    """Return the laws of Algorithm 2, or of Algorithm 1 over queries."""
    if isinstance(candidates[0].mechanism, Query):
        return _over_queries(selector, candidates, data, score)
    here, there, scores, _ = _tables(candidates, data, score)
    levels = _levels(selector, candidates, here.size)
    pair = [
        dropping_laws.above_threshold(q, levels, _bar(selector.at_least, scores))
        for q in (here, there)
    ]
    return LawPair(pair[0], pair[1], scores, public_nothing=False)


def _over_queries(
    selector: AboveThreshold,
    candidates: Sequence[Candidate],
    data: Data | None,
    score: Score | None,
) -> LawPair:
    """Return the laws of Algorithm 1. Copies of a query are tried in turn and form one outcome."""
    if score is not None:
        raise InvalidInput(
            "score", "given", "for queries the noisy answer itself is compared; leave it out"
        )
    looks = [place for place, candidate in enumerate(candidates) for _ in range(candidate.repeats)]
    epsilons = np.array([float(candidates[place].guarantee.size) for place in looks])
    values = [
        [_answer(candidates[place].mechanism, each) for place in looks] for each in _both(data)
    ]
    bar = math.ceil(exact(selector.at_least, "at_least"))
    outputs = max(0, max(map(max, values)) - bar) + 2
    pair = [
        other.above_threshold_queries(each, epsilons, float(selector.overhead), bar, outputs)
        for each in values
    ]
    joined = [_join(law, looks, len(candidates)) for law in pair]
    return LawPair(
        joined[0], joined[1], tuple(float(bar + o) for o in range(outputs)), public_nothing=False
    )


def _join(
    law: dropping_laws.OutputLaw, looks: Sequence[int], count: int
) -> dropping_laws.OutputLaw:
    """Add up the outcomes of all copies of a query."""
    low, high = (np.zeros((count, law.low.shape[1])) for _ in range(2))
    np.add.at(low, looks, law.low)
    np.add.at(high, looks, law.high)
    return dropping_laws.OutputLaw(low, high, law.nothing_low, law.nothing_high)


def _doubling(
    selector: Doubling, candidates: Sequence[Candidate], data: Data | None, score: Score | None
) -> LawPair:
    """Return the laws of doubling."""
    here, there, scores, copies = _tables(candidates, data, score)
    pair = [other.doubling(q, copies, _bar(selector.at_least, scores)) for q in (here, there)]
    return LawPair(pair[0], pair[1], scores, public_nothing=False)


def _repeat_and_select(
    selector: RepeatAndSelect,
    candidates: Sequence[Candidate],
    data: Data | None,
    score: Score | None,
) -> LawPair:
    """Return the laws of repeat and select."""
    here, there, scores, copies = _tables(candidates, data, score)
    pair = [other.repeat_and_select(q, copies, selector.runs) for q in (here, there)]
    return LawPair(pair[0], pair[1], scores, public_nothing=True)


def _noise_reduction(
    selector: NoiseReduction,
    candidates: Sequence[Candidate],
    data: Data | None,
    score: Score | None,
) -> LawPair:
    """Return the laws of discrete Laplace levels of one query, in a window around its answers."""
    mechanisms = [candidate.mechanism for candidate in candidates]
    levels = [
        each
        for each in mechanisms
        if isinstance(each, DiscreteLaplace) and each.query.dimension == 1
    ]
    if len(levels) < len(mechanisms):
        raise InvalidCandidate(
            "mechanisms", "other mechanisms", "pass DiscreteLaplace levels of a query of one value"
        )
    if selector.at_least is None:
        raise InvalidInput("at_least", None, "pass the goal that a score must reach")
    answers = [_answer(levels[0].query, each) for each in _both(data)]
    rates = [float(1 / level.spread) for level in levels]
    margin = min(math.ceil(40.0 / rates[0]), _LARGEST_WINDOW // 4)
    values = np.arange(min(answers) - 2 * margin, max(answers) + 2 * margin + 1)
    if len(values) > 2 * _LARGEST_WINDOW:
        raise InvalidInput(
            "data",
            "answers far apart",
            "pass neighbouring data sets: their answers differ by at most the sensitivity",
        )
    target = float(selector.at_least)
    passes = np.array(
        [
            [_passes(level, int(value), score, target) for value in values]
            for place, level in enumerate(levels)
        ]
    )
    path = other.NoisePath(rates, values.astype(float), margin)
    pair = [path.law(answer, passes) for answer in answers]
    unit, unseen = levels[0].query.unit, max(path.unseen(answer) for answer in answers)
    outputs = tuple(float(int(value) * unit) for value in path.listed)
    return LawPair(pair[0], pair[1], outputs, public_nothing=False, unseen=unseen)


def _passes(level: DiscreteLaplace, value: int, score: Score | None, target: float) -> bool:
    """Whether an estimate passes, scored as the selector scores it."""
    noisy = value * level.query.unit
    estimate = Estimate(
        int(noisy) if noisy.denominator == 1 else noisy, level.output_scale, level.law
    )
    _, scored = rate(estimate, score)
    return scored is not None and scored >= target


def _both(data: Data | None) -> Data:
    """Return the pair of data sets, or raise an error."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise InvalidInput(
            "data",
            type(data).__name__,
            "queries need data: pass a pair of neighbouring (made-up) data sets",
        )
    return data[0], data[1]


def _answer(query: Any, data: Any) -> int:
    """Return the exact answer of a query, in its units."""
    assert isinstance(query, Query)
    return query.evaluate(data)[0]


_LAWS: dict[type[Selector], Callable[..., LawPair]] = {
    RandomDropping: _random_dropping,
    AboveThreshold: _above_threshold,
    Doubling: _doubling,
    RepeatAndSelect: _repeat_and_select,
    NoiseReduction: _noise_reduction,
}
