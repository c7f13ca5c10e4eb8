"""Everything that is wrong with the public settings of an estimator, in one message.

The checks look at settings, column names and column types, which are public, and at no value. They
come before gaps and labels are looked at. Tests: ``tests/tuning/test_sklearn_facts.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from expost.errors import InvalidInput
from expost.execution.failure import attempt
from expost.sklearn._rows import WHY


class InvalidFacts(InvalidInput):
    """Several settings are missing or not valid.

    Parameters
    ----------
    problems : list of InvalidInput
        Two or more errors.
    """

    def __init__(self, problems: list[InvalidInput]) -> None:
        self.field = ", ".join(each.field for each in problems)
        self.value = None
        texts = [str(each).replace(f": {WHY}", "") for each in problems]
        self.valid = "; ".join(f"({place}) {text}" for place, text in enumerate(texts, 1))
        Exception.__init__(self, f"{len(problems)} settings are missing or not valid: {self.valid}")
        if any(WHY in str(each) for each in problems):
            self.args = (f"{self}. Bounds and classes are public facts: {WHY}",)


def check_all(checks: Iterable[Callable[[], object]]) -> None:
    """Make all checks, then raise what they raised: one error as it is, several as one."""
    problems: list[InvalidInput] = []
    for check in checks:
        try:
            check()
        except InvalidInput as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InvalidFacts(problems)


def names_of(X: Any) -> tuple[list[str] | None, int]:
    """Return the names of the columns of a table, if they are texts, and their number."""
    columns = getattr(X, "columns", None)
    if columns is not None:
        names = [str(each) for each in columns if isinstance(each, str)]
        return (names if len(names) == len(columns) else None), len(columns)
    shape = attempt(np.shape, X)
    return None, shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
