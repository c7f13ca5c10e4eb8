"""Counts how much a call does, for tests that must not depend on how busy the machine is."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def lines_run(call: Callable[[], Result], at_most: int) -> tuple[Result, int]:
    """Return the result of ``call`` and the number of lines of Python that it ran.

    Stops with an AssertionError as soon as there are more than ``at_most``, so that a loop of
    10^30 rounds fails the test instead of never ending. Counts the calling thread only, and not the
    garbage of earlier tests, whose finalisers would run in it.
    """
    lines = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines > at_most:
                sys.settrace(None)
                raise AssertionError(f"more than {at_most} lines were run")
        return count

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(count)
    try:
        result = call()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return result, lines


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most memory that ``call`` held at once, arrays of numpy included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
