"""The exceptions that expost raises deliberately.

::

    ExpostError
    ├── InvalidInput (ValueError)      an argument that is missing or not valid
    │   ├── InvalidGuarantee           a guarantee that is not valid, or two that cannot be combined
    │   ├── InvalidCandidate           a candidate, or a list of candidates, that cannot be used
    │   └── InvalidRelease             a certificate that cannot be read or does not match
    ├── SimulationOnly                 seeded randomness outside a simulation
    ├── BudgetRefused                  the budget cannot pay for the request
    ├── LedgerError                    a missing, newer or damaged ledger, or a failed write
    ├── CheckpointMismatch             a checkpoint of another selection, data set or ledger
    ├── WorkersLost                    workers died repeatedly; the selection can be resumed
    └── MissingExtra (ImportError)     an optional dependency is not installed

A message never contains data, a drop level, a coin, a run count or an output. Callers keep this
rule when they choose the ``value`` of :class:`InvalidInput`: they pass a type name instead of data.

Errors can be copied and pickled, as worker processes do: message and attributes are kept. An
attribute that is not a plain value becomes the text that the message shows.

Tests: ``tests/test_errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np

_LONGEST = 80  # characters of a value that a message shows
_DIGITS = 12  # significant digits of a fraction that a message shows
_PLAIN = (type(None), bool, int, float, str, Fraction, Decimal)

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
    """Base class of all errors that expost raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make the error again without calling ``__init__``."""
        state = {name: _portable(value) for name, value in vars(self).items()}
        return _restored, (type(self), self.args, state)


class InvalidInput(ExpostError, ValueError):
    """An argument is missing or not valid.

    Parameters
    ----------
    field : str
        Name of the argument or setting.
    value : object
        What was given. ``None`` means that nothing was given. It must not be data: pass the name of
        its type where the value may come from a data set.
    valid : str
        What would be valid and what to do, for example ``"give a number > 0"``.

    Notes
    -----
    The message is "``field`` is required: ``valid``" if ``value`` is ``None``, and otherwise
    "``field`` = ``value`` is not valid: ``valid``". Fractions and decimals are shown as decimal
    numbers. Mappings and arrays are described, not shown. Long values are shortened.
    """

    def __init__(self, field: str, value: object, valid: str) -> None:
        self.field = field
        self.value = value
        self.valid = valid
        problem = "is required" if value is None else f"= {_shown(value)} is not valid"
        super().__init__(f"{field} {problem}: {valid}")


class InvalidGuarantee(InvalidInput):
    """A privacy guarantee is not valid, or two guarantees cannot be combined."""


class InvalidCandidate(InvalidInput):
    """A candidate, or a list of candidates, cannot be priced by any selector."""


class InvalidRelease(InvalidInput):
    """A certificate cannot be read, or does not match what it claims to certify."""


class SimulationOnly(ExpostError):
    """Seeded randomness was given where real data may be protected."""


class BudgetRefused(ExpostError):
    """A request was refused and nothing was changed. A smaller request may still be admitted.

    Parameters
    ----------
    budget : str
        Name of the budget.
    requested, remaining, held : object
        Amounts: the worst case of the request, what remains, and what running jobs hold. Each is a
        number, a mapping such as ``{"epsilon": 0.5, "delta": 1e-6}``, or a mapping with the keys
        ``orders`` and ``epsilons``. They are kept as attributes; the message shows them as text.
    """

    def __init__(self, budget: str, requested: object, remaining: object, held: object) -> None:
        self.budget = budget
        self.requested = requested
        self.remaining = remaining
        self.held = held
        super().__init__(
            f"budget {budget!r} refuses the request: requested {_amount(requested)}; "
            f"remaining {_amount(remaining, ROUND_FLOOR)}; held by running jobs {_amount(held)}; "
            "nothing was charged. Ask for less, or ask the owner of the budget to raise it"
        )


class LedgerError(ExpostError):
    """The ledger is missing, damaged, of a newer version, or cannot be written."""


class CheckpointMismatch(ExpostError):
    """A checkpoint belongs to another selection, another data set or another ledger."""


class WorkersLost(ExpostError):
    """Workers died, or could not be reached, as often as a task is tried. Nothing was released.

    Parameters
    ----------
    tries : int
        How often one task was tried.
    kind : str
        Name of the type of the last error.
    """

    def __init__(self, tries: int, kind: str) -> None:
        self.tries = tries
        self.kind = kind
        super().__init__(
            f"a task was lost with its worker {tries} times ({kind}); nothing was released. "
            "With a checkpoint, the same call continues where this one stopped: same draws, one "
            "charge. Without a checkpoint, the reserved amount stays charged. "
            "A broken pool of concurrent.futures stays broken: pass a new one, or "
            "expost.execution.workers.Processes, which replaces lost workers"
        )


class MissingExtra(ExpostError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package : str
        The package that could not be imported.
    extra : str
        The smallest extra of expost that installs it.
    needed_for : str, optional
        What needs the package, for example ``"compiled training on the CPU"``.
    """

    def __init__(self, package: str, extra: str, needed_for: str | None = None) -> None:
        self.package = package
        self.extra = extra
        self.needed_for = needed_for
        reason = "" if needed_for is None else f" (needed for {needed_for})"
        super().__init__(f"{package} is not installed{reason}; run: pip install 'expost[{extra}]'")


def import_extra(module: str, package: str, extra: str | None = None) -> Any:
    """Import a module of an optional dependency; MissingExtra names the extra that has it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(package, extra or package) from None


def _restored(
    kind: type[ExpostError], arguments: tuple[Any, ...], state: Mapping[str, Any]
) -> ExpostError:
    """Return a copy of an error: its message and its attributes."""
    error = kind.__new__(kind, *arguments)
    if isinstance(error, ImportError):
        error.msg = str(arguments[0]) if arguments else ""
    vars(error).update(state)
    return error


def _portable(value: object) -> object:
    """A value that any process can read: plain values as they are, others as text."""
    if type(value) in _PLAIN or (isinstance(value, np.generic) and not value.dtype.hasobject):
        return value
    if type(value) is list or type(value) is tuple:
        items = [_portable(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if type(value) is dict:
        return {str(name): _portable(item) for name, item in value.items()}
    return _shown(value)


def _shown(value: object) -> str:
    """A value as text for a message, shortened."""
    try:
        text = _text(value)
    except Exception:  # an integer with thousands of digits, or an object with a broken repr
        text = type(value).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _text(value: object) -> str:
    """A value as text: numbers as decimals, mappings and arrays as a description."""
    if isinstance(value, Mapping):
        return f"a mapping with {len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, (Fraction, Decimal)):
        return _decimal(value)
    if isinstance(value, np.number):
        return str(value)  # repr would write np.float64(…)
    if type(value) is list or type(value) is tuple:
        items = ", ".join(_text(item) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    return repr(value)


def _decimal(value: Fraction | Decimal) -> str:
    """A rational as a decimal number; fractions have 12 significant digits."""
    if isinstance(value, Fraction):
        context = Context(prec=_DIGITS)
        value = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    return str(value).replace("E", "e")


def _amount(amount: object, rounding: str = ROUND_CEILING) -> str:
    """An amount of a budget as text: "epsilon 0.5, delta 1e-6", never a Python dict."""
    if not isinstance(amount, Mapping):
        return _number(amount, rounding)
    if set(amount) == {"orders", "epsilons"}:
        return _curve(amount["orders"], amount["epsilons"], rounding)
    return ", ".join(f"{name} {_number(number, rounding)}" for name, number in amount.items())


def _curve(orders: Sequence[object], epsilons: Sequence[object], rounding: str) -> str:
    """A Rényi curve as text; of a long one the first two points and the last one."""
    points = [
        f"{_number(epsilon, rounding)} at order {_number(order)}"
        for order, epsilon in zip(orders, epsilons, strict=True)
    ]
    if len(points) > 4:
        points = [*points[:2], "…", f"{points[-1]} ({len(points)} orders)"]
    return "epsilon " + ", ".join(points)


def _number(number: object, rounding: str = ROUND_CEILING) -> str:
    """A number of six digits without a trailing .0 and without leading zeros in its exponent."""
    if not isinstance(number, float):
        return number if isinstance(number, str) else _shown(number)
    rounded = Context(prec=6, rounding=rounding).create_decimal(repr(float(number)))
    digits, _, exponent = str(float(rounded)).partition("e")
    return digits.removesuffix(".0") + (f"e{int(exponent)}" if exponent else "")
