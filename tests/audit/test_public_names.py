"""The public names of ``expost.audit``, and docstrings that list every module."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import expost.audit

NAMES = ("audit", "AuditReport", "runs_needed")
PACKAGES = ("expost.audit", "tests.oracle", "benchmarks", "scripts")


def test_all_is_the_list_of_public_names() -> None:
    assert set(expost.audit.__all__) == set(NAMES)
    assert set(NAMES) <= set(dir(expost.audit))
    assert all(inspect.getdoc(getattr(expost.audit, name)) for name in NAMES)


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
