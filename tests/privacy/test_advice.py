"""Warnings about weak guarantees: when they come, and that they stay away otherwise."""

import warnings

import pytest

from expost import ZCDP, ApproxDP, PureDP, RenyiDP
from expost.privacy.charges import warn_if_weak


@pytest.mark.parametrize(
    ("guarantee", "rows", "text"),
    [
        (PureDP(20.5), None, "epsilon = 20.5 is very large"),
        (ApproxDP(30, 1e-9), 100, "epsilon = 30 is very large"),
        (ApproxDP(1, 0.01), 100, "at least 1/100"),
        (ApproxDP(1, 0.5), 3, "at least 1/3"),
    ],
)
def test_a_weak_guarantee_warns(guarantee, rows, text):
    with pytest.warns(UserWarning, match=text):
        warn_if_weak(guarantee, rows)


@pytest.mark.parametrize(
    ("guarantee", "rows"),
    [
        (PureDP(20), 10),
        (ApproxDP(1, 0.0099), 100),
        (ApproxDP(1, 0.5), None),
        (ZCDP(1000), 5),
        (RenyiDP((2.0,), (100.0,)), 5),
    ],
)
def test_others_do_not(guarantee, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_weak(guarantee, rows)
