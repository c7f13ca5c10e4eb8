"""Checks of settings that selectors share."""

from __future__ import annotations

import math

from expost.errors import InvalidInput
from expost.rationals import exact, round_up


def check_callbacks(**callbacks: object) -> None:
    """Refuse callbacks that are not callable."""
    for name, function in callbacks.items():
        if function is not None and not callable(function):
            raise InvalidInput(name, type(function).__name__, "give a function, or leave it out")


def check_flag(value: object, field: str) -> None:
    """Refuse anything but True and False: a string such as 'no' would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "give True or False")


def check_target(target: object) -> None:
    """Refuse a target that is not a finite number."""
    if target is not None and round_up(abs(exact(target, "target"))) == math.inf:  # type: ignore[arg-type]
        raise InvalidInput("target", type(target).__name__, "give a number that a float can hold")
