"""Number of fuzzing examples: small and fixed in every run, large with ``EXPOST_FUZZ=long``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

LONG = os.environ.get("EXPOST_FUZZ") == "long"
TIMES = 40


def examples(number: int) -> Callable[[Any], Any]:
    """Use ``number`` examples, the same in every run.

    The long profile uses forty times as many new ones.
    """
    return settings(
        max_examples=number * TIMES if LONG else number,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
