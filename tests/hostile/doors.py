"""The registry of doors: every way by which something leaves the package, with hostile neighbours.

A *door* is a selector, an executor, an estimator, a training, an adapter, a function or a command.
Each has an entry in ``ENTRIES`` (which test judges it) or in ``NO_DATA`` (why no row can reach it).
A door that is found in the package and has neither fails ``test_every_door_has_an_entry``.

To add an entry: write a test that feeds the door hostile neighbours and ends in one of the
judgements of :mod:`tests.hostile.judge`, and name it here.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import expost
import expost.cli.main
import expost.integrations
from expost.selection.selector import Selector

ENTRIES: dict[str, str] = {
    "selector:random-dropping": "test_selectors.py",
    "selector:above-threshold": "test_selectors.py",
    "selector:doubling": "test_selectors.py",
    "selector:repeat-and-select": "test_selectors.py",
    "selector:noise-reduction": "test_selectors.py",
    "executor:Processes": "test_selectors.py",
    "executor:threads": "test_selectors.py",
    "sklearn:ExPostSearch": "test_estimators.py",
    "sklearn:DPLogisticRegression": "test_estimators.py",
    "sklearn:DPLinearRegression": "test_estimators.py",
    "integration:opendp": "test_adapters.py",
    "selector:noise-path": "test_noise_path.py",
    "selector:tell": "../tuning/test_missed.py",
    "command:server": "test_server.py",
    "integration:optuna": "test_optuna.py",
    "integration:opacus": "test_training.py",
    "integration:ray": "test_clusters.py",
    "integration:transformers": "../integrations/test_transformers.py",
    "integration:dask": "test_clusters.py",
    "integration:spark": "../integrations/test_spark.py",
    "training:Fleet": "test_training.py",
    "training:DPSGD": "test_training.py",
    "training:candidates": "test_training.py",
    "function:count": "test_analytics.py",
    "function:sum": "test_analytics.py",
    "function:mean": "test_analytics.py",
    "command:count": "test_analytics.py",
    "function:query": "test_sql.py",
    "command:query": "test_commands.py",
    "function:quantile": "../analytics/test_quantiles.py",
    "command:quantile": "test_commands.py",
    "function:tune": "test_tuning.py",
    "function:describe": "test_facts.py",
    "function:subgroup_errors": "../tuning/test_subgroup_errors.py",
    "command:describe": "test_facts.py",
    "function:plan_job": "test_tuning.py",
    "command:tune": "test_tuning.py",
}

NO_DATA: dict[str, str] = {
    "function:connect": "asks a server over HTTP; the server is judged as command:server",
    "function:default_job": "computes settings from the number of rows, which is public",
    "sklearn:public_baseline": "takes rows that its name declares public",
    "integration:loggers": "sends a result that was released, and public settings",
    "integration:dp_accounting": "computes guarantees from public settings",
    "training:Configuration": "holds public settings, from which its guarantee follows",
    "training:Trained": "holds a model that was released already",
    "training:progress_bar": "shows expected numbers, which follow from public settings",
    "function:load_model": "reads a released model",
    "function:read_certificate": "reads a released certificate from a file",
    "function:verify_certificate": "recomputes the public numbers of a released certificate",
    "function:certificate_words": "puts a released certificate into words",
    "command:schema": "writes which settings there are; it reads nothing",
    "command:plan": "computes prices from public settings; its tests run it without a data set",
    "command:certificate": "reads a released certificate and recomputes its public numbers",
    "command:ledger": "reads and writes a ledger; its entries are charges that were released",
    "command:evidence": "reads released certificates and a ledger",
    "command:tour": "makes its own rows up",
    "command:audit": "runs a subject on made-up data sets that the caller names as public",
}


def concrete_selectors() -> list[type[Selector]]:
    """Every selector of the package that can be made."""
    import_module("expost.selection.baselines")
    found, queue = [], [Selector]
    while queue:
        kind = queue.pop()
        queue.extend(kind.__subclasses__())
        if "name" in vars(kind) and kind.__module__.startswith("expost."):
            found.append(kind)
    return found


def found_doors() -> set[str]:
    """Every door that the package has now."""
    doors = {f"selector:{kind.name}" for kind in concrete_selectors()}
    doors |= {"executor:threads", "executor:Processes"}
    doors |= {f"sklearn:{name}" for name in import_module("expost.sklearn").__all__}
    doors |= {f"training:{name}" for name in import_module("expost.training").__all__}
    modules = pkgutil.iter_modules(expost.integrations.__path__)
    doors |= {f"integration:{module.name}" for module in modules}
    functions = [name for name in expost.__all__ if name.islower() and not name.startswith("_")]
    doors |= {f"function:{name}" for name in functions if callable(getattr(expost, name))}
    return doors | {f"command:{name}" for name in command_names(expost.cli.main)}


def command_names(module: Any) -> list[str]:
    """The names of the commands and groups of the command line."""
    app = next(each for each in vars(module).values() if type(each).__name__ == "Typer")
    commands = [each.name or each.callback.__name__ for each in app.registered_commands]
    groups = [each.name or each.typer_instance.info.name for each in app.registered_groups]
    return [str(name) for name in commands + groups]
