"""Tests of the tests: the counters in ``work`` see loops and arrays."""

import numpy as np
import pytest

from tests.work import lines_run, peak_bytes


def rounds(number: int) -> int:
    total = 0
    for each in range(number):
        total += each
    return total


def test_lines_grow_with_the_rounds_of_a_loop() -> None:
    result, few = lines_run(lambda: rounds(10), at_most=1000)
    assert result == 45
    assert lines_run(lambda: rounds(100), at_most=1000)[1] > 5 * few


def test_a_loop_without_end_is_stopped() -> None:
    with pytest.raises(AssertionError, match="more than 1000 lines"):
        lines_run(lambda: rounds(10**30), at_most=1000)


def test_arrays_are_seen() -> None:
    assert peak_bytes(lambda: np.zeros(10**6).sum()) >= 8 * 10**6
