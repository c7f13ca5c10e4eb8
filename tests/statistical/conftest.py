"""Exponentials and logarithms of the exact samplers are computed once per argument.

The samplers compute them anew for every draw. They are functions without state, so remembering
their values leaves every draw as it is; ``tests/randomness`` checks the samplers without this.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from expost.randomness.coins import BracketArithmetic


@pytest.fixture(autouse=True, scope="module")
def _remembered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("exp_minus", "minus_ln"):
            patch.setattr(
                BracketArithmetic, name, lru_cache(1 << 14)(getattr(BracketArithmetic, name))
            )
        yield
