"""Audits: check whether a mechanism or a selector keeps its privacy guarantee.

:func:`audit` runs any mechanism many times on two neighbouring data sets, counts the outcomes and
gives a verdict at a stated confidence.

===================  =============================================================================
``empirical``        :func:`audit`: the runs, in this process or in several, and their verdict
``subjects``         what can be audited: a selection, a mechanism, a request, or ``MODULE:NAME``
``events``           how outputs are told apart, which events are tested, and the loss they show
``report``           :class:`AuditReport`, claims as numbers, exact bounds of a probability
===================  =============================================================================

Audits by computation, the oracle of the tests, are in ``tests/oracle``. The public names are
imported at first use. Tests: ``tests/audit``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expost.audit.empirical import audit
    from expost.audit.report import AuditReport, runs_needed

__all__ = ["AuditReport", "audit", "runs_needed"]

_HOMES = {"AuditReport": "report", "audit": "empirical", "runs_needed": "report"}


def __getattr__(name: str) -> Any:
    """Import a public name at first use."""
    if name in _HOMES:
        return getattr(import_module(f"expost.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'expost.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted({*globals(), *__all__})
