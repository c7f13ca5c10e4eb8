"""expost: differential privacy that starts from the accuracy you need.

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
    from expost.analytics.quantiles import quantile
    from expost.analytics.query import count, mean, sum
    from expost.analytics.sql_run import query
    from expost.budget import Account, ApproxBudget, Ledger, PureBudget, RenyiBudget, ZCDPBudget
    from expost.certificates.document import read_certificate
    from expost.certificates.verify import verify_certificate
    from expost.certificates.words import certificate_words
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
    from expost.execution.workers import Processes
    from expost.facts.column_facts import ColumnFacts
    from expost.facts.describe import Facts, describe
    from expost.mechanisms import (
        FAILED,
        NOTHING,
        DiscreteGaussian,
        DiscreteLaplace,
        Estimate,
        Mechanism,
        Query,
    )
    from expost.privacy import ZCDP, ApproxDP, Charges, PureDP, RenyiDP
    from expost.randomness.source import Randomness, SimulationRandomness
    from expost.selection.above_threshold import AboveThreshold
    from expost.selection.baselines import (
        Doubling,
        Poisson,
        RepeatAndSelect,
        TruncatedNegativeBinomial,
    )
    from expost.selection.candidate import Candidate
    from expost.selection.noise_path import NoisePath, NoiseReduction, PathSearch
    from expost.selection.random_dropping import RandomDropping
    from expost.selection.release import Release
    from expost.server.client import connect
    from expost.tuning.job import plan_job, tune
    from expost.tuning.model.released_model import Model, load_model
    from expost.tuning.model.subgroup_errors import subgroup_errors
    from expost.tuning.model.tuned import Tuned
    from expost.tuning.request.defaults import default_job

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
    "ColumnFacts",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Doubling",
    "Estimate",
    "ExpostError",
    "Facts",
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
    "certificate_words",
    "connect",
    "count",
    "default_job",
    "describe",
    "load_model",
    "mean",
    "plan_job",
    "quantile",
    "query",
    "read_certificate",
    "subgroup_errors",
    "sum",
    "tune",
    "verify_certificate",
]

_HOMES = {
    "expost.analytics.quantiles": "quantile",
    "expost.analytics.query": "count mean sum",
    "expost.analytics.sql_run": "query",
    "expost.budget": "Account ApproxBudget Ledger PureBudget RenyiBudget ZCDPBudget",
    "expost.certificates.document": "read_certificate",
    "expost.certificates.verify": "verify_certificate",
    "expost.certificates.words": "certificate_words",
    "expost.errors": "BudgetRefused CheckpointMismatch ExpostError InvalidCandidate InvalidInput "
    "InvalidGuarantee InvalidRelease LedgerError MissingExtra SimulationOnly WorkersLost",
    "expost.execution.workers": "Processes",
    "expost.facts.column_facts": "ColumnFacts",
    "expost.facts.describe": "describe Facts",
    "expost.mechanisms": "DiscreteGaussian DiscreteLaplace Estimate FAILED Mechanism NOTHING Query",
    "expost.privacy": "ApproxDP Charges PureDP RenyiDP ZCDP",
    "expost.randomness.source": "Randomness SimulationRandomness",
    "expost.selection.above_threshold": "AboveThreshold",
    "expost.selection.baselines": "Doubling Poisson RepeatAndSelect TruncatedNegativeBinomial",
    "expost.selection.candidate": "Candidate",
    "expost.selection.noise_path": "NoisePath NoiseReduction PathSearch",
    "expost.selection.random_dropping": "RandomDropping",
    "expost.selection.release": "Release",
    "expost.server.client": "connect",
    "expost.tuning.job": "plan_job tune",
    "expost.tuning.model.released_model": "load_model Model",
    "expost.tuning.model.subgroup_errors": "subgroup_errors",
    "expost.tuning.model.tuned": "Tuned",
    "expost.tuning.request.defaults": "default_job",
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names.split()}
_LAZY |= {
    name: f"expost.{name}"
    for name in ("audit", "budget", "errors", "features", "privacy", "sklearn", "training")
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
