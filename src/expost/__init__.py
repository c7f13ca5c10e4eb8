"""expost: utility-first differential privacy.

Say how accurate the answer must be; expost finds the cheapest private way to get there, and charges only what the
released answer cost.
"""

from typing import TYPE_CHECKING, Any

from expost._version import __version__
from expost.errors import ExpostError
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, Query
from expost.mechanisms.outcome import FAILED, NOTHING
from expost.mechanisms.protocol import Estimate, Mechanism
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ZCDP, ApproxDP, PureDP, RenyiDP
from expost.randomness.source import Randomness, SimulationRandomness
from expost.selection.above_threshold import AboveThreshold
from expost.selection.candidate import Candidate
from expost.selection.doubling import Doubling
from expost.selection.noise_reduction import NoiseReduction
from expost.selection.random_dropping import RandomDropping
from expost.selection.release import Release
from expost.selection.repeat_and_select import Poisson, RepeatAndSelect, TruncatedNegativeBinomial

if TYPE_CHECKING:
    from expost.analytics.query import count, mean, sum
    from expost.tuning.job import tune

__all__ = [
    "FAILED",
    "NOTHING",
    "ZCDP",
    "AboveThreshold",
    "ApproxDP",
    "Candidate",
    "Charges",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Doubling",
    "Estimate",
    "ExpostError",
    "Mechanism",
    "NoiseReduction",
    "Poisson",
    "PureDP",
    "Query",
    "RandomDropping",
    "Randomness",
    "Release",
    "RenyiDP",
    "RepeatAndSelect",
    "SimulationRandomness",
    "TruncatedNegativeBinomial",
    "__version__",
    "count",
    "mean",
    "sum",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import the queries and ``tune`` at first use."""
    if name == "tune":
        from expost.tuning.job import tune

        return tune
    if name in ("count", "mean", "sum"):
        from expost.analytics import query

        return getattr(query, name)
    raise AttributeError(f"module 'expost' has no attribute {name!r}")
