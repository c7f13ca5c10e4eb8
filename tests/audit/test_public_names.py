"""The public names of ``expost.audit`` import in any order; docstrings list every module."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import expost.audit

NAMES = ("audit", "exact_audit", "AuditReport", "ExactReport", "FiniteMechanism", "runs_needed")
PACKAGES = ("expost.audit", "expost.audit.empirical", "expost.audit.exact", "benchmarks", "scripts")
SUBMODULES = ("expost.audit.empirical.audit", "expost.audit.exact.audit")


def test_all_is_the_list_of_public_names() -> None:
    assert set(expost.audit.__all__) == set(NAMES)
    assert set(NAMES) <= set(dir(expost.audit))
    assert all(inspect.getdoc(getattr(expost.audit, name)) for name in NAMES)


@pytest.mark.parametrize("submodule", SUBMODULES)
@pytest.mark.parametrize("function_first", [True, False])
def test_a_submodule_called_audit_does_not_replace_the_function(
    submodule: str, function_first: bool
) -> None:
    """A fresh interpreter for each order: imports are remembered within one."""
    imports = ["from expost.audit import " + ", ".join(NAMES), f"import {submodule} as module"]
    lines = imports if function_first else imports[::-1]
    checks = [
        "import expost.audit, inspect",
        "assert inspect.isfunction(audit) and inspect.isfunction(expost.audit.audit)",
        "assert inspect.isfunction(exact_audit) and inspect.ismodule(module)",
    ]
    code = "\n".join([*lines, *checks])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'judge'"):
        _ = expost.audit.judge


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_lists_every_module(package: str) -> None:
    """No module is missing, and none is listed that does not exist."""
    found = importlib.import_module(package)
    assert found.__file__ is not None
    folder = Path(found.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    rows = [line.split("``")[1] for line in (found.__doc__ or "").splitlines() if line[:2] == "``"]
    assert set(rows) >= modules
    assert {row for row in rows if row.isidentifier()} == modules
