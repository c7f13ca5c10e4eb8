"""Audits: check whether a mechanism or a selector keeps its privacy promise.

Two kinds of audit:

* :func:`audit` runs any mechanism many times on two neighbouring data sets, counts the outcomes
  and gives a verdict at a stated confidence.
* :func:`exact_audit` computes the exact output distribution of a selector over finite mechanisms
  (:class:`FiniteMechanism`). It needs no sampling.

Modules:

========================  =====================================================================
``report``                :class:`AuditReport` and its parts: what an empirical audit found
``claims``                the promises as numbers: (ε, δ), or Rényi charges at some orders
``empirical``             audits by sampling; its modules are listed in its docstring
``exact``                 audits by computation; its modules are listed in its docstring
========================  =====================================================================

The public names are imported at first use. ``expost.audit.audit`` is the function; the modules
``expost.audit.empirical.audit`` and ``expost.audit.exact.audit`` have the same last name, but
importing them does not replace it. Tests: ``tests/audit``.
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
    """Import a public name at first use."""
    if name in _HOMES:
        return getattr(import_module(f"expost.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'expost.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted({*globals(), *__all__})
