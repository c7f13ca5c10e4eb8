"""Requests that share a transaction: each keeps its own result, and its own failure.

Tests: ``tests/budget/test_concurrency.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from expost.budget.rows import LedgerRows
from expost.errors import ExpostError

Result = TypeVar("Result")


class Request(Generic[Result]):
    """A piece of a transaction, and what became of it."""

    def __init__(self, work: Callable[[LedgerRows], Result]) -> None:
        self.work = work
        self.done = False
        self.error: BaseException | None = None
        self.value: Any = None

    def answer(self) -> Result:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        value: Result = self.value
        return value


def run_one(rows: LedgerRows, request: Request[Any], *, alone: bool) -> None:
    """Run one request of a transaction; if it fails, undo its part only."""
    if alone:
        request.value = request.work(rows)
        return
    rows.run("SAVEPOINT expost_request")
    try:
        request.value = request.work(rows)
    except ExpostError as error:
        rows.run("ROLLBACK TO SAVEPOINT expost_request")
        request.error = error
    rows.run("RELEASE SAVEPOINT expost_request")
