"""Audits: is a promise kept? By counting (any mechanism), or exactly (finite ones).

``empirical``  run it on two neighbouring data sets and compare: verdict at a stated confidence
``subjects``   what can be audited; ``events`` how outputs are told apart; ``sampling`` the runs, in processes
``claims``     the promise as numbers; ``family`` the events tested; ``bounds`` Clopper–Pearson; ``judging`` the findings; ``report``
``exact``      the exact law of a selector over finite mechanisms (``finite``), and the search for counterexamples (``search``)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expost.audit.empirical.audit import audit
    from expost.audit.empirical.clopper_pearson import runs_needed
    from expost.audit.exact.audit import ExactReport, exact_audit
    from expost.audit.exact.finite_mechanism import FiniteMechanism
    from expost.audit.report import AuditReport

__all__ = ["AuditReport", "ExactReport", "FiniteMechanism", "audit", "exact_audit", "runs_needed"]

_HOMES = {
    "AuditReport": "report",
    "ExactReport": "exact.audit",
    "FiniteMechanism": "exact.finite_mechanism",
    "audit": "empirical.audit",
    "exact_audit": "exact.audit",
    "runs_needed": "empirical.clopper_pearson",
}


def __getattr__(name: str) -> Any:
    """Each name is imported at first use."""
    if name in _HOMES:
        return getattr(import_module(f"expost.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'expost.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted({*globals(), *__all__})
