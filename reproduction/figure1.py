"""Figure 1 (``fig:stddev-vs-exp``): standard deviation and mean of the number of runs, by formula.

Algorithm 3: d copies of an ε-DP mechanism, N | k ~ Binomial(d, e^{−εk}), k ~ Geom(e^{−ε′}).
Papernot and Steinke: the truncated negative binomial distribution of shape η = ε′/ε.
Tests: ``tests/reproduction/test_figure1.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, sqrt
from typing import Any

from expost.selection.baselines import TruncatedNegativeBinomial

EPSILON, OVERHEAD = 0.1, 0.01
COPIES = tuple(range(10, 1000, 100))
GAMMAS = tuple(2.0**-power for power in range(1, 10))

# The coordinates printed in the paper's figure: (mean, standard deviation).
PAPER_OURS = (
    (0.9552233141976942, 2.1841580037867145),
    (10.507456456174637, 23.02054373477516),
    (20.05968959815158, 43.854834969917235),
    (29.611922740128524, 64.68905545273826),
    (39.16415588210547, 85.52325689092415),
    (48.71638902408241, 106.35745047635052),
    (58.26862216605935, 127.19164006790103),
    (67.8208553080363, 148.02582735195384),
    (77.37308845001324, 168.8600131826156),
    (86.92532159199018, 189.69419803876627),
)
PAPER_REPEAT_AND_SELECT = (
    (1.4932726172912962, 0.9518452535783978),
    (2.3175071876617723, 2.143464798423721),
    (3.7284097714940327, 4.305360099669469),
    (6.194719440190005, 8.368574625386163),
    (10.584062043356596, 16.10832729937952),
    (18.516012455502484, 30.96496613939242),
    (33.03611294612949, 59.48808048346394),
    (59.90825966255753, 107.7233591452453),
    (110.10243283848793, 161.3056382652037),
)


@dataclass(frozen=True)
class Point:
    """One point of the figure, and the paper's coordinates."""

    parameter: float
    mean: float
    deviation: float
    paper_mean: float
    paper_deviation: float


def random_dropping(
    copies: int, epsilon: float = EPSILON, overhead: float = OVERHEAD
) -> tuple[float, float]:
    """Return mean and standard deviation of the number of runs of Algorithm 3.

    Draws in which nothing is kept (⊥) are included, as in the paper's figure.
    """
    first = expm1(-overhead) / expm1(-(overhead + epsilon))  # E e^{−εk}
    second = expm1(-overhead) / expm1(-(overhead + 2 * epsilon))  # E e^{−2εk}
    mean = copies * first
    return mean, sqrt(mean + copies * (copies - 1) * second - mean**2)


def repeat_and_select(gamma: float, shape: float = OVERHEAD / EPSILON) -> tuple[float, float]:
    """Return mean and standard deviation of the truncated negative binomial distribution."""
    law = TruncatedNegativeBinomial(shape, gamma)
    return law.mean, law.deviation


def points() -> dict[str, list[Point]]:
    """Return both curves, with the paper's coordinates."""
    ours = [
        Point(d, *random_dropping(d), *paper) for d, paper in zip(COPIES, PAPER_OURS, strict=True)
    ]
    theirs = [
        Point(g, *repeat_and_select(g), *paper)
        for g, paper in zip(GAMMAS, PAPER_REPEAT_AND_SELECT, strict=True)
    ]
    return {"random-dropping": ours, "repeat-and-select": theirs}


def as_dict() -> dict[str, Any]:
    """Return the JSON form of the figure."""
    curves = {name: [vars(point) for point in curve] for name, curve in points().items()}
    return {"epsilon": EPSILON, "overhead": OVERHEAD, "curves": curves}
