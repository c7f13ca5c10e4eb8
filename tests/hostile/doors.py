"""The registry of doors: every way by which something leaves the package, with hostile neighbours.

A *door* is a selector, an executor, an estimator, an adapter, a public function or a command. Each
has an entry in ``ENTRIES`` (which test judges it) or in ``PENDING`` (why it has none yet). A door
that is found in the package and has neither fails ``test_every_door_has_an_entry``.

To add an entry: write a test that feeds the door hostile neighbours and ends in one of the two
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
    "integration:optuna": "test_optuna.py",
}

PENDING: dict[str, str] = {
    "integration:ray": "needs a cluster; tests/integrations/test_ray.py runs the same contract",
    "integration:dask": "needs a cluster; tests/integrations/test_dask.py runs the same contract",
    "integration:opacus": "belongs to the training room",
    "integration:dp_accounting": "reads no data",
    "sklearn:public_baseline": "takes rows that its name declares public",
    "function:count": "tests/cli/test_count_questions.py judges neighbours of counts",
    "function:sum": "tests/cli/test_count_questions.py judges neighbours of sums",
    "function:mean": "tests/cli/test_count_questions.py judges neighbours of means",
    "function:tune": "belongs to the tuning room",
    "function:load_model": "reads released models, no data",
    "command:count": "belongs to the analytics room",
    "command:tune": "belongs to the tuning room",
    "command:plan": "reads no data",
    "command:certificate": "reads released certificates, no data",
    "command:ledger": "belongs to the budget room",
    "command:audit": "audits made-up data",
}


def concrete_selectors() -> list[type[Selector]]:
    """Every selector of the package that can be made."""
    import_module("expost.selection.repeat_and_select")
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
