"""expost: utility-first differential privacy.

State how accurate an answer must be. expost finds a cheap private way to get there, and charges
only what the released answer cost.

Everything listed in ``__all__`` is public, as is what these modules list: ``expost.privacy``,
``expost.budget``, ``expost.training``, ``expost.features``, ``expost.audit``, ``expost.sklearn``,
``expost.errors`` and the modules of ``expost.integrations``. All other modules are internal and may
change without notice. ``tests/test_public_names.py`` checks the lists, and that the documents and
examples use no other name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from expost._version import __version__

if TYPE_CHECKING:
    from expost.analytics.query import count, mean, sum
    from expost.budget import Account, ApproxBudget, Ledger, PureBudget, RenyiBudget, ZCDPBudget
    from expost.errors import (
        BudgetRefused,
        CheckpointMismatch,
        ExpostError,
        InvalidCandidate,
        InvalidGuarantee,
        InvalidInput,
        InvalidRelease,
        LedgerError,
        MissingExtra,
        SimulationOnly,
        WorkersLost,
    )
    from expost.execution.processes import Processes
    from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, Query
    from expost.mechanisms.outcome import FAILED, NOTHING
    from expost.mechanisms.protocol import Estimate, Mechanism
    from expost.privacy import ZCDP, ApproxDP, Charges, PureDP, RenyiDP
    from expost.randomness.source import Randomness, SimulationRandomness
    from expost.selection.above_threshold import AboveThreshold
    from expost.selection.candidate import Candidate
    from expost.selection.doubling import Doubling
    from expost.selection.noise_path import NoisePath, PathSearch
    from expost.selection.noise_reduction import NoiseReduction
    from expost.selection.random_dropping import RandomDropping
    from expost.selection.release import Release
    from expost.selection.repeat_and_select import (
        Poisson,
        RepeatAndSelect,
        TruncatedNegativeBinomial,
    )
    from expost.server.client import connect
    from expost.tuning.certificate import Tuned
    from expost.tuning.defaults import default_job
    from expost.tuning.job import plan_job, tune
    from expost.tuning.model import Model, load_model

__all__ = [
    "FAILED",
    "NOTHING",
    "ZCDP",
    "AboveThreshold",
    "Account",
    "ApproxBudget",
    "ApproxDP",
    "BudgetRefused",
    "Candidate",
    "Charges",
    "CheckpointMismatch",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Doubling",
    "Estimate",
    "ExpostError",
    "InvalidCandidate",
    "InvalidGuarantee",
    "InvalidInput",
    "InvalidRelease",
    "Ledger",
    "LedgerError",
    "Mechanism",
    "MissingExtra",
    "Model",
    "NoisePath",
    "NoiseReduction",
    "PathSearch",
    "Poisson",
    "Processes",
    "PureBudget",
    "PureDP",
    "Query",
    "RandomDropping",
    "Randomness",
    "Release",
    "RenyiBudget",
    "RenyiDP",
    "RepeatAndSelect",
    "SimulationOnly",
    "SimulationRandomness",
    "TruncatedNegativeBinomial",
    "Tuned",
    "WorkersLost",
    "ZCDPBudget",
    "__version__",
    "connect",
    "count",
    "default_job",
    "load_model",
    "mean",
    "plan_job",
    "sum",
    "tune",
]

_LAZY = {
    "Account": "expost.budget",
    "ApproxBudget": "expost.budget",
    "Ledger": "expost.budget",
    "PureBudget": "expost.budget",
    "RenyiBudget": "expost.budget",
    "ZCDPBudget": "expost.budget",
    "BudgetRefused": "expost.errors",
    "CheckpointMismatch": "expost.errors",
    "ExpostError": "expost.errors",
    "InvalidCandidate": "expost.errors",
    "InvalidGuarantee": "expost.errors",
    "InvalidInput": "expost.errors",
    "InvalidRelease": "expost.errors",
    "LedgerError": "expost.errors",
    "MissingExtra": "expost.errors",
    "SimulationOnly": "expost.errors",
    "WorkersLost": "expost.errors",
    "Processes": "expost.execution.processes",
    "DiscreteGaussian": "expost.mechanisms.discrete_noise",
    "DiscreteLaplace": "expost.mechanisms.discrete_noise",
    "Query": "expost.mechanisms.discrete_noise",
    "FAILED": "expost.mechanisms.outcome",
    "NOTHING": "expost.mechanisms.outcome",
    "Estimate": "expost.mechanisms.protocol",
    "Mechanism": "expost.mechanisms.protocol",
    "ZCDP": "expost.privacy",
    "ApproxDP": "expost.privacy",
    "Charges": "expost.privacy",
    "PureDP": "expost.privacy",
    "RenyiDP": "expost.privacy",
    "Randomness": "expost.randomness.source",
    "SimulationRandomness": "expost.randomness.source",
    "AboveThreshold": "expost.selection.above_threshold",
    "Candidate": "expost.selection.candidate",
    "Doubling": "expost.selection.doubling",
    "NoisePath": "expost.selection.noise_path",
    "PathSearch": "expost.selection.noise_path",
    "NoiseReduction": "expost.selection.noise_reduction",
    "RandomDropping": "expost.selection.random_dropping",
    "Release": "expost.selection.release",
    "Poisson": "expost.selection.repeat_and_select",
    "RepeatAndSelect": "expost.selection.repeat_and_select",
    "TruncatedNegativeBinomial": "expost.selection.repeat_and_select",
    "budget": "expost.budget",
    "errors": "expost.errors",
    "privacy": "expost.privacy",
    "count": "expost.analytics.query",
    "mean": "expost.analytics.query",
    "sum": "expost.analytics.query",
    "Model": "expost.tuning.model",
    "Tuned": "expost.tuning.certificate",
    "default_job": "expost.tuning.defaults",
    "load_model": "expost.tuning.model",
    "plan_job": "expost.tuning.job",
    "tune": "expost.tuning.job",
    "connect": "expost.server.client",
    "audit": "expost.audit",
    "features": "expost.features",
    "sklearn": "expost.sklearn",
    "training": "expost.training",
}
"""Names with their modules, imported at first use: the command then starts before it imports."""


def __getattr__(name: str) -> Any:
    """Import a name or a public submodule at first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'expost' has no attribute {name!r}")
    module = import_module(_LAZY[name])
    value = module if module.__name__ == f"expost.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted({*globals(), *__all__})
