"""Every exception expost raises on purpose.

::

    ExpostError
    ├── InvalidInput (ValueError)      a field, its value, and what would be valid
    │   ├── InvalidGuarantee           a promise that cannot be meant, or two that do not mix
    │   ├── InvalidCandidate           a candidate, or a list of them, that cannot be selected from
    │   └── InvalidRelease             a certificate that is not one
    ├── SimulationOnly                 seeded randomness outside a simulation
    ├── BudgetRefused                  the budget cannot pay: requested, remaining, held
    ├── LedgerError                    a ledger that is missing, newer, damaged, or cannot be written
    ├── CheckpointMismatch             a checkpoint of another selection, another data set or another ledger
    ├── WorkersLost                    workers that died, again and again; the selection can go on
    └── MissingExtra (ImportError)     an optional dependency, with the command that installs it

No message ever contains data, a drop level, a coin, a run count or an output.
"""

from __future__ import annotations

__all__ = [
    "BudgetRefused",
    "CheckpointMismatch",
    "ExpostError",
    "InvalidCandidate",
    "InvalidGuarantee",
    "InvalidInput",
    "InvalidRelease",
    "LedgerError",
    "MissingExtra",
    "SimulationOnly",
    "WorkersLost",
]


class ExpostError(Exception):
    """Base of all errors raised by expost."""


class InvalidInput(ExpostError, ValueError):
    """Bad input: names the field, the value, and what would be valid."""

    def __init__(self, field: str, value: object, valid: str) -> None:
        self.field = field
        self.value = value
        self.valid = valid
        super().__init__(f"{field} = {_shorten(value)} is not valid: {valid}")


class InvalidGuarantee(InvalidInput):
    """A privacy promise that cannot be meant, or promises that cannot be combined."""


class InvalidCandidate(InvalidInput):
    """A candidate, or a list of candidates, that no selector can price."""


class InvalidRelease(InvalidInput):
    """A certificate that cannot be read, or does not match what it claims to certify."""


class SimulationOnly(ExpostError):
    """Seeded randomness was given to code that protects people."""


class BudgetRefused(ExpostError):
    """A request was refused and nothing was changed; a smaller one may still pass."""

    def __init__(self, budget: str, requested: object, remaining: object, held: object) -> None:
        self.budget = budget
        self.requested = requested
        self.remaining = remaining
        self.held = held
        super().__init__(
            f"budget {budget!r} refuses: requested {requested}, remaining {remaining} "
            f"(a further {held} is held by running jobs); nothing was charged"
        )


class LedgerError(ExpostError):
    """The ledger cannot be used as asked."""


class CheckpointMismatch(ExpostError):
    """A checkpoint belongs to another selection."""


class WorkersLost(ExpostError):
    """Workers died, or could not be reached, as often as a task is tried. Nothing was released; ``kind`` is the kind of the last error."""

    def __init__(self, tries: int, kind: str) -> None:
        self.tries = tries
        self.kind = kind
        super().__init__(
            f"a task was lost with its worker {tries} times ({kind}); nothing was released. The same call goes on where this one "
            "stopped if it had a checkpoint: same draws, one charge. Without one, what was reserved stays charged. A pool of "
            "concurrent.futures that broke stays broken: give a new one, or expost.execution.processes.Processes, which mends itself"
        )


class MissingExtra(ExpostError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed; run: pip install 'expost[{extra}]'")


def _shorten(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, an object of the user's own
        text = type(value).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
