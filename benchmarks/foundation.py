"""Samplers, pricing, selection overhead, import time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction

import opendp.prelude as dp

from benchmarks.measure import Row, interleaved
from expost import Candidate, PureDP, RandomDropping, Randomness
from expost.randomness import samplers as exact_samplers

DRAWS = 1_000_000


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    yield from samplers()
    yield pricing()
    yield selection()
    yield importing()


def samplers() -> Iterator[Row]:
    """Draw discrete Laplace noise, with expost and with OpenDP.

    expost draws 10^6 numbers. OpenDP gets a list of 10^5 zeros and returns a list.
    """
    dp.enable_features("contrib")
    randomness = Randomness()
    for scale in (1, 100):
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
        measurement = dp.m.make_laplace(*space, scale=float(scale))
        fewer = [0] * (DRAWS // 10)
        ours, theirs = interleaved(
            lambda scale=scale: exact_samplers.discrete_laplaces(
                Fraction(scale), DRAWS, randomness
            ).tolist(),
            lambda measurement=measurement, fewer=fewer: measurement(fewer),
            turns=3,
        )
        yield Row(
            f"discrete Laplace, scale {scale}, a draw",
            ours / DRAWS,
            "OpenDP vector",
            theirs / len(fewer),
            "≥ 12×",
        )


def pricing() -> Row:
    """Price 10^6 candidates at ten levels."""
    promises = [PureDP(0.1 * (level + 1)) for level in range(10)]
    candidates = [
        Candidate(_constant, guarantee=promises[place % 10]) for place in range(1_000_000)
    ]
    selector = RandomDropping(overhead=0.1)
    (seconds,) = interleaved(lambda: selector.charges(candidates), turns=3)
    return Row("charges of 10^6 candidates", seconds)


def selection() -> Row:
    """Measure the overhead of a selection per run."""
    candidates = [Candidate(_constant, guarantee=PureDP(1e-9), repeats=10_000)]
    selector = RandomDropping(overhead=1)
    made: list[int] = []
    start = time.perf_counter()
    for _ in range(20):
        selector.select(candidates, None, progress=lambda done, _: made.append(done))
    return Row("selection, per run made", (time.perf_counter() - start) / len(made))


def importing() -> Row:
    """Measure a fresh interpreter that imports expost, minus one that does not."""

    def start(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    with_import, without = interleaved(lambda: start("import expost"), lambda: start("pass"))
    return Row("import expost", with_import - without, target="well under 1 s")


def _constant(data: object, randomness: Randomness) -> float:
    """Return a constant: a mechanism that costs no time."""
    return 1.0
