"""The exact law of a sampler, by walking the tree of its random choices.

A sampler is run on a scripted source that knows only the first few choices; when it asks for one
more, every answer is tried. A run that ends settles its share of the law; what has not ended at the
given depth is *undecided*. So for every outcome  mass ≤ true probability ≤ mass + undecided,  in
exact fractions, by the sampler's own code.

A choice is a single bit (``bits``) or, unless ``single_bits`` is set, one uniform number below a
bound (``below``); that ``below`` is uniform is itself shown on single bits, in ``test_source.py``.

Rejection loops would make the tree explode, so branches are merged: when the sampler stands at the
same place of the same functions with the same local variables, its future is the same, and it is
walked once. This is right for samplers that keep what they have drawn in local variables; one that
holds a drawn value in a half-evaluated expression, such as ``(coin(r), coin(r))``, is not such a
sampler. ``test_coins.py`` checks merged walks against plain ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from types import TracebackType
from typing import Any

import mpmath
import numpy as np

from expost.randomness.source import Randomness

PRECISION = 60  # digits of the independent reference values
ROUNDING = Fraction(1, 10**50)  # their error is far below this
_UNIT = 2**256  # masses are counted in 2^-256, rounded down; what that loses counts as undecided

Script = tuple[int, ...]


class OutOfScript(Exception):
    """The sampler wants a choice that the script does not have."""

    def __init__(self, bound: int) -> None:
        self.bound = bound


class ScriptedRandomness(Randomness):
    """Makes the choices it is told.

    With ``single_bits`` it leaves rejection to the inherited ``below``.
    """

    simulated = True

    def __init__(self, script: Script, *, single_bits: bool = True, word_width: int = 64) -> None:
        super().__init__()
        self.script = script
        self.used = 0
        self.single_bits = single_bits
        self.word_width = word_width

    def _choose(self, bound: int) -> int:
        if self.used == len(self.script):
            raise OutOfScript(bound)
        self.used += 1
        return self.script[self.used - 1]

    def bits(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = 2 * value + self._choose(2)
        return value

    def below(self, bound: int) -> int:
        if self.single_bits or bound <= 1:
            return super().below(bound)
        return self._choose(bound)

    def bytes(self, count: int) -> bytes:
        value = self.bits(8 * count)
        return value.to_bytes(count, "little")

    def words(self, count: int) -> Any:
        """Words of which only the leading ``word_width`` bits are drawn.

        For callers that look at no others.
        """
        words: list[int] = []
        for _ in range(count):
            word = self.bits(self.word_width)
            words.append(word << (64 - self.word_width))
        return np.array(words, dtype=np.uint64)


@dataclass(frozen=True)
class _Ended:
    """A run that needed no further choice."""

    outcome: Hashable


Law = tuple[dict[Any, Fraction], Fraction]


def enumerate_law(
    sampler: Callable[[Randomness], Hashable],
    depth: int,
    *,
    within: float = 0.0,
    single_bits: bool = False,
    merge: bool = True,
    word_width: int = 64,
) -> Law:
    """(mass of each outcome that was settled, undecided mass), exact fractions that sum to 1.

    The heaviest branch is followed first, to at most ``depth`` choices, until no more than
    ``within`` is undecided.
    """
    settled: defaultdict[Hashable, int] = defaultdict(int)
    numbers: dict[Hashable, int] = {}
    scripts: list[
        tuple[Script, int]
    ] = []  # by number: the choices that led there first, and how many come next
    following: dict[
        int, list[tuple[int | _Ended, int]]
    ] = {}  # by number: what comes next, after how many of the choices

    def run(script: Script) -> int | _Ended:
        randomness = ScriptedRandomness(script, single_bits=single_bits, word_width=word_width)
        try:
            return _Ended(sampler(randomness))
        except OutOfScript as stop:
            state = _state(stop.__traceback__) if merge else script
            if state not in numbers:
                numbers[state] = len(scripts)
                scripts.append((script, stop.bound))
            return numbers[state]

    start = run(())
    if isinstance(start, _Ended):
        return {start.outcome: Fraction(1)}, Fraction(0)
    waiting = {start: _UNIT}
    heap = [(-_UNIT, start)]
    undecided, goal = _UNIT, int(within * _UNIT)
    while heap and undecided > goal:
        weight, state = heappop(heap)
        script, bound = scripts[state]
        if waiting.get(state) != -weight or len(script) >= depth:
            continue  # an entry from before the branch grew or was followed, or the end of the walk
        share = waiting.pop(state) // bound
        if share == 0:
            continue
        if state not in following:
            following[state] = list(
                Counter(run((*script, choice)) for choice in range(bound)).items()
            )
        for answer, times in following[state]:
            if isinstance(answer, _Ended):
                settled[answer.outcome] += share * times
                undecided -= share * times
            else:
                waiting[answer] = waiting.get(answer, 0) + share * times
                heappush(heap, (-waiting[answer], answer))
    return {outcome: Fraction(mass, _UNIT) for outcome, mass in settled.items()}, Fraction(
        undecided, _UNIT
    )


def _state(traceback: TracebackType | None) -> Hashable:
    """Where every function of the sampler stands, and what it remembers."""
    frames: list[Hashable] = []
    traceback = traceback and traceback.tb_next  # the first frame is enumerate_law's own
    while traceback is not None:
        memory = traceback.tb_frame.f_locals
        pictures = tuple((name, _frozen(memory[name])) for name in sorted(memory))
        frames.append((traceback.tb_frame.f_code, traceback.tb_lasti, pictures))
        traceback = traceback.tb_next
    return tuple(frames)


def _frozen(value: Any) -> Hashable:
    """A hashable picture of a local variable.

    An object that has none is equal to nothing else, so it merges nothing.
    """
    if isinstance(value, Randomness):
        return "randomness"
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(_frozen(each) for each in value))
    if isinstance(value, set):
        return ("set", frozenset(value))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if type(value).__name__.endswith("iterator"):
        return _frozen(value.__reduce__())
    return (type(value), value) if isinstance(value, Hashable) else (object(),)


def rational(value: Any) -> Fraction:
    """The fraction that an mpmath number is."""
    sign, mantissa, exponent, _ = mpmath.mpf(value)._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** exponent
    return -magnitude if sign else magnitude


def assert_law(
    law: Law, truth: Callable[[Any], Any], *, within: float, outcomes: Iterable[Any] = ()
) -> None:
    """Every outcome seen (and each of ``outcomes``) has its true probability.

    At most ``within`` is undecided. ``truth`` gives the probability of an outcome as an mpmath
    number. The bound on what is undecided keeps this sharp.
    """
    masses, undecided = law
    assert undecided <= within, f"not sharp: {float(undecided):.3g} undecided"
    for outcome in {*masses, *outcomes}:
        with mpmath.workdps(PRECISION):
            true = rational(truth(outcome))
        mass = masses.get(outcome, Fraction(0))
        assert mass - ROUNDING <= true <= mass + undecided + ROUNDING, (
            f"outcome {outcome}: {float(mass)} to {float(mass + undecided)}, truth {float(true)}"
        )
