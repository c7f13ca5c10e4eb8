"""Importing this module makes a process ready for questions; the others are forked from it.

It imports what prices, runs and pages need, compiles the templates, and prices questions about a
made-up table: what a first price computes once takes seconds. It opens no database, starts no
thread and draws nothing, so that forks share code and public numbers only.
Tests: ``tests/server/test_start.py``.
"""

from __future__ import annotations

import importlib
from typing import Any

from expost.budget.budgets import ApproxBudget, PureBudget
from expost.privacy.guarantees import ZERO_OUT
from expost.server.app import create_app as create_app  # with all routes
from expost.server.jobs.datasets import check_dataset
from expost.server.jobs.prices import price_shown
from expost.server.pages.rendering import compile_templates

_LIBRARIES = (
    "uvicorn.protocols.http.auto",
    "uvicorn.lifespan.on",
    "ibis.backends.duckdb",
    "psycopg",
    "sklearn.datasets",
)
_TABLE: dict[str, Any] = {
    "name": "example",
    "version": 1,
    "kind": "table",
    "budget": "example",
    "source": "example.csv",
    "table": None,
    "delimiter": None,
    "user": "person",
    "groups": {"city": ["Bern", "Graz"]},
    "values": {},
    "filters": [],
    "columns": {"person": "text", "city": "text"},
    "types": {"person": "string", "city": "string"},
    "public_tables": {},
    "public_columns": {},
    "max_groups_per_user": 1,
    "max_rows_per_user": None,
    "typical_group": 1000,
    "delta": None,
    "largest_epsilon": None,
}
_COUNT = {"dataset": "example", "kind": "count", "by": ["city"], "within": 0.1}
_MODELS: dict[str, Any] = {
    "name": "models",
    "kind": "rows",
    "budget": "models",
    "delta": 1e-5,
    "data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10},
}
_JOB = {
    "dataset": "models",
    "kind": "tune",
    "goal": {"metric": "accuracy", "at_least": 0.7},
    "privacy": {"max_epsilon": 2.0},
}


def warm() -> list[str]:
    """Do all of it; return what was not possible, which then waits for the first question."""
    missed = []
    for library in _LIBRARIES:
        try:
            importlib.import_module(library)
        except ImportError:  # an extra that is not installed
            missed.append(library)
    compile_templates()
    try:
        price_shown(_TABLE, _COUNT, PureBudget(1.0))
        price_shown(check_dataset(_MODELS), _JOB, ApproxBudget(1.0, 1e-4, neighbours=ZERO_OUT))
    except Exception as error:  # a server starts without it
        missed.append(type(error).__name__)
    return missed


MISSED = warm()
